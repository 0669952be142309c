"""Channels that stand out in an activation: divided there, multiplied into the weights that read it."""
