"""Filters in the kernel's own order, packed once for many calls."""

from __future__ import annotations

import math

import numpy as np

from .. import rules
from ..errors import LayoutError, UnsupportedError, raise_all, refuse
from ..integers import takes_ints
from ..planner.conv import LEAST_BLOCK
from ..reference import AnyArray
from ..rules import CONV2D_DTYPES, FILTER_PERMS
from ..schedules.implicit_gemm import packed_channels
from .calls import one_array, shape_of
from .conv_problem import IMAGES, VOLUMES, filter_axes


@takes_ints
def pack_filter(w: AnyArray, *, filter_layout: str | None = None) -> AnyArray:
    """The filter in the kernel's own order, [K / kn, C, R, S, kn], for `conv2d(x, packed)`; of volumes with T before R,
    for `conv3d`.

    The kernel then loads it straight to its place, where a plain one passes the Tensor Engine first, at R S C K / 2^14
    transposes of 56 ns (modelled) a call: worth it where a filter serves many calls. Convolutions with groups take
    plain filters only; few channels, which are stacked where the filter is plain, are not where it is packed.

    Args:
        w: [K, C, R, S] or [K, C, T, R, S], or in the order of filter_layout; bf16, fp16, fp32 or fp8.
        filter_layout: one that conv2d or conv3d take; None: "KCRS", or "KCTRS" where w has five axes.

    Returns: a new array of w's dtype; kn divides K and is at most 128.

    Raises: DtypeError, GeometryError, LayoutError; UnsupportedError where K has no divisor that is worth a block.
    """
    if filter_layout is None:
        kind = VOLUMES if len(shape_of(w)) == 5 else IMAGES
        filter_layout = kind.filter_layouts[0]
    refuse(LayoutError, rules.layout("filter_layout", filter_layout, FILTER_PERMS))
    raise_all("pack_filter cannot pack this", one_array("w", w, filter_axes(filter_layout), CONV2D_DTYPES))
    canonical = w.transpose(FILTER_PERMS[filter_layout])
    K, C, *taps = canonical.shape
    kn = packed_channels(K, C, math.prod(taps), w.dtype.itemsize)
    if kn < min(K, LEAST_BLOCK):
        raise UnsupportedError(
            f"w.shape={w.shape}: the largest blocks that K={K} can be packed in have {kn} channels, at least "
            f"{LEAST_BLOCK} are worth it; pass w as it is, or pad K"
        )
    blocks: AnyArray = np.moveaxis(canonical.reshape(K // kn, kn, C, *taps), 1, -1)
    return np.ascontiguousarray(blocks)
