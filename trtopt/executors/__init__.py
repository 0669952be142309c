"""Where jobs run: worker processes on this host, or those of a Ray cluster."""
