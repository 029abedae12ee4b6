"""Depthwise conv2d with blocks of rows and columns on the partitions, filters as Toeplitz matrices of all taps."""
