"""Which edges of a graph carry Q/DQ: one rule a module, a reason a node."""
