"""conv2d in fp8 by two taps, or two chunks of channels, a matmul."""
