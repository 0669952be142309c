"""Jobs in processes of their own: table of jobs, protocol, worker."""
