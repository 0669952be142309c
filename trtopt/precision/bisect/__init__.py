"""The smallest set of nodes to keep in higher precision: the search, and the models that it tries."""
