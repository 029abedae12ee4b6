"""Constant tiles, and masks by partition and place, made by affine_select."""

from .._nki import nisa, nl


def constant(shape, dtype, value, engine=nisa.engine.gpsimd):
    """A new tile in SBUF with one value in all elements."""
    tile_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=value, engine=engine)
    return tile_sbuf


def keep_equal(dst_sbuf, pattern, source_sbuf, offset=0, op=nl.equal):
    """Copy the source's elements at which partition + pattern's index (as in affine_select) + offset is 0, or compares
    so by `op`; write zeros elsewhere."""
    nisa.affine_select(
        dst=dst_sbuf,
        pattern=pattern,
        channel_multiplier=1,
        on_true_tile=source_sbuf,
        on_false_value=0.0,
        cmp_op=op,
        offset=offset,
    )


def keep_between(dst_sbuf, pattern, width):
    """Keep the elements at which partition + pattern's index is in 0 .. width-1; write zeros elsewhere."""
    keep_equal(dst_sbuf, pattern, dst_sbuf, 0, nl.greater_equal)
    keep_equal(dst_sbuf, pattern, dst_sbuf, -width, nl.less)


def select_ones(rows, pattern, offset, dtype):
    """[rows, elements of `pattern`] in SBUF: 1 if row + offset + the pattern's index is 0, else 0."""
    columns = pattern[0][1] if len(pattern) == 1 else pattern[0][1] * pattern[1][1]
    selected_sbuf = nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)
    keep_equal(selected_sbuf, pattern, constant((rows, columns), dtype, 1.0), offset)
    return selected_sbuf


def make_diagonals(w_sbuf, dtype, ones_sbuf=None):
    """[rows, taps, rows] in SBUF of w_sbuf [rows, taps]: row p of block s is w[p, s] in column p and zero elsewhere, by
    one select of GpSimd, or as a product with ones_sbuf, an identity matrix, by Vector, with 0 * NaN beside a NaN; of
    [rows, each, taps]: [rows, taps, rows, each], by a select."""
    rows, *several, taps = w_sbuf.shape
    if several:
        diagonals_sbuf = nl.ndarray((rows, taps, rows, *several), dtype=dtype, buffer=nl.sbuf)
        source = w_sbuf.permute((0, 2, 1)).expand_dim(2).broadcast(2, rows)
        keep_equal(diagonals_sbuf, [[0, taps], [-1, rows], [0, *several]], source)
        return diagonals_sbuf
    diagonals_sbuf = nl.ndarray((rows, taps, rows), dtype=dtype, buffer=nl.sbuf)
    source = w_sbuf.expand_dim(2).broadcast(2, rows)
    if ones_sbuf is None:
        keep_equal(diagonals_sbuf, [[0, taps], [-1, rows]], source)
    else:
        ones = ones_sbuf[0:rows, 0:rows].expand_dim(1).broadcast(1, taps)
        nisa.tensor_tensor(dst=diagonals_sbuf, data1=source, data2=ones, op=nl.multiply, engine=nisa.engine.vector)
    return diagonals_sbuf
