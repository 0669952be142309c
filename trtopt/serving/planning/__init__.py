"""Planning: which sizes to measure, what is best, and which engines, workers and delay keep a latency."""
