"""Stands for AWS's compiler, which the stand-in of `nki` does without."""
