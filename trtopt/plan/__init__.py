"""Planning: which engines, how many workers and which delay keep a latency under a load."""
