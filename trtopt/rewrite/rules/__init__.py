"""The rules, a module each: `RULE` and its functions. `trtopt.rewrite.catalogue` finds and orders them."""
