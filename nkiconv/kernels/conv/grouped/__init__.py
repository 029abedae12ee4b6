"""Grouped conv2d on tiles of the array's rows: several outputs of a channel in the columns of one stationary."""
