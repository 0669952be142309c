"""Jobs in processes of their own: protocol, worker, supervisor."""
