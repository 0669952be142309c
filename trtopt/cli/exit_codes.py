"""Exit codes besides those of errors, which are in `trtopt.errors`: 1 for a failure, 2 for wrong usage."""

from __future__ import annotations

NOT_MET = 3
"""The work is done, but a bound is not met, B is slower than A, lint has findings to fail on, or there is an
accuracy alarm (`--strict`)."""
UNTRUSTWORTHY = 4
"""Figures are not trustworthy (`--strict`)."""
NOT_SHOWN = 5
"""B is not SLOWER than A, but not shown to be within the limit either."""
INTERRUPTED = 130
BY_SIGNAL = 128
"""The signal's number is added to this."""
