"""DMAs as the kernels issue them: static descriptors, made by the compiler because every address is known to it.

A static load takes its issuing engine (Sync) 58 ns and a static store GpSimd, where descriptors made by hardware take
Sync or Scalar 530 ns each (trn2.toml, dma.static_issue_ns and dma.hwdge_issue_ns), so that read-outs on Scalar and
loads do not wait for each other.
"""

from .._nki import nisa


def copy(dst, src):
    """One static DMA between HBM and SBUF, or within either; dtypes may differ (a cast through fp32)."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)
