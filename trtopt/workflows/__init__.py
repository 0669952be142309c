"""The order of the stages: the one place that knows it. The command line is a thin skin over this."""
