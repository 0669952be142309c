"""Serving: engines chosen for the batch at hand, and single requests made into batches."""
