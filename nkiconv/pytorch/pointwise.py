"""`pointwise_mlp` on tensors, and its operator: two 1x1 convolutions in one kernel.

    nkiconv::pointwise_mlp(input, weight1, weight2, bias1, bias2, residual, x_norm_weight, x_norm_bias, activation,
                           x_norm, x_norm_eps, layer) -> Tensor

The forward keeps only its arguments; the backward pass computes the hidden channels again, by `conv1d`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from .. import pixel_norms, rules
from ..errors import refused
from ..pixel_bounds import mlp_bound
from ..pixel_norms import NORM_EPS
from ..reference import ChannelNorm
from ..schedules.pointwise_mlp import MlpGeometry, unsupported_reason
from .computers import agreements, host, modes
from .computers.arrays import from_numpy, to_numpy
from .errors import ComparisonError, DtypeError, GeometryError, LayoutError, UnsupportedError, as_torchs, raise_all
from .function_modes import one_call
from .functional import conv1d, refuse_script
from .operators import autograd, sharding
from .operators.calls import own
from .operators.pixel_norm import PixelNorm, normalized
from .operators.registrar import define
from .operators.tensor_kinds import DTYPES, are_positive, channel_violations, tensor_violations

NAME = "pointwise_mlp"
#: Its tensors without a norm's.
TENSORS = ("input", "weight1", "weight2", "bias1", "bias2", "residual")


@one_call
def pointwise_mlp(
    input: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    *,
    activation: str | None = "gelu",
    residual: Tensor | None = None,
    x_norm: str | None = None,
    x_norm_weight: Tensor | None = None,
    x_norm_bias: Tensor | None = None,
    x_norm_eps: float = NORM_EPS,
    layer: str | None = None,
) -> Tensor:
    """weight2 act(weight1 norm(x) + bias1) + bias2 + residual of each pixel, like `nkiconv.pointwise_mlp`.

    Args:
        input: [N, C, ...], one to three axes beside N and C; bf16, fp16 or fp32, and float64 where torch computes.
        weight1: [M, C], weight2: [K, M], as in torch.nn.Linear, of input's dtype. bias1: [M], bias2: [K].
        activation: of the hidden channels, None or a name of `nkiconv.rules.ACTIVATIONS`.
        residual: [N, K, ...], added to the result.
        x_norm: a norm over the channels of input's pixels, None, "rms" or "layer". x_norm_weight, x_norm_bias: [C].
        x_norm_eps: added to the mean square or the variance.
        layer: a name for messages.

    Returns: [N, K, ...] of input's dtype; the normalised input and the hidden channels are rounded to it too. It has
    first and second derivatives in reverse mode and, where torch computes, in forward mode.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    tensors = (input, weight1, weight2, bias1, bias2, residual)
    norm = PixelNorm(x_norm, x_norm_weight, x_norm_bias, x_norm_eps, False)
    _check(tensors, activation, norm, layer)
    if modes.is_torchs(input):
        return _by_torch(tensors, activation, norm)
    return own(POINTWISE_MLP(*tensors, x_norm_weight, x_norm_bias, activation, x_norm, x_norm_eps, layer))


def unsupported(x: Tensor, weight1: Tensor, weight2: Tensor, norm: str | None = None) -> str:
    """Why no kernel takes tensors that go together, with a residual; "" if one does."""
    channels = weight1.shape[1], weight1.shape[0], weight2.shape[0]
    itemsize = x.element_size()
    return unsupported_reason(MlpGeometry(x.shape[0], *channels, math.prod(x.shape[2:]), itemsize, itemsize, norm))


def _check(given: Sequence[Any], activation: Any, norm: PixelNorm, layer: Any) -> None:
    """Refuse arguments that do not go together, naming all violated rules."""
    summary, x = f"{layer or NAME} cannot run this call", given[0]
    tensors = dict(zip(TENSORS, given, strict=True))
    tensors = {name: one for name, one in tensors.items() if one is not None or name in TENSORS[:3]}
    wrong: list[Any] = [error for name, one in tensors.items() for error in tensor_violations(name, one)]
    wrong += refused(UnsupportedError, rules.activation(activation, of="hidden channels"))
    wrong += refused(UnsupportedError, pixel_norms.kind(norm.kind, "x_norm"), pixel_norms.eps(norm.eps, "x_norm"))
    raise_all(summary, wrong)
    if x.dim() not in (3, 4, 5):
        wrong.append(LayoutError(f"input.shape={tuple(x.shape)}: must have 3 to 5 axes, [N, C, ...]; reshape it"))
    elif not are_positive(x.shape[1:]):
        wrong.append(GeometryError(f"input.shape={tuple(x.shape)}: every extent but N must be at least 1; pass data"))
    for name, letters in (("weight1", "M, C"), ("weight2", "K, M")):
        wrong += refused(LayoutError, rules.rank(name, tensors[name].shape, letters))
    raise_all(summary, wrong)
    wrong = list(_related(tensors))
    for name, one in zip(pixel_norms.X_CHANNELS, (norm.weight, norm.bias), strict=True):
        wrong += refused(UnsupportedError, pixel_norms.belongs(name, one is not None, norm.kind))
        wrong += channel_violations(name, one, x.shape[1], x)
    raise_all(summary, wrong)


def _related(tensors: dict[str, Tensor]) -> Iterator[Any]:
    """Errors of the shapes of tensors relative to each other."""
    x, (M, _), K = tensors["input"], tensors["weight1"].shape, tensors["weight2"].shape[0]
    wanted = {"weight1": (M, x.shape[1]), "weight2": (K, M), "bias1": (M,), "bias2": (K,)}
    wanted |= {"residual": (x.shape[0], K, *x.shape[2:])}
    words = {"weight1": "[M, C]", "weight2": "[K, M]", "bias1": "[M]", "bias2": "[K]", "residual": "[N, K, ...]"}
    for name, one in tensors.items():
        if name != "input":
            yield from refused(GeometryError, rules.shape(name, one.shape, wanted[name], words[name]))
            yield from refused(DtypeError, rules.same(name, "dtype", one.dtype, "input", x.dtype))
            yield from refused(UnsupportedError, rules.same(name, "device", one.device, "input", x.device))


def _by_torch(given: Sequence[Any], activation: str | None, norm: PixelNorm) -> Tensor:
    """y by torch, in fp32, or float64 where x is; normalised x, hidden channels and y rounded to x's dtype."""
    x, weight2, residual = given[0], given[2], given[5]
    w1, w2, b1, b2 = (None if one is None else host.wide(one) for one in given[1:5])
    assert w1 is not None
    assert w2 is not None
    hidden = F.conv1d(host.wide(_normalized(x, norm).flatten(2)), w1[..., None], b1)
    hidden = hidden if activation is None else host.activate(hidden, activation)
    y = F.conv1d(host.wide(host.in_dtype(hidden, x.dtype)), w2[..., None], b2).reshape(_shape(x, weight2))
    return host.in_dtype(y if residual is None else y + host.wide(residual), x.dtype)


def _normalized(x: Tensor, norm: PixelNorm) -> Tensor:
    return x if norm.kind is None else host.in_dtype(normalized(host.wide(x), norm), x.dtype)


def _shape(x: Tensor, weight2: Tensor) -> tuple[int, ...]:
    return (x.shape[0], weight2.shape[0], *x.shape[2:])


def _forward(
    input: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None,
    bias2: Tensor | None,
    residual: Tensor | None,
    x_norm_weight: Tensor | None,
    x_norm_bias: Tensor | None,
    activation: str | None,
    x_norm: str | None,
    x_norm_eps: float,
    layer: str | None,
) -> Tensor:
    tensors = (input, weight1, weight2, bias1, bias2, residual)
    norm = PixelNorm(x_norm, x_norm_weight, x_norm_bias, x_norm_eps, False)
    _check(tensors, activation, norm, layer)
    who = modes.computer(input)
    if input.shape[0] == 0:
        return input.new_empty(_shape(input, weight2))
    if who == "torch":
        return _by_torch(tensors, activation, norm)
    unfit = unsupported(input, weight1, weight2, x_norm)
    raise_all(f"{layer or NAME} cannot run this call", list(refused(UnsupportedError, unfit)))
    named = zip((*TENSORS[3:], *pixel_norms.X_CHANNELS), (*tensors[3:], x_norm_weight, x_norm_bias), strict=True)
    more = {name: one for name, one in named if one is not None}
    numbers: dict[str, Any] = {"activation": activation, "x_norm": x_norm, "x_norm_eps": x_norm_eps}
    with as_torchs():
        if who == "device":
            from ..kernels.blocks.pointwise_mlp import pointwise_mlp_fused
            from .computers.device import cores, launched

            more = {name: one.contiguous() for name, one in more.items()}
            three = (one.contiguous() for one in (input, weight1, weight2))
            y: Tensor = launched(pointwise_mlp_fused, cores())(*three, **more, **numbers)
            return y
        from ..api.pointwise_mlp import pointwise_mlp as by_kernel

        numbers |= {name: to_numpy(one) for name, one in more.items()}
        found = by_kernel(*map(to_numpy, (input, weight1, weight2)), **numbers)
        if who == "simulate":
            return from_numpy(found)
        _compare(tensors, activation, norm, found, layer)
    return _by_torch(tensors, activation, norm)


def _compare(given: Sequence[Any], activation: str | None, norm: PixelNorm, found: Any, layer: str | None) -> None:
    """Raise ComparisonError unless the kernel's y is within its bound of float64's."""
    x, wide = given[0], [None if one is None else one.double() for one in (*given, norm.weight, norm.bias)]
    truth = _by_torch(wide[:6], activation, norm._replace(weight=wide[6], bias=wide[7])).numpy()
    arrays: list[Any] = [None if one is None else to_numpy(one) for one in wide]
    filters, biases, residual = (arrays[1], arrays[2]), (arrays[3], arrays[4]), arrays[5]
    asked = None if norm.kind is None else ChannelNorm(norm.kind, arrays[6], arrays[7], norm.eps)
    limit = mlp_bound(arrays[0], filters, DTYPES[x.dtype], biases, activation, residual, asked)
    with np.errstate(invalid="ignore"):
        off = np.isfinite(truth) != np.isfinite(found) if not x.isfinite().all() else np.isnan(found)
        off |= np.isfinite(truth) & ~(np.abs(found - truth) <= limit)
    agreements.note(not off.any())
    if off.any():
        raise ComparisonError(
            f"{layer or NAME}: {int(off.sum())} of {off.size} elements of the kernel are further from float64 than "
            f"they may be, on input {tuple(x.shape)}; report it with the tensors"
        )


def _fake(input: Tensor, _weight1: Tensor, weight2: Tensor, *_rest: Any) -> Tensor:
    return input.new_empty(_shape(input, weight2))


def _in_two(x: Tensor, w1: Tensor, w2: Tensor, b1: Any, b2: Any, residual: Any, *rest: Any) -> tuple[Tensor]:
    """The result, by operators that autograd knows."""
    scale, shift, activation, kind, eps, layer = rest
    rows = _normalized(x, PixelNorm(kind, scale, shift, eps, False)).flatten(2)
    hidden = conv1d(rows, w1[..., None], b1, activation=activation, layer=layer)
    y = conv1d(hidden, w2[..., None], b2, layer=layer).reshape(_shape(x, w2))
    return (y if residual is None else y + residual,)


def _no_batches(info: Any, in_dims: Any, *args: Any) -> Any:
    raise UnsupportedError(f"{NAME}: torch.vmap does not take it; concatenate the batches along N")


def _flops(x: Sequence[int], weight1: Sequence[int], weight2: Sequence[int], *_: Any, out_shape: Any) -> int:
    return 2 * x[0] * math.prod(x[2:]) * (math.prod(weight1) + math.prod(weight2))


POINTWISE_MLP = define(
    NAME,
    _forward,
    _fake,
    autograd.running_again(_in_two, 8, NAME),
    _no_batches,
    _flops,
    lambda *_: ((0, 5), [sharding.SHARDED]),
)
vars(pointwise_mlp)["__prepare_scriptable__"] = refuse_script
