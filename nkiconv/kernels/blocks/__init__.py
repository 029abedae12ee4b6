"""Convolutions fused with the layers before and after them in models: one package for each block."""
