"""`skewed`: blocks of gy times windows of x, whose skew diagonals are a depthwise row's filter gradient."""
