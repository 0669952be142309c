"""FP16 and BF16 written into a graph: which nodes, where casts go, and what it costs in accuracy."""
