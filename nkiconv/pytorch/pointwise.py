"""`pointwise_mlp` on tensors, and its operator: two 1x1 convolutions in one kernel.

The forward keeps only its arguments; the backward pass computes the hidden channels again, by `conv1d`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import pixel_norms, rules
from ..errors import refused
from ..pixel_bounds import mlp_bound
from ..pixel_norms import NORM_EPS
from ..reference import ChannelNorm
from ..schedules.pointwise_mlp import MlpGeometry, unsupported_reason
from ..schedules.tiles import BANK_COLUMNS
from .computers import agreements, host, modes
from .computers.arrays import to_numpy
from .errors import GeometryError, LayoutError, UnsupportedError, raise_all
from .function_modes import one_call
from .functional import conv1d
from .operators.blocks import Block, define_block
from .operators.calls import own
from .operators.pixel_norm import PixelNorm, normalized
from .operators.registrar import arguments_of
from .operators.tensor_kinds import DTYPES, are_positive, beside_violations, channel_violations, tensor_violations
from .places import number_of

NAME = "pointwise_mlp"


class Call(NamedTuple):
    """The arguments of the operator."""

    input: Tensor
    weight1: Tensor
    weight2: Tensor
    bias1: Tensor | None
    bias2: Tensor | None
    residual: Tensor | None
    x_norm_weight: Tensor | None
    x_norm_bias: Tensor | None
    activation: str | None
    x_norm: str | None
    x_norm_eps: float
    layer: str | None

    @property
    def norm(self) -> PixelNorm:
        """Of input's pixels."""
        return PixelNorm(self.x_norm, self.x_norm_weight, self.x_norm_bias, self.x_norm_eps, False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of y."""
        return (self.input.shape[0], self.weight2.shape[0], *self.input.shape[2:])

    @property
    def normalized(self) -> Tensor:
        """The norm of input, rounded to its dtype."""
        x = self.input
        return x if self.x_norm is None else host.in_dtype(normalized(host.wide(x), self.norm), x.dtype)


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
    tensors = input, weight1, weight2, bias1, bias2, residual, x_norm_weight, x_norm_bias
    given = Call(*tensors, activation, x_norm, number_of(x_norm_eps), layer)
    _check(given)
    return _by_torch(given)[0] if modes.is_torchs(input) else own(POINTWISE_MLP(*given))


def unsupported(x: Tensor, weight1: Tensor, weight2: Tensor, norm: str | None = None) -> str:
    """Why no kernel takes tensors that go together, with a residual; "" if one does. Images of unknown size, which a
    graph may run later, are taken if whole banks fit."""
    channels, sizes = (weight1.shape[1], weight1.shape[0], weight2.shape[0]), (x.shape[0], *x.shape[2:])
    is_known = not any(isinstance(size, torch.SymInt) for size in sizes)
    N, pixels = (sizes[0], math.prod(sizes[1:])) if is_known else (1, BANK_COLUMNS)
    itemsize = x.element_size()
    return unsupported_reason(MlpGeometry(N, *channels, pixels, itemsize, itemsize, norm))


def _check(given: Call) -> None:
    """Refuse arguments that do not go together, naming all violated rules."""
    summary, x, norm = f"{given.layer or NAME} cannot run this call", given.input, given.norm
    needed, pairs = given._fields[:3], zip(given._fields[:6], given[:6], strict=True)  # but for the norm's
    tensors: dict[str, Any] = {name: one for name, one in pairs if one is not None or name in needed}
    wrong: list[Any] = [error for name, one in tensors.items() for error in tensor_violations(name, one)]
    wrong += refused(UnsupportedError, rules.activation(given.activation, of="hidden channels"))
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
            yield from beside_violations(name, one, x)


def _by_torch(given: Call) -> tuple[Tensor]:
    """y by torch, in fp32, or float64 where x is; normalised x, hidden channels and y rounded to x's dtype."""
    x, activation = given.input, given.activation
    each: list[Any] = [None if one is None else host.wide(one) for one in given[1:6]]
    w1, w2, b1, b2, residual = each
    hidden = F.conv1d(host.wide(given.normalized.flatten(2)), w1[..., None], b1)
    hidden = hidden if activation is None else host.activate(hidden, activation)
    y = F.conv1d(host.wide(host.in_dtype(hidden, x.dtype)), w2[..., None], b2).reshape(given.shape)
    return (host.in_dtype(y if residual is None else y + residual, x.dtype),)


def _by_kernel(given: Call, backend: Any) -> tuple[Tensor]:
    from ..kernels.blocks.pointwise_mlp import pointwise_mlp_fused

    unfit = unsupported(*given[:3], given.x_norm)
    raise_all(f"{given.layer or NAME} cannot run this call", list(refused(UnsupportedError, unfit)))
    named = {name: one for name, one in zip(given._fields[3:-1], given[3:-1], strict=True) if one is not None}
    return (backend.launch(pointwise_mlp_fused, *given[:3], **{"activation": None, **named}),)


def _compared(given: Call, found: tuple[Tensor]) -> tuple[Tensor]:
    """torch's y, if the kernel's is within its bound of float64's. Raises ComparisonError."""
    each: list[Any] = [one.double() if isinstance(one, Tensor) else one for one in given]
    wide = Call(*each)
    arrays: list[Any] = [None if one is None else to_numpy(one) for one in wide[:8]]
    asked = None if given.x_norm is None else ChannelNorm(given.x_norm, arrays[6], arrays[7], given.x_norm_eps)
    more = (arrays[3], arrays[4]), given.activation, arrays[5], asked
    limit = mlp_bound(arrays[0], (arrays[1], arrays[2]), DTYPES[given.input.dtype], *more)
    truth, y = (to_numpy(one.double()) for one in (*_by_torch(wide), *found))
    agreements.require_within(y, truth, limit, given.input, given.layer or NAME, spreads=False)
    return _by_torch(given)


def _again(given: Call) -> tuple[Tensor]:
    """The result, by operators that autograd knows."""
    layer, residual, rows = given.layer, given.residual, given.normalized.flatten(2)
    hidden = conv1d(rows, given.weight1[..., None], given.bias1, activation=given.activation, layer=layer)
    y = conv1d(hidden, given.weight2[..., None], given.bias2, layer=layer).reshape(given.shape)
    return (y if residual is None else y + residual,)


def _flops(x: Sequence[int], weight1: Sequence[int], weight2: Sequence[int], *_: Any, out_shape: Any) -> int:
    return 2 * x[0] * math.prod(x[2:]) * (math.prod(weight1) + math.prod(weight2))


POINTWISE_MLP = define_block(
    Block(
        NAME, arguments_of(Call), Call, Tensor, _check, lambda given: (given.input.new_empty(given.shape),), _by_torch,
        _by_kernel, _compared, _again, _flops, rows=lambda _: (0, 5),
    )
)  # fmt: skip
