"""`dot`: filters and rows multiplied as matrices, for few columns; kernel.py says how and what bounds it."""
