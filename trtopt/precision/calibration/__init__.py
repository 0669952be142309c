"""How large the values of each tensor get: one streaming pass, one histogram a tensor, several methods."""
