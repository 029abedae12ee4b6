"""x and gy as rows of all images and channels, which are the channels of one image: in memory order, or copies."""

from dataclasses import dataclass

from ..._nki import nl
from ...schedules.depthwise import RowGeometry
from ..conv.relayout import rows_copy, to_rows


@dataclass
class Rows(nl.NKIObject):
    """N * C rows of a tensor in HBM `row` elements apart, elements `step` apart; of a copy if `parts` are copied."""

    row: int
    step: int
    parts: list


def flat_rows(geometry, is_x):
    """Rows of x of a convolution, or of its gy."""
    N, C, size = geometry.N, geometry.C, geometry.W if is_x else geometry.Q
    n_step, c_step, step = geometry.y_n, geometry.y_c, geometry.y_q
    if is_x:
        n_step, c_step, step = geometry.x_n, geometry.x_c, geometry.x_w
    runs, together = step == 1 or size == 1, N == 1 or C == 1 or n_step == C * c_step
    if runs and together:
        return Rows(row=n_step if C == 1 else c_step, step=step, parts=[])
    part = to_rows((C, N, 1, size), geometry.itemsize, (c_step, n_step, 0, step), 1, N, 0)
    # the other way of a copy has DMA transpose channels, which must be neighbours
    part.is_sorted = part.is_sorted or c_step != 1
    return Rows(row=size, step=1, parts=[part])


def copy_rows(hbm, rows):
    """The tensor that has the rows: it, or a copy, which the cores share and wait for."""
    return hbm if len(rows.parts) == 0 else rows_copy([hbm], rows.parts)


def gradient_geometry(forward, x_rows, gy_rows, sums=False):
    """The Geometry of the convolution of x with gy: its y are gradients of images, or `sums` over them, as stored."""
    several = forward.N > 1 and not sums
    C = forward.N * forward.C if several else forward.C
    stride, dilation = forward.dilation, forward.stride if forward.Q > 1 else 1
    reach = (forward.S - 1) * stride + (forward.Q - 1) * dilation + 1 - (forward.W - 1) * forward.lhs_dilation - 1
    return RowGeometry(
        N=1,
        C=C,
        W=forward.W,
        S=forward.Q,
        Q=forward.S,
        stride=stride,
        dilation=dilation,
        lhs_dilation=forward.lhs_dilation,
        pad_left=forward.pad_left,
        pad_right=reach - forward.pad_left,
        x_n=C * x_rows.row,
        x_c=x_rows.row,
        x_w=x_rows.step,
        w_c=gy_rows.row,
        w_s=gy_rows.step,
        y_n=C * forward.S,
        y_c=forward.S if several else forward.w_c,
        y_q=1 if several else forward.w_s,
        itemsize=forward.itemsize,
        summed=forward.N if sums else 1,
        x_image=forward.C * x_rows.row,
        w_image=forward.C * gy_rows.row,
        times=forward.times,
    )
