"""conv2d by one matmul a tap and 128 input channels, on the window of x that the tap meets."""
