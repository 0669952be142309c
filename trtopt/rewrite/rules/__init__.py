"""The rules, one idea a file. `trtopt.rewrite.catalogue` lists them in the order in which they run."""
