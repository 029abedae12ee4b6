"""Filters for the Tensor Engine: tiles of zeros for placement, transposes, and circular buffers."""

from dataclasses import dataclass
from typing import Any

from ..._nki import nisa, nl
from ...schedules.tiles import WORD_BYTES, size_of, whole_words
from .._engines import copy_balanced


def tiles_in_turn(count, shape, dtype):
    """A circular buffer of `count` tiles of a shape in SBUF: it caps how far loads run ahead."""
    return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)]


@dataclass
class Buffer(nl.NKIObject):
    """A tile of a circular buffer, and the places of its zeros, which stay."""

    tile: Any
    zeros: Any = None


def clear_words(tile, engine):
    """Zero a tile whose rows fill whole words, four bytes at a time."""
    flat = tile.reshape((tile.shape[0], size_of(tile.shape[1:])))
    nisa.memset(dst=flat if tile.dtype == nl.float32 else flat.view(nl.float32), value=0.0, engine=engine)


def clear_tile(tile, itemsize, engine):
    """Zero a tile, a word at a time if its rows fill whole words."""
    if size_of(tile.shape[1:]) * itemsize % WORD_BYTES == 0:
        clear_words(tile, engine)
    else:
        nisa.memset(dst=tile, value=0.0, engine=engine)


def transposed_bank(sources, parts, pitch):
    """Views [w, p] in SBUF, at most a bank of them, transposed by the Tensor Engine into PSUM: [p, view, pitch], of
    which w columns are written."""
    bank_psum = nl.ndarray((parts, len(sources), pitch), dtype=sources[0].dtype, buffer=nl.psum)
    transpose_into(bank_psum, sources)
    return bank_psum


def transpose_into(bank_psum, sources):
    """Transpose views [w, p] in SBUF, whose p may differ and have several axes, into a bank [p, view, w or more]."""
    for index, data in enumerate(sources):
        dst = bank_psum[0 : size_of(data.shape[1:]), index, 0 : data.shape[0]]
        nisa.nc_transpose(dst=dst, data=data, engine=nisa.engine.tensor)


def transpose_together(dst_sbuf, sources, itemsize, ledger):
    """Transpose views [w, p] of filters, at most a bank of them, into [p, view, w or fewer] in SBUF by one
    evacuation."""
    parts, count, width = dst_sbuf.shape
    bank_psum = transposed_bank(sources, parts, whole_words(sources[0].shape[0], itemsize))
    copy_balanced(dst_sbuf, bank_psum[0:parts, 0:count, 0:width], ledger)


def copy_backwards(dst_sbuf, raw_sbuf, ledger):
    """Copy filters [c, k, r, s] with taps in reverse order, tap by tap, in order to [c, tap, k]."""
    S, taps = raw_sbuf.shape[3], dst_sbuf.shape[1]
    for tap in range(taps):
        r, s = divmod(taps - 1 - tap, S)
        copy_balanced(dst_sbuf[:, tap], raw_sbuf[:, :, r, s], ledger)


def turn_forwards(raw_sbuf):
    """A copy of filters [partitions, n, ...] with taps in reverse order: the axes after n are reversed."""
    flat_sbuf = raw_sbuf.reshape((raw_sbuf.shape[0], raw_sbuf.shape[1], 1, size_of(raw_sbuf.shape[2:])))
    found_sbuf = nl.ndarray(flat_sbuf.shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    turn_into(found_sbuf, flat_sbuf)
    return found_sbuf.reshape(raw_sbuf.shape)


def turn_into(dst_sbuf, raw_sbuf):
    """Copy filters [partitions, n, r, s] with taps in reverse order, tap by tap, in order to dst_sbuf."""
    parts, count, R, S = raw_sbuf.shape
    for tap in range(R * S):
        dst = dst_sbuf[0:parts, 0:count, tap // S, tap % S]
        src = raw_sbuf[:, :, R - 1 - tap // S, S - 1 - tap % S]
        nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector if tap % 2 == 0 else nisa.engine.scalar)
