"""Layers, peaks and precision receipts of engines."""
