"""The conv2d algorithms on the host, a file each."""
