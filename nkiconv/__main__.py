"""`python -m nkiconv` is the command line."""

from .tools.start import main

main()
