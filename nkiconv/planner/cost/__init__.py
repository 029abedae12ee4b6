"""What the host asks of each algorithm: what its settings take at least, which it takes best, which a search tries.

A file for each family of kernels, with its algorithms by name: `conv`, `rows`, `gradients`. The bounds themselves are
the schedules'.
"""
