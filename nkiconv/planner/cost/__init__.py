"""The host's view of each algorithm: bounds of its settings, its best settings, and the settings that a search tries.

One file for each family of kernels, with its algorithms by name: `conv`, `rows`, `gradients`. The bounds are in
`schedules`.
"""
