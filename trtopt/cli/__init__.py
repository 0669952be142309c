"""The commands: each module parses, calls the library, renders and picks the exit code."""
