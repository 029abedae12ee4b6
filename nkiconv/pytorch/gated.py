"""Gated depthwise convolutions of rows, one kernel each: gated_short_conv (LFM2) and glu_conv1d (Conformer).

    nkiconv::gated_conv1d(input, weight, bias, initial_states, chunks, padding, activation, return_final_states, layer)
        -> (y, final_states)

chunks names the chunks of input's channels, as in `nkiconv.depthwise_conv1d`. Where torch computes, y comes from
torch's functions, summed in fp32 and rounded once; `compare` holds the kernel against the same. Derivatives of the
products are torch's, those of the convolution its operators'. The backward pass computes both again and keeps only the
arguments. torch.vmap makes batches of rows more rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import rules
from ..axis import padding_pairs
from ..chunks import ORDERS
from ..errors import refused
from .causal import states
from .computers import agreements, host, modes
from .computers.arrays import to_numpy
from .errors import (
    ComparisonError,
    DtypeError,
    GeometryError,
    LayoutError,
    NkiconvError,
    UnsupportedError,
    as_torchs,
    raise_all,
)
from .function_modes import one_call
from .functional import refuse_script
from .operators import autograd, flop_formulas, sharding
from .operators.called import Called
from .operators.calls import batched_images, call, own
from .operators.convolution import Convolution
from .operators.registrar import define
from .operators.tensor_kinds import DTYPES, tensor_violations

NAME = "gated_conv1d"
#: Places of its tensors that have rows each: x and the states in front.
ROWS = (0, 3)


@one_call
def gated_short_conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    *,
    order: str = "BCx",
    return_final_states: bool = False,
    layer: str | None = None,
) -> Any:
    """The convolution of LFM2's blocks: y = C * (causal convolution of B * x, plus bias), B, C, x chunks of input.

    Args:
        input: [N, 3 * D, W], chunks of D channels in `order`; bf16, fp16 or fp32, and float64 where torch computes.
        weight: [D, S], or [D, 1, S] as of torch.nn.Conv1d. bias: [D].
        initial_states: [N, D, S - 1], input's dtype: the last S - 1 elements of B * x before these; None: zeros.
        order: of the chunks; "BCx" as transformers' Lfm2ShortConv has them.
        return_final_states: also return the next initial_states, [N, D, S - 1]. A decoding step is W = 1 with both.
        layer: a name for messages.

    Returns: [N, D, W] of input's dtype; with return_final_states the pair of it and the states. NaN and Inf as of
        `nkiconv.gated_short_conv`.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "gated_short_conv"
    raise_all(f"{where} cannot run this call", list(refused(LayoutError, rules.accepted("order", order, ORDERS))))
    return _convolve(where, input, weight, bias, initial_states, order, "causal", None, return_final_states)


@one_call
def glu_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    *,
    padding: str | int | Sequence[int] = "same",
    activation: str | None = "silu",
    return_final_states: bool = False,
    layer: str | None = None,
) -> Any:
    """The middle of Conformer's convolution modules: y = act(convolution of glu(input, dim=1), plus bias).

    A BatchNorm after the convolution goes into weight and bias in eval mode: `nn.ConformerConv.from_modules`.

    Args:
        input: [N, 2 * D, W]. weight: [D, S], or [D, 1, S]. bias: [D].
        initial_states: [N, D, S - 1], input's dtype, with padding="causal": the GLU's last results before these.
        padding: "same", "valid", "causal", or zeros on both sides.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`.
        return_final_states, layer: as in `gated_short_conv`.

    Returns: [N, D, Q] of input's dtype; with return_final_states the pair of it and the states. NaN and Inf as of
        `nkiconv.glu_conv1d`.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "glu_conv1d"
    return _convolve(where, input, weight, bias, initial_states, "xG", padding, activation, return_final_states)


def _convolve(
    where: str,
    x: Any,
    weight: Any,
    bias: Any,
    initial_states: Any,
    chunks: str,
    padding: Any,
    activation: str | None,
    return_final_states: bool,
) -> Any:
    """A call of either function, its tensors unchecked."""
    wrong = [*tensor_violations("input", x), *tensor_violations("weight", weight)]
    for name, one in (("bias", bias), ("initial_states", initial_states)):
        wrong += [] if one is None else tensor_violations(name, one)
    flag = rules.flag("return_final_states", return_final_states)
    wrong += refused(UnsupportedError, rules.activation(activation), flag)
    raise_all(f"{where} cannot run this call", wrong)
    if weight.dim() == 3 and weight.shape[1] == 1:
        weight = weight.squeeze(1)
    wrong += refused(LayoutError, rules.rank("input", x.shape, "N, C, W"), rules.rank("weight", weight.shape, "C, S"))
    raise_all(f"{where} cannot run this call", wrong)
    malformed = rules.padding(padding, 1, alone=True, each=False, names=rules.PADDINGS)
    raise_all(f"{where} cannot run this call", list(refused(GeometryError, malformed)))
    (pair,) = padding_pairs(padding, ((x.shape[2], weight.shape[1], 1, 1),))
    given = x, weight, bias, initial_states, chunks, list(pair), activation, return_final_states, where
    if modes.is_torchs(x):
        _check(*given)
        y, final = _composed(*given, once=True)
    else:
        y, final = map(own, OPERATOR(*given))
    return (y, final) if return_final_states else y


def asked_of(weight: Tensor, padding: Sequence[int], activation: str | None, layer: str | None) -> Convolution:
    """The convolution between the products."""
    return Convolution(
        name="depthwise_conv1d",
        stride=(1,),
        padding=((padding[0], padding[1]),),
        dilation=(1,),
        lhs_dilation=(1,),
        groups=weight.shape[0],
        activation=activation,
        layer=layer,
    )


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    initial_states: Any,
    chunks: str,
    padding: Sequence[int],
    activation: str | None,
    return_final_states: bool,
    layer: str | None,
) -> None:
    """Refuse arguments that do not go together.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError.
    """
    cannot, (channels, width) = f"{layer} cannot run this call", weight.shape
    wrong: list[NkiconvError] = list(refused(LayoutError, rules.chunks(chunks, x.shape[1])))
    raise_all(cannot, wrong)
    wanted = (channels * len(chunks), x.shape[2])
    wrong += refused(GeometryError, rules.shape("input", x.shape[1:], wanted, "[N, chunks * D, W] of weight [D, S]"))
    size = width - 1
    if initial_states is not None:
        shape = (x.shape[0], channels, size)
        wrong += tensor_violations("initial_states", initial_states)
        raise_all(cannot, wrong)
        wrong += refused(GeometryError, rules.shape("initial_states", initial_states.shape, shape, "[N, D, S - 1]"))
        wrong += refused(DtypeError, rules.same("initial_states", "dtype", initial_states.dtype, "input", x.dtype))
    if (initial_states is not None or return_final_states) and (padding[0] != size or size == 0):
        wrong.append(
            GeometryError(f"padding={tuple(padding)}: states stand in place of S - 1 = {size} zeros; use 'causal'")
        )
    raise_all(cannot, wrong)
    asked = asked_of(weight, padding, activation, layer)
    Called(asked, x.narrow(1, 0, channels), weight.unsqueeze(1), bias).check()
    (out,) = asked.extents(x.shape[2:], weight.unsqueeze(1).shape[2:])
    if "C" in chunks and out != x.shape[2]:
        raise_all(cannot, [GeometryError(f"padding={tuple(padding)}: a factor of y has its extents, W; use 'causal'")])


def _composed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    chunks: str,
    padding: Sequence[int],
    activation: str | None,
    return_final_states: bool,
    layer: str | None,
    *,
    once: bool,
) -> tuple[Tensor, Tensor]:
    """(y, final states) of products by torch and a convolution: by torch, rounded `once`, or by the operator for it."""
    parts = dict(zip(chunks, x.chunk(len(chunks), 1), strict=True))
    product = parts["x"]
    if "B" in parts:
        product = product * parts["B"]
    if "G" in parts:
        product = host.in_dtype(host.wide(product) * host.wide(parts["G"]).sigmoid(), x.dtype)
    size, rows = weight.shape[1] - 1, product
    if initial_states is not None or return_final_states:
        rows = states.with_state(product, initial_states, size)
        padding = (0, padding[1])
    final = states.last_of(rows, size) if return_final_states else x.new_empty(*product.shape[:2], 0)
    asked, w = asked_of(weight, padding, activation, layer), weight.unsqueeze(1)
    if not once:
        y = call(Called(asked, rows, w, bias))
        return y if "C" not in parts else y * parts["C"], final
    y = host.reference(asked, host.wide(rows), host.wide(w), None if bias is None else host.wide(bias), None)
    if "C" in parts:
        y = y * host.wide(parts["C"])
    return host.in_dtype(y, x.dtype), final


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    chunks: str,
    padding: Sequence[int],
    activation: str | None,
    return_final_states: bool,
    layer: str | None,
) -> tuple[Tensor, Tensor]:
    given = input, weight, bias, initial_states, chunks, padding, activation, return_final_states, layer
    _check(*given)
    who = modes.computer(input)
    if who == "torch" or input.shape[0] == 0:
        by_torch = _composed(*given, once=True)
        return by_torch[0].contiguous(), by_torch[1].contiguous()
    asked = asked_of(weight, padding, activation, layer)
    tensors = input, weight.unsqueeze(1), bias, initial_states, return_final_states
    found: tuple[Tensor, Tensor | None]
    with as_torchs():
        if who == "device":
            from .computers import device

            found = device.convolve_with_states(asked, *tensors, chunks, input.narrow(1, 0, weight.shape[0]))
        else:
            found = states.simulated(asked, *tensors, (int(padding[0]), int(padding[1])), chunks)
            if who == "compare":
                return _compared(given, found)
    y, final = found
    return y, input.new_empty(*y.shape[:2], 0) if final is None else final


def _compared(given: tuple[Any, ...], found: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    """torch's results, where the kernel's y is as near the truth as both must be.

    Raises ComparisonError, naming the layer.
    """
    from ..bounds import epilogue_bound, factor_bound, gated_bound
    from ..reference import abs_sum_ref, chunks_ref, conv_ref, epilogue_ref, num_terms

    x, weight, bias, initial_states, chunks, padding, activation, _, layer = given
    expected, final = _composed(*given, once=True)
    arrays: list[Any] = [None if one is None else to_numpy(one) for one in (x, weight, bias, initial_states)]
    (product, factor), error = chunks_ref(arrays[0], chunks), gated_bound(arrays[0], chunks, DTYPES[x.dtype])
    if arrays[3] is not None:
        product = np.concatenate([arrays[3].astype(np.float64), product], 2)
        error = np.concatenate([np.zeros(arrays[3].shape), error], 2)
        padding = (0, padding[1])
    asked = asked_of(weight, padding, activation, layer)
    problem = asked.problem(torch.empty(product.shape, dtype=x.dtype, device="meta"), weight.unsqueeze(1))
    filters = arrays[1].reshape(problem.filter_shape)
    images = product.reshape(problem.input_shape)
    sums, abs_sum = conv_ref(images, filters, problem), abs_sum_ref(images, filters, problem)
    inexact = abs_sum_ref(error.reshape(problem.input_shape), filters, problem)
    wide, more = "fp32" if factor is not None else problem.dtype, (arrays[2], activation)
    limit = epilogue_bound(num_terms(problem), abs_sum, sums, wide, *more, inexact=inexact)
    if factor is not None:
        factor = factor.reshape(sums.shape)
        limit = factor_bound(limit, factor, factor * epilogue_ref(sums, *more), problem.dtype)
    one, other = (to_numpy(y).astype(np.float64).reshape(limit.shape) for y in (expected, found[0]))
    finite = np.isfinite(one) & np.isfinite(other) & np.isfinite(limit)
    worst = float((np.abs(one[finite] - other[finite]) / (2 * limit[finite])).max(initial=0.0))
    same = np.array_equal(one[~finite], other[~finite], equal_nan=True)
    agreements.note(same and worst <= 1)
    if not (same and worst <= 1):
        raise ComparisonError(
            f"{layer}: the kernel and torch differ by {2 * worst:.3g} times what one of them may be off by, on input "
            f"{tuple(x.shape)}, weight {tuple(weight.shape)}; at most 2 is right. Report it with both tensors"
        )
    return expected, final


def _fake(x: Tensor, weight: Tensor, bias: Any, initial_states: Any, *more: Any) -> tuple[Tensor, Tensor]:
    _check(x, weight, bias, initial_states, *more)
    _, padding, activation, return_final_states, layer = more
    channels, width = weight.shape
    (out,) = asked_of(weight, padding, activation, layer).extents(x.shape[2:], weight.unsqueeze(1).shape[2:])
    size = width - 1 if return_final_states else 0
    return x.new_empty(x.shape[0], channels, out), x.new_empty(x.shape[0], channels, size)


def _batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    return batched_images(OPERATOR, info.batch_size, in_dims[:4], args, ROWS)


def _flops(x: Any, weight: Any, *_: Any, out_shape: Any) -> int:
    (channels, width), y = weight, out_shape[0]
    asked = states.causal(channels, 0)
    return flop_formulas.of_convolution(asked, (x[0], channels, x[2]), (channels, 1, width), y)


OPERATOR = define(
    NAME,
    _forward,
    _fake,
    autograd.running_again(functools.partial(_composed, once=False), 4, NAME),
    _batched,
    _flops,
    lambda *_: (ROWS, [sharding.SHARDED] * 2),
)

for _function in (gated_short_conv, glu_conv1d):
    vars(_function)["__prepare_scriptable__"] = refuse_script
