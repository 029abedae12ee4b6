"""What is done with kernels and planner besides calling them: the command line, checks, times, tables, a tour."""
