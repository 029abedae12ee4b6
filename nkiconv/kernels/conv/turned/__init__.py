"""conv3d by windows of x as stationaries, planes of y beside each other; the array turns its sums into rows of y."""
