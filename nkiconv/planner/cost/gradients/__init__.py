"""Cost models of the algorithms that only filter gradients have."""
