"""K packing: few channels share the partitions with rows and shifted columns of x, and the columns with rows of y."""
