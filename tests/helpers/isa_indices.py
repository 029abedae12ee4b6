"""Run-time indices for tests of indirect views: in tiles, in registers, and of the rows of a tensor in HBM."""

import numpy as np
from isa_tiles import put

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl


def column(values, dtype=nl.int32):
    """Indices [P, 1] in SBUF."""
    return put(np.asarray(values).astype(dtype).reshape(-1, 1))


def one(value, dtype=nl.int32):
    """An index [1, 1] in SBUF."""
    return column([value], dtype)


def register(value):
    """An index in a register."""
    return nisa.register_alloc(value)


def rows_of(tensor, indices, step=None):
    """All columns of the rows of a 2-d HBM tensor that `indices` [P, 1] name."""
    columns = tensor.shape[1]
    return tensor.ap([[step or columns, indices.shape[0]], [1, columns]], vector_offset=indices)
