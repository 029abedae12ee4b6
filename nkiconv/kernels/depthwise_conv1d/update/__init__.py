"""`update`: rows of a few elements, decode steps; kernel.py describes the method and its bound."""
