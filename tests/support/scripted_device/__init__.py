"""A scripted device: virtual time, durations from a script, failures on demand."""
