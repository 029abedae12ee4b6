"""The functions of the package causal-conv1d: states, packed sequences, rings, and standing in for the package."""
