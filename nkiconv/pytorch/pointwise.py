"""`pointwise_mlp` on tensors, and its operator: two 1x1 convolutions in one kernel.

    nkiconv::pointwise_mlp(input, weight1, weight2, bias1, bias2, residual, activation, layer) -> Tensor

Nothing of the forward is kept but its arguments: the derivative makes the hidden channels again, by `conv1d`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from .. import rules
from ..errors import refused
from ..pixel_bounds import mlp_bound
from ..schedules.pointwise_mlp import MlpGeometry, unsupported_reason
from .computers import agreements, host, modes
from .computers.arrays import from_numpy, to_numpy
from .errors import ComparisonError, DtypeError, GeometryError, LayoutError, UnsupportedError, as_torchs, raise_all
from .function_modes import one_call
from .functional import conv1d, refuse_script
from .operators import autograd, flop_formulas, sharding
from .operators.calls import own
from .operators.fakes import fake_kernel
from .operators.registrar import registrar
from .operators.tensor_kinds import DTYPES, are_positive, tensor_violations

NAME = "pointwise_mlp"


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
    layer: str | None = None,
) -> Tensor:
    """weight2 act(weight1 x + bias1) + bias2 + residual of each pixel, as `nkiconv.pointwise_mlp` of arrays.

    Args:
        input: [N, C, ...], one to three axes beside N and C; bf16, fp16 or fp32, and float64 where torch computes.
        weight1: [M, C], weight2: [K, M], as torch.nn.Linear has them, input's dtype. bias1: [M], bias2: [K].
        activation: of the hidden channels, None or a name of `nkiconv.rules.ACTIVATIONS`.
        residual: [N, K, ...], what is added to the result.
        layer: a name for messages.

    Returns: [N, K, ...], input's dtype; hidden channels are rounded to it too. Derivatives are those of reverse mode,
    twice too, and where torch computes of forward mode.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    given = (input, weight1, weight2, bias1, bias2, residual, activation, layer)
    _check(*given)
    if modes.is_torchs(input):
        return _by_torch(*given[:7])
    return own(POINTWISE_MLP(*given))


def unsupported(x: Tensor, weight1: Tensor, weight2: Tensor) -> str:
    """Why no kernel takes tensors that go together, with a residual; "" if one does."""
    channels = weight1.shape[1], weight1.shape[0], weight2.shape[0]
    return unsupported_reason(
        MlpGeometry(x.shape[0], *channels, math.prod(x.shape[2:]), x.element_size(), x.element_size())
    )


def _check(
    x: Any, weight1: Any, weight2: Any, bias1: Any, bias2: Any, residual: Any, activation: Any, layer: Any
) -> None:
    """Refuse arguments that do not go together, naming all violated rules."""
    summary = f"{layer or NAME} cannot run this call"
    tensors = {"input": x, "weight1": weight1, "weight2": weight2, "bias1": bias1, "bias2": bias2, "residual": residual}
    tensors = {name: one for name, one in tensors.items() if one is not None or name in ("input", "weight1", "weight2")}
    wrong: list[Any] = [error for name, one in tensors.items() for error in tensor_violations(name, one)]
    wrong += refused(UnsupportedError, rules.activation(activation, of="hidden channels"))
    raise_all(summary, wrong)
    if x.dim() not in (3, 4, 5):
        wrong.append(LayoutError(f"input.shape={tuple(x.shape)}: must have 3 to 5 axes, [N, C, ...]; reshape it"))
    elif not are_positive(x.shape[1:]):
        wrong.append(GeometryError(f"input.shape={tuple(x.shape)}: every extent but N must be at least 1; pass data"))
    for name, letters in (("weight1", "M, C"), ("weight2", "K, M")):
        wrong += refused(LayoutError, rules.rank(name, tensors[name].shape, letters))
    raise_all(summary, wrong)
    raise_all(summary, list(_related(tensors)))


def _related(tensors: dict[str, Tensor]) -> Iterator[Any]:
    """What is wrong with tensors next to each other."""
    x, (M, _), K = tensors["input"], tensors["weight1"].shape, tensors["weight2"].shape[0]
    wanted = {"weight1": (M, x.shape[1]), "weight2": (K, M), "bias1": (M,), "bias2": (K,)}
    wanted |= {"residual": (x.shape[0], K, *x.shape[2:])}
    words = {"weight1": "[M, C]", "weight2": "[K, M]", "bias1": "[M]", "bias2": "[K]", "residual": "[N, K, ...]"}
    for name, one in tensors.items():
        if name != "input":
            yield from refused(GeometryError, rules.shape(name, one.shape, wanted[name], words[name]))
            yield from refused(DtypeError, rules.same(name, "dtype", one.dtype, "input", x.dtype))
            yield from refused(UnsupportedError, rules.same(name, "device", one.device, "input", x.device))


def _by_torch(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None,
    bias2: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
) -> Tensor:
    """y by torch, in fp32, or float64 where x is; hidden channels and y rounded to x's dtype."""
    w1, w2, b1, b2 = (None if one is None else host.wide(one) for one in (weight1, weight2, bias1, bias2))
    assert w1 is not None
    assert w2 is not None
    hidden = F.conv1d(host.wide(x.flatten(2)), w1[..., None], b1)
    hidden = hidden if activation is None else host.activate(hidden, activation)
    y = F.conv1d(host.wide(host.in_dtype(hidden, x.dtype)), w2[..., None], b2).reshape(_shape(x, weight2))
    return host.in_dtype(y if residual is None else y + host.wide(residual), x.dtype)


def _shape(x: Tensor, weight2: Tensor) -> tuple[int, ...]:
    return (x.shape[0], weight2.shape[0], *x.shape[2:])


def _forward(
    input: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None,
    bias2: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    layer: str | None,
) -> Tensor:
    given = (input, weight1, weight2, bias1, bias2, residual, activation)
    _check(*given, layer)
    who = modes.computer(input)
    if input.shape[0] == 0:
        return input.new_empty(_shape(input, weight2))
    if who == "torch":
        return _by_torch(*given)
    unfit = unsupported(input, weight1, weight2)
    raise_all(f"{layer or NAME} cannot run this call", list(refused(UnsupportedError, unfit)))
    named = {"bias1": bias1, "bias2": bias2, "residual": residual}
    with as_torchs():
        if who == "device":
            from ..kernels.blocks.pointwise_mlp import pointwise_mlp_fused
            from .computers.device import cores, launched

            tensors = {name: one.contiguous() for name, one in named.items() if one is not None}
            three = (one.contiguous() for one in (input, weight1, weight2))
            y: Tensor = launched(pointwise_mlp_fused, cores())(*three, **tensors, activation=activation)
            return y
        from ..api.pointwise_mlp import pointwise_mlp as by_kernel

        arrays = {name: to_numpy(one) for name, one in named.items() if one is not None}
        found = by_kernel(*map(to_numpy, (input, weight1, weight2)), **arrays, activation=activation)
        if who == "simulate":
            return from_numpy(found)
        _compare(given, found, layer)
    return _by_torch(*given)


def _compare(given: tuple[Any, ...], found: Any, layer: str | None) -> None:
    """Raise ComparisonError unless the kernel's y is within its bound of float64's."""
    x, *tensors, activation = given
    wide: tuple[Any, ...] = (x.double(), *(None if one is None else one.double() for one in tensors), activation)
    truth = _by_torch(*wide).numpy()
    w1, w2, b1, b2, residual = (None if one is None else to_numpy(one.double()) for one in tensors)
    filters, biases = (np.asarray(w1), np.asarray(w2)), (b1, b2)
    limit = mlp_bound(to_numpy(x.double()), filters, DTYPES[x.dtype], biases, activation, residual)
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


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.activation, ctx.layer = inputs[6:]
    autograd.save(ctx, *inputs[:6])


def _backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    """Of a forward that runs again, by operators that autograd knows."""

    def again(x: Tensor, w1: Tensor, w2: Tensor, b1: Any, b2: Any, residual: Any) -> tuple[Tensor]:
        hidden = conv1d(x.flatten(2), w1[..., None], b1, activation=ctx.activation, layer=ctx.layer)
        y = conv1d(hidden, w2[..., None], b2, layer=ctx.layer).reshape(_shape(x, w2))
        return (y if residual is None else y + residual,)

    return *autograd.by_running_again(again, ctx.saved_tensors, (g,)), None, None


def _no_forward_mode(ctx: Any, *_: Any) -> Any:
    raise UnsupportedError(f"{NAME}: has no derivatives in forward mode where a kernel computes; use two conv2d")


def _no_batches(info: Any, in_dims: Any, *args: Any) -> Any:
    raise UnsupportedError(f"{NAME}: torch.vmap does not take it; concatenate the batches along N")


def _flops(x: Sequence[int], weight1: Sequence[int], weight2: Sequence[int], *_: Any, out_shape: Any) -> int:
    return 2 * x[0] * math.prod(x[2:]) * (math.prod(weight1) + math.prod(weight2))


def _define() -> Any:
    """Register the operator."""
    defined = registrar()(f"nkiconv::{NAME}", mutates_args=())(_forward)
    defined.register_fake(fake_kernel(NAME, _fake))
    defined.register_vmap(_no_batches)
    autograd.register(NAME, _remember, _backward, _no_forward_mode)
    flop_formulas.register(NAME, _flops)
    sharding.declare(NAME, lambda *_: ((0, 5), [sharding.SHARDED]))
    return defined


POINTWISE_MLP = _define()
vars(pointwise_mlp)["__prepare_scriptable__"] = refuse_script
