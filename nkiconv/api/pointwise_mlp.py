"""Two 1x1 convolutions with an activation between, on arrays: check the call, launch the kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .. import pixel_norms, rules
from ..errors import DtypeError, GeometryError, NkiconvError, UnsupportedError, raise_all, refused
from ..integers import takes_ints
from ..kernels.blocks.pointwise_mlp import pointwise_mlp_fused
from ..pixel_norms import NORM_EPS
from ..problem import DTYPES
from ..reference import AnyArray
from ..schedules.pointwise_mlp import MlpGeometry, unsupported_reason
from .calls import has_no_images, launch, no_data, one_array, one_image, shape_of

_CANNOT = "pointwise_mlp cannot run this call"
#: Axes of x, by how many there are.
_AXES = {3: "N, C, W", 4: "N, C, H, W", 5: "N, C, D, H, W"}


@takes_ints
def pointwise_mlp(
    x: AnyArray,
    w1: AnyArray,
    w2: AnyArray,
    bias1: AnyArray | None = None,
    bias2: AnyArray | None = None,
    *,
    activation: str | None = "gelu",
    residual: AnyArray | None = None,
    x_norm: str | None = None,
    x_norm_weight: AnyArray | None = None,
    x_norm_bias: AnyArray | None = None,
    x_norm_eps: float = NORM_EPS,
    lnc: int = 2,
) -> AnyArray:
    """Two 1x1 convolutions in one kernel, y = w2 act(w1 norm(x) + bias1) + bias2 + residual.

    The normalised x and the hidden channels stay in SBUF.

    It is the second half of ConvNeXt's block, with the layer scale folded into w2 and bias2. With few channels, where
    hidden channels are many bytes for few products, it takes half the time of two `conv2d`; with many, the same time.

    Args:
        x: [N, C, ...] with one to three more axes; bf16 (ml_dtypes), fp16 or fp32. N may be 0.
        w1: [M, C], w2: [K, M], as in torch.nn.Linear; x's dtype.
        bias1: [M], bias2: [K]; bf16, fp16 or fp32.
        activation: of the hidden channels, None or a name of `nkiconv.rules.ACTIVATIONS`.
        residual: [N, K, ...]; bf16, fp16 or fp32.
        x_norm: a norm over the channels of each pixel of x: None, "rms" or "layer". x_norm_weight, x_norm_bias: [C], of
            bias1's dtypes; x_norm_eps: added to the mean square or variance.
        lnc: cores that share the work, 1 or 2.

    Returns: y [N, K, ...], x's dtype. Sums, activation and residual are fp32; hidden channels are rounded to x's dtype,
    as by two launches, and y once. Mean and variance are fp32, no difference of squares, and squares of 16-bit x tf32;
    normalised x, w1 times x_norm_weight, and x_norm_bias are rounded to x's dtype, or, with few pixels, normalised
        x times x_norm_weight plus x_norm_bias once. NaN or Inf in x reaches all channels
    of its pixel and nothing else.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    empty = has_no_images(x)
    one = one_image("x", x) if empty else x
    raise_all(_CANNOT, _violations(one, w1, w2, activation, lnc))
    (M, C), K = w1.shape, w2.shape[0]
    y_shape = (x.shape[0], K, *x.shape[2:])
    numbers = {"x_norm_weight": x_norm_weight, "x_norm_bias": x_norm_bias, "bias1": bias1, "bias2": bias2}
    wrong = [
        *_norm_violations(x_norm, x_norm_eps, numbers),
        *_shape_violations(one, (w1, w2), numbers, residual, y_shape),
    ]
    raise_all(_CANNOT, wrong)
    dtype = rules.short_dtype(x.dtype)
    itemsize, added = (0 if each is None else DTYPES[rules.short_dtype(each.dtype)].itemsize for each in (x, residual))
    geometry = MlpGeometry(one.shape[0], C, M, K, math.prod(x.shape[2:]), itemsize, added, x_norm)
    raise_all(_CANNOT, refused(UnsupportedError, unsupported_reason(geometry)))
    if empty:
        nothing: AnyArray = no_data(y_shape, _AXES[len(y_shape)].replace(", ", ""), "N", dtype)
        return nothing
    asked = {**numbers, "residual": residual, "x_norm": x_norm}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    given |= {"activation": activation, "x_norm_eps": x_norm_eps}
    y: AnyArray = launch(pointwise_mlp_fused, (x, w1, w2), given, lnc, False).y
    return y


def _violations(x: Any, w1: Any, w2: Any, activation: Any, lnc: Any) -> Iterator[NkiconvError]:
    """Errors of each array and value by itself."""
    axes = _AXES.get(len(shape_of(x)), _AXES[4])
    for name, one, letters in (("x", x, axes), ("w1", w1, "M, C"), ("w2", w2, "K, M")):
        yield from one_array(name, one, letters, empty="")
    yield from refused(UnsupportedError, rules.activation(activation, of="hidden channels"), rules.lnc(lnc))


def _norm_violations(norm: Any, eps: Any, numbers: dict[str, Any]) -> Iterator[NkiconvError]:
    """Errors of a norm of x."""
    yield from refused(UnsupportedError, pixel_norms.kind(norm, "x_norm"), pixel_norms.eps(eps, "x_norm"))
    belong = (pixel_norms.belongs(name, numbers[name] is not None, norm) for name in pixel_norms.X_CHANNELS)
    yield from refused(UnsupportedError, *belong)


def _shape_violations(
    x: Any, w: Any, numbers: dict[str, Any], residual: Any, y_shape: tuple[int, ...]
) -> Iterator[NkiconvError]:
    """Errors of the shapes of arrays relative to each other."""
    (M, _), K = w[0].shape, w[1].shape[0]
    for name, one, wanted, words in (("w1", w[0], (M, x.shape[1]), "[M, C]"), ("w2", w[1], (K, M), "[K, M]")):
        yield from refused(GeometryError, rules.shape(name, one.shape, wanted, words))
        yield from refused(DtypeError, rules.same(name, "dtype", one.dtype, "x", x.dtype))
    counts = {"C": x.shape[1], "M": M, "K": K}
    for (name, one), letter in zip(numbers.items(), "CCMK", strict=True):
        if one is not None:
            yield from one_array(name, one, letter, empty="")
            shape = shape_of(one)
            yield from refused(GeometryError, rules.shape(name, shape, (counts[letter],), f"[{letter}]"))
    if residual is not None:
        yield from one_array("residual", residual, _AXES[len(y_shape)])
        yield from refused(GeometryError, rules.shape("residual", shape_of(residual), y_shape, "y's"))
