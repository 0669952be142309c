"""Exit codes beside those of errors, which are in `trtopt.errors`: 1 for a failure, 2 for wrong usage."""

from __future__ import annotations

NOT_MET = 3
"""The work is done, but a bound is not met, B is slower than A, or there is advice to fail on."""
UNTRUSTWORTHY = 4
"""Figures are not to be trusted (`--strict`)."""
INTERRUPTED = 130
BY_SIGNAL = 128
"""To this the signal's number is added."""
