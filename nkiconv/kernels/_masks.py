"""Masks by partition and place, made by affine_select."""

from .._nki import nisa, nl


def keep_equal(dst_sbuf, pattern, source_sbuf, offset=0):
    """Copy the source's elements at which partition + pattern's index (as in affine_select) + offset is 0; write zeros
    elsewhere."""
    nisa.affine_select(
        dst=dst_sbuf,
        pattern=pattern,
        channel_multiplier=1,
        on_true_tile=source_sbuf,
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=offset,
    )


def keep_between(dst_sbuf, pattern, width, source_sbuf):
    """Copy the source's elements at which partition + pattern's index is in 0 .. width-1; write zeros elsewhere. The
    source may be dst itself."""
    for side in range(2):
        nisa.affine_select(
            dst=dst_sbuf,
            pattern=pattern,
            channel_multiplier=1,
            on_true_tile=source_sbuf if side == 0 else dst_sbuf,
            on_false_value=0.0,
            cmp_op=nl.greater_equal if side == 0 else nl.less,
            offset=0 if side == 0 else -width,
        )


def select_ones(rows, pattern, offset, dtype):
    """[rows, elements of `pattern`] in SBUF: 1 if row + offset + the pattern's index is 0, else 0."""
    columns = pattern[0][1] if len(pattern) == 1 else pattern[0][1] * pattern[1][1]
    ones_sbuf = nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)
    selected_sbuf = nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    keep_equal(selected_sbuf, pattern, ones_sbuf, offset)
    return selected_sbuf


def make_diagonals(w_sbuf, dtype):
    """[rows, taps, rows] in SBUF: row p of block s is w[p, s] in column p and zero elsewhere, by one select."""
    rows, taps = w_sbuf.shape
    diagonals_sbuf = nl.ndarray((rows, taps, rows), dtype=dtype, buffer=nl.sbuf)
    keep_equal(diagonals_sbuf, [[0, taps], [-1, rows]], w_sbuf.expand_dim(2).broadcast(2, rows))
    return diagonals_sbuf
