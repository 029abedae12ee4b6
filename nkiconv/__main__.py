"""`python -m nkiconv` is the command line."""

from .cli import main

main()
