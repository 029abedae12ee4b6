"""The enums of nki.isa."""

from __future__ import annotations

import functools
from enum import Enum


class engine(Enum):
    """Engines of a NeuronCore."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


class reduce_cmd(Enum):
    """An instruction's use of its engine's reduction registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who makes a DMA's descriptors: the compiler's choice, GpSimd, hardware, or the host beforehand."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """The effect of an indirect access out of bounds."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """Performance modes of nc_matmul."""

    none = "none"
    double_row = "double_row"


@functools.total_ordering
class nc_version(Enum):
    """NeuronCore generations, the newer one greater: kernels ask whether they run on gen3 or later."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: object) -> bool:
        return self.value < other.value if isinstance(other, nc_version) else NotImplemented


class dma_engine(Enum):
    """Who carries a sendrecv."""

    dma = 1
    gpsimd_dma = 2
