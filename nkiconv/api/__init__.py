"""Arrays in, arrays out, one file an operation family: check the call, describe it as a problem, launch the kernel."""
