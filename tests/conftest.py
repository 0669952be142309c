"""Ctrl-C means the same to every run of the tests, wherever they are started."""

import signal

# a shell that starts them in the background makes them, and what they start, deaf to it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
