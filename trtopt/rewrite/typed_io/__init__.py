"""Types, layouts and normalisation of inputs and outputs, written into the graph and verified.

`requested` holds a request against the graph, `typed_graph` writes it and verifies, and moves the
quantisation of INT8 tensors to the caller, once it is in the graph.
"""
