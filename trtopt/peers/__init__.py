"""Command lines of trtexec and Polygraphy as those of trtopt, and the files that trtexec writes."""
