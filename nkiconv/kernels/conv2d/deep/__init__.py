"""conv2d with few outputs and many products each: two cores share the contraction, or the output channels."""
