"""Depthwise conv2d with whole rows of a few channels on the partitions, filters as banded Toeplitz matrices."""
