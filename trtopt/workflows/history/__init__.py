"""A model's results over time."""
