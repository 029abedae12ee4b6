"""DMAs as the kernels issue them: static descriptors, made by the compiler because every address is known to it.

Sync issues static loads and GpSimd static stores in a ninth of the time that Sync or Scalar take where hardware makes
the descriptors (trn2.toml, dma), so that read-outs on Scalar and loads do not wait for each other.
"""

from .._nki import nisa


def copy(dst, src):
    """One static DMA between HBM and SBUF, or within either; dtypes may differ (a cast through fp32)."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)


def copy_either_way(here_sbuf, there_hbm, is_store):
    """One static DMA between SBUF and HBM."""
    if is_store:
        copy(there_hbm, here_sbuf)
    else:
        copy(here_sbuf, there_hbm)


def copy_moved(dst, src, casts):
    """One DMA between SBUF and HBM where a register says where in HBM, so that descriptors are made as it runs: by
    hardware, which does not cast, or by GpSimd."""
    if casts:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.swdge)
    else:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)
