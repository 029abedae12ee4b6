"""Depthwise conv2d: blocks of x are the stationaries, Toeplitz matrices of all taps move."""
