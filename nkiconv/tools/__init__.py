"""Tools around kernels and planner: the command line, checks, times, tables, a tour."""
