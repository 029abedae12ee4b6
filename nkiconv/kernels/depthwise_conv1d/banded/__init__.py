"""`banded`: band matrices on the Tensor Engine; kernel.py says how and what bounds it."""
