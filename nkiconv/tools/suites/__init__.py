"""Modelled times of named cases beside floors, limits and kernels of others, and the files that keep them."""
