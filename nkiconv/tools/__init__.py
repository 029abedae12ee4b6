"""What is done with kernels and planner beside calling them: the command line, checks, times, tables, a tour."""
