"""conv2d with few channels: rows and shifted columns of x beside each other on the partitions."""
