"""Whole models: their convolutions swapped, batch norms folded, and what they would take on trn2."""
