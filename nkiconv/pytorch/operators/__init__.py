"""The custom operators: a call's Convolution, its checks, derivatives and filters in the kernel's order."""
