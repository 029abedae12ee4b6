"""A kernel that breaks a rule: the moving tile of its matmul has more columns than the Tensor Engine takes."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def too_wide(a, b):
    """a [128, 128] and b [128, 640] in HBM; returns a.T @ b."""
    a_sbuf = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    b_sbuf = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a_sbuf, src=a)
    nisa.dma_copy(dst=b_sbuf, src=b)
    acc_psum = nl.ndarray((128, 640), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc_psum, stationary=a_sbuf, moving=b_sbuf)
    y = nl.ndarray((128, 640), dtype=a.dtype, buffer=nl.shared_hbm)
    y_sbuf = nl.ndarray((128, 640), dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=y_sbuf, src=acc_psum)
    nisa.dma_copy(dst=y, src=y_sbuf)
    return y
