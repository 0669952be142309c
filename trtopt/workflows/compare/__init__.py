"""Comparing result files, engines, builds and contracts."""
