"""`python -m nkiconv` is the command line."""

from .tools.cli import main

main()
