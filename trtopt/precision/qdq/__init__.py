"""Writing Q/DQ into a graph, in the form that the target reads."""
