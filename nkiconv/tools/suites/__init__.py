"""Modelled times of named cases, with floors, limits and kernels of others, and the files that keep them."""
