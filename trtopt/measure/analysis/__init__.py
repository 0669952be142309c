"""What measurements mean: gap ledger, hints, interference, trade-offs. Pure."""
