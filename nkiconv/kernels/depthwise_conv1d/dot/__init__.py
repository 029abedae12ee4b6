"""`dot`: filters and rows multiplied as matrices, for few columns; kernel.py describes the method and its bound."""
