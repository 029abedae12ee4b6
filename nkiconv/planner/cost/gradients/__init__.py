"""Cost models of filter gradients."""
