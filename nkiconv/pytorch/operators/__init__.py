"""The custom operators: what a call asks for, its checks, derivatives and filters in the kernel's order."""
