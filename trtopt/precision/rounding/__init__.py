"""Weights rounded with each other's errors in mind, by what their layers read."""
