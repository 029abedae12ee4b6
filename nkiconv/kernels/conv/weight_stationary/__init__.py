"""Convolutions whose filters are stationary and whose outputs are in blocks of neighbours."""
