"""Statistics of channels of arrays, and the scale and shift that a norm makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import norms, rules
from ..errors import GeometryError, LayoutError, UnsupportedError, raise_all, refused
from ..integers import takes_ints
from ..kernels.statistics import channel_statistics, norm_scale_and_shift
from ..reference import AnyArray
from .calls import launch, one_array, shape_of
from .conv_problem import IMAGES, ROWS, VOLUMES

#: Orders of the axes of x, by how many there are.
_LAYOUTS = {kind.axes + 2: kind.layouts for kind in (ROWS, IMAGES, VOLUMES)}


class ScaleShift(NamedTuple):
    """A norm as x * scale + shift, and the mean and biased variance that it rests on; all fp32.

    Of norm "group" scale and shift are [N, C], mean and variance [N, num_groups]; of "instance" all are [N, C], of
    "batch" [C].
    """

    scale: AnyArray
    shift: AnyArray
    mean: AnyArray
    variance: AnyArray


@takes_ints
def channel_stats(x: AnyArray, *, layout: str | None = None, lnc: int = 2) -> AnyArray:
    """Count, mean and variance of x by image and channel, in a part for each core.

    `norm_scale_shift` combines the parts of one or several launches without a difference of large squares: variances
    are accurate for means of a thousand standard deviations.

    Args:
        x: [N, C, ...] in the order of layout; bf16, fp16 or fp32; one to three axes beside N and C.
        layout: "NCW", "NWC", "NCHW", "NHWC", "NCDHW" or "NDHWC"; None: channels first.
        lnc: cores that share the work, 1 or 2.

    Returns: stats [P, N, C, 3] fp32, P = lnc: stats[p, n, c] is (count, mean, biased variance) of the elements of
    x[n, c] that core p reads; (0, 0, 0) if there are none. NaN or Inf in x makes mean and variance of its image and
    channel NaN or Inf, and no other.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    axes = len(shape_of(x))
    layouts = _LAYOUTS.get(axes, _LAYOUTS[4])
    wrong = [
        *refused(LayoutError, rules.layout("layout", layout, (None, *layouts))),
        *refused(UnsupportedError, rules.lnc(lnc)),
    ]
    order = layout if layout in layouts else layouts[0]
    raise_all("channel_stats cannot run this call", [*one_array("x", x, ", ".join(order), empty=""), *wrong])
    stats: AnyArray = launch(channel_statistics, (x,), {"channels_last": order[-1] == "C"}, lnc, False).y
    return stats


@takes_ints
def norm_scale_shift(
    stats: AnyArray | Sequence[AnyArray],
    weight: AnyArray | None = None,
    bias: AnyArray | None = None,
    *,
    norm: str = "group",
    num_groups: int | None = None,
    eps: float = 1e-5,
    lnc: int = 2,
) -> ScaleShift:
    """The norm of channels with these statistics, as a scale and a shift of each.

        scale = weight / sqrt(variance + eps)     shift = bias - mean * scale     norm(x) = x * scale + shift

    mean and variance combine all parts by Chan's formula.

    Args:
        stats: [P, N, C, 3] fp32, as in `channel_stats`, or a sequence of them with any P, from several launches on
            pieces of x. Parts with count 0 do not count.
        weight: [C], bf16, fp16 or fp32; None: 1.
        bias: [C], bf16, fp16 or fp32; None: 0.
        norm: the elements with one mean: "group", the channels of a group in one image (GroupNorm; with num_groups=1
            LayerNorm of channels and pixels), "batch", a channel of all images (BatchNorm in training), or "instance",
            a channel of one image.
        num_groups: of norm "group"; divides C; None: 32.
        eps: added to the variance.
        lnc: cores that share the work, 1 or 2.

    Returns: a `ScaleShift`, with mean and variance for running statistics and gradients. NaN or Inf in a part reaches
    the channels that share its mean, and no others; so does a mean of no elements, which is NaN.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    several = tuple(stats) if isinstance(stats, (list, tuple)) else (stats,)
    cannot = "norm_scale_shift cannot run this call"
    if not several:
        raise GeometryError("stats=(): must have at least one array; pass those of channel_stats")
    named = {"stats" if len(several) == 1 else f"stats[{index}]": one for index, one in enumerate(several)}
    wrong: list[Any] = [
        error for name, one in named.items() for error in one_array(name, one, "P, N, C, 3", ("fp32",), "")
    ]
    raise_all(cannot, wrong)
    _, N, C, _ = several[0].shape
    for name, one in named.items():
        wrong += (GeometryError(text) for text in norms.stats(name, one.shape, one.dtype, (N, C)))
    for name, affine in (("weight", weight), ("bias", bias)):
        if affine is not None:
            wrong += one_array(name, affine, "C", empty="")
            wrong += refused(GeometryError, rules.shape(name, shape_of(affine), (C,), "[C]"))
    wrong += refused(UnsupportedError, norms.norm(norm), norms.eps(eps), rules.lnc(lnc))
    raise_all(cannot, wrong)
    wrong += (GeometryError(text) for text in norms.num_groups(num_groups, norm, C))
    raise_all(cannot, wrong)
    parts = sum(one.shape[0] for one in several)
    raise_all(cannot, refused(UnsupportedError, norms.too_many(norm, parts, N, C, num_groups)))
    asked = {"weight": weight, "bias": bias, "norm": norm, "num_groups": num_groups, "eps": float(eps)}
    given = {name: value for name, value in asked.items() if value is not None}
    return ScaleShift(*launch(norm_scale_and_shift, (several,), given, lnc, False).y)
