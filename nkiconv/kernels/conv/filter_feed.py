"""Filters for the Tensor Engine: tiles of zeros for placement, transposes, and circular buffers."""

from ..._nki import nisa, nl
from ...schedules.tiles import WORD_BYTES, size_of, whole_words
from ...schedules.tiles import transposes_of_bank as transposes_of_bank
from .._engines import is_16bit, pick


def tiles_in_turn(count, shape, dtype):
    """A circular buffer of `count` tiles of a shape in SBUF: it caps how far loads run ahead."""
    found = []
    for _ in range(count):
        found.append(nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf))
    return found


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
    first = sources[0]
    bank_psum = nl.ndarray((parts, len(sources), pitch), dtype=first.dtype, buffer=nl.psum)
    for index in range(len(sources)):
        dst = bank_psum[0:parts, index, 0 : first.shape[0]]
        nisa.nc_transpose(dst=dst, data=sources[index], engine=nisa.engine.tensor)
    return bank_psum


def transpose_together(dst_sbuf, sources, itemsize, ledger):
    """Transpose views [w, p] of filters, at most a bank of them, into [p, view, w] in SBUF by one evacuation."""
    parts, count, width = dst_sbuf.shape
    bank_psum = transposed_bank(sources, parts, whole_words(width, itemsize))
    engine = pick(ledger, count * width, is_16bit(dst_sbuf.dtype))
    nisa.tensor_copy(dst=dst_sbuf, src=bank_psum[0:parts, 0:count, 0:width], engine=engine)


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
        src = raw_sbuf[0:parts, 0:count, R - 1 - tap // S, S - 1 - tap % S]
        nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector if tap % 2 == 0 else nisa.engine.scalar)
