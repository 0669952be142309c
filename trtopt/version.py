"""The one place that states trtopt's version."""

__version__ = "0.1.0"
