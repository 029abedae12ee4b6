"""Streaming: the state in front of each row instead of zeros, and the state that the next call starts from.

The state of a causal convolution is what its window sees before the row: window - 1 elements, S - 1 without dilation.
It is read and written where it lies; nothing is concatenated in HBM.
"""

from ..._nki import nisa, nl
from .._dma import copy
from .._tiles import require, share

#: Columns of the tile of zeros that fills a state: 16 KiB a partition in fp32, beside whatever the algorithm holds.
ZERO_COLUMNS = 4096


def check_state(state_ref, x_ref, geometry):
    """Refuse a state (or a request for the final one) that does not fit the convolution."""
    window = (geometry.S - 1) * geometry.dilation
    require(
        geometry.stride == 1 and geometry.lhs_dilation == 1,
        f"stride={geometry.stride}, lhs_dilation={geometry.lhs_dilation}: a state needs 1 and 1; pad by zeros instead",
    )
    require(window > 0, "S=1: one tap needs no state; leave out initial_state and return_final_state")
    require(
        geometry.pad_left == window,
        f"padding left={geometry.pad_left}: a state stands in for the left padding, which must be (S - 1) * dilation = "
        f"{window}; pass padding=((0, 0), ({window}, right))",
    )
    if state_ref != None:
        wanted = (geometry.N, geometry.C, window)
        require(
            tuple(state_ref.shape) == wanted,
            f"initial_state.shape={state_ref.shape}: must be [N, C, (S - 1) * dilation] = {wanted}",
        )
        require(
            state_ref.dtype == x_ref.dtype,
            f"initial_state.dtype={state_ref.dtype}: must be the image's, {x_ref.dtype}; cast it",
        )


def store_final_state(x_hbm, state_hbm, final_hbm, geometry):
    """final[n, c] = the last `pad_left` elements of state[n, c] (zeros without one) followed by x[n, c].

    Each core writes its share of the channels; rows that x fills go from HBM to HBM in one DMA an image.
    """
    size = geometry.pad_left
    first_c, num_c = share(geometry.C, nl.num_programs(), nl.program_id(0))
    from_x = min(size, geometry.W)
    kept = size - from_x
    if num_c > 0:
        for n in range(geometry.N):
            final = (n * geometry.C + first_c) * size
            copy(
                final_hbm.ap(pattern=[[size, num_c], [1, from_x]], offset=final + kept),
                x_hbm.ap(
                    pattern=[[geometry.x_c, num_c], [geometry.x_w, from_x]],
                    offset=n * geometry.x_n + first_c * geometry.x_c + (geometry.W - from_x) * geometry.x_w,
                ),
            )
            if kept > 0:
                kept_hbm = final_hbm.ap(pattern=[[size, num_c], [1, kept]], offset=final)
                if state_hbm != None:
                    copy(kept_hbm, state_hbm.ap(pattern=[[size, num_c], [1, kept]], offset=final + from_x))
                else:
                    store_zeros(kept_hbm, final_hbm.dtype, num_c, kept)


def store_zeros(dst_hbm, dtype, rows, columns):
    """Fill [rows, columns] in HBM with zeros, from one tile of them."""
    zeros_shape = (min(nl.tile_size.pmax, rows), min(ZERO_COLUMNS, columns))
    zeros_sbuf = nl.ndarray(zeros_shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0)
    for row0 in range(0, rows, zeros_shape[0]):
        count = min(zeros_shape[0], rows - row0)
        for column0 in range(0, columns, zeros_shape[1]):
            width = min(zeros_shape[1], columns - column0)
            copy(dst_hbm[row0 : row0 + count, column0 : column0 + width], zeros_sbuf[0:count, 0:width])
