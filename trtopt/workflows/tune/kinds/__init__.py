"""The kinds of candidates: a module each, with its `KIND` in the table of `kinds.table`."""
