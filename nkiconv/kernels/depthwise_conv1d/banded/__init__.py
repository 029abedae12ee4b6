"""`banded`: band matrices on the Tensor Engine; kernel.py describes the method and its bound."""
