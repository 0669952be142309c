"""Tuning: candidates from a priority queue, each predicted, built, raced against the best so far."""
