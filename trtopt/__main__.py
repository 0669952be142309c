"""`python -m trtopt`."""

from trtopt.cli.main import main

main()
