"""From measurements to a serving plan, its trial runs and its deployment."""
