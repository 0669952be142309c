"""Outlier channels of an activation: divided there, multiplied into the weights that read it."""
