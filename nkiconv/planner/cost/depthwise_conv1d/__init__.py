"""The depthwise conv1d algorithms on the host, a file each."""
