"""conv2d with few output channels: taps and rows of y beside each other in the columns of the array."""
