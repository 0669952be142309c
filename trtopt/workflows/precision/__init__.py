"""Quantizing, checking and bisecting a model."""
