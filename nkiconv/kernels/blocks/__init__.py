"""Convolutions with what models do before and after them, as one kernel: one package a block."""
