"""Which edges of a graph carry Q/DQ: rules in their order, a reason for each node."""
