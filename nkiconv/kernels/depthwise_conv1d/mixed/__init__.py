"""The kernel of `mixed` and `vector`: rows of 128 channels, tap by tap; kernel.py has the loop and its bound."""
