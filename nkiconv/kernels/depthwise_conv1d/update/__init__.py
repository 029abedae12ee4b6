"""`update`: rows of a few elements, decode steps; kernel.py says how and what bounds it."""
