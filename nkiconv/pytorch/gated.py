"""Gated depthwise convolutions of rows, one kernel each: gated_short_conv (LFM2) and glu_conv1d (Conformer).

Their operator is `nkiconv::gated_conv1d`, of a `Call`, whose `chunks` names the chunks of input's channels, as in
`nkiconv.depthwise_conv1d`; it returns (y, final states). Where torch computes, y comes from torch's functions, summed
in fp32 and rounded once; `compare` holds the kernel against the same. Derivatives of the products are torch's, those of
the convolution its operators'. The backward pass computes both again and keeps only the arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import rules
from ..axis import padding_pairs
from ..chunks import ORDERS
from ..errors import refused
from ..schedules.split import LAYOUTS, taps_unsupported
from .causal import states
from .computers import agreements, host, modes
from .computers.arrays import to_numpy
from .errors import GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all
from .function_modes import one_call
from .operators.blocks import Block, define_block
from .operators.called import Called, SplitCall
from .operators.calls import call, own
from .operators.convolution import Convolution
from .operators.frames import last_of, with_state
from .operators.registrar import arguments_of
from .operators.tensor_kinds import DTYPES, beside_violations, tensor_violations
from .places import int_of

NAME = "gated_conv1d"


@one_call
def gated_short_conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    *,
    order: str = "BCx",
    layout: str = "NCW",
    return_final_states: bool = False,
    layer: str | None = None,
) -> Any:
    """The convolution of LFM2's blocks: y = C * (causal convolution of B * x, plus bias), B, C, x chunks of input.

    Args:
        input: [N, 3 * D, W], chunks of D channels in `order`; bf16, fp16 or fp32, and float64 where torch computes.
        weight: [D, S], or [D, 1, S] as of torch.nn.Conv1d. bias: [D].
        initial_states: [N, D, S - 1], input's dtype: the last S - 1 elements of B * x before these; None: zeros.
        order: of the chunks; "BCx" as transformers' Lfm2ShortConv has them.
        layout: "NCW", or "NWC": input and y are token-major, [N, W, 3 * D] and [N, W, D], as projections have them;
            weight has at most 16 taps. States keep their layout.
        return_final_states: also return the next initial_states, [N, D, S - 1]. A decoding step is W = 1 with both.
        layer: a name for messages.

    Returns: [N, D, W], or [N, W, D], of input's dtype; with return_final_states the pair of it and the states. NaN and
        Inf as of `nkiconv.gated_short_conv`.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "gated_short_conv"
    wrong = rules.accepted("order", order, ORDERS), rules.layout("layout", layout, LAYOUTS)
    raise_all(f"{where} cannot run this call", list(refused(LayoutError, *wrong)))
    return _convolve(where, input, weight, bias, initial_states, order, "causal", None, return_final_states, layout)


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
    given = where, input, weight, bias, initial_states
    return _convolve(*given, "xG", padding, activation, return_final_states, "NCW")


class Call(NamedTuple):
    """The arguments of the operator; weight: [D, S]."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    initial_states: Tensor | None
    chunks: str
    padding: Sequence[int]
    activation: str | None
    return_final_states: bool
    layout: str
    layer: str | None

    @property
    def rows(self) -> Tensor:
        """input as [N, chunks * D, W]."""
        return self.input if self.layout == "NCW" else self.input.transpose(1, 2)

    @property
    def asked(self) -> Convolution:
        """The convolution between the products."""
        asked = states.causal(self.weight.shape[0], 0, self.activation)
        return dataclasses.replace(asked, padding=((self.padding[0], self.padding[1]),), layer=self.layer)

    @property
    def w(self) -> Tensor:
        """The filter, [D, 1, S]."""
        return self.weight.unsqueeze(1)

    @property
    def called(self) -> Called:
        """The call of the kernel that reads channels first."""
        padding = int(self.padding[0]), int(self.padding[1])
        asked = dataclasses.replace(self.asked, padding=(padding,))
        more: dict[str, Any] = {"keeps_state": self.return_final_states, "chunks": self.chunks}
        return Called(asked, self.rows, self.w, self.bias, state=self.initial_states, **more)


def _convolve(
    where: str, x: Any, weight: Any, bias: Any, initial_states: Any, chunks: str, padding: Any, *more: Any
) -> Any:
    """A call of either function, its tensors unchecked; more: activation, return_final_states, layout."""
    wrong = [*tensor_violations("input", x), *tensor_violations("weight", weight)]
    for name, one in (("bias", bias), ("initial_states", initial_states)):
        wrong += [] if one is None else tensor_violations(name, one)
    activation, return_final_states, layout = more
    flag = rules.flag("return_final_states", return_final_states)
    wrong += refused(UnsupportedError, rules.activation(activation), flag)
    raise_all(f"{where} cannot run this call", wrong)
    if weight.dim() == 3 and weight.shape[1] == 1:
        weight = weight.squeeze(1)
    wrong += refused(
        LayoutError, rules.rank("input", x.shape, ", ".join(layout)), rules.rank("weight", weight.shape, "C, S")
    )
    raise_all(f"{where} cannot run this call", wrong)
    padding = int_of(tuple(padding) if isinstance(padding, list) else padding)
    malformed = rules.padding(padding, 1, alone=True, each=False, names=rules.PADDINGS)
    raise_all(f"{where} cannot run this call", list(refused(GeometryError, malformed)))
    (pair,) = padding_pairs(padding, ((x.shape[layout.index("W")], weight.shape[1], 1, 1),))
    given = Call(x, weight, bias, initial_states, chunks, list(pair), activation, return_final_states, layout, where)
    _check(given)
    is_token = layout == "NWC" and x.shape[1] == 1  # the same memory in both layouts
    if is_token:
        given = given._replace(input=given.rows, layout="NCW")
    y, final = _composed(given) if modes.is_torchs(x) else map(own, OPERATOR(*given))
    y = y.transpose(1, 2) if is_token else y
    return (y, final) if return_final_states else y


def _check(given: Call) -> None:
    """Refuse arguments that do not go together.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError.
    """
    x, chunks, padding, initial_states = given.rows, given.chunks, tuple(given.padding), given.initial_states
    cannot, (channels, width) = f"{given.layer} cannot run this call", given.weight.shape
    wrong: list[NkiconvError] = list(refused(LayoutError, rules.chunks(chunks, x.shape[1])))
    raise_all(cannot, wrong)
    axes = {"N": ("N", x.shape[0]), "C": ("chunks * D", channels * len(chunks)), "W": ("W", x.shape[2])}
    names, wanted = zip(*(axes[axis] for axis in given.layout), strict=True)
    words = f"[{', '.join(names)}] of weight [D, S]"
    wrong += refused(GeometryError, rules.shape("input", given.input.shape, wanted, words))
    size = width - 1
    if initial_states is not None:
        shape = (x.shape[0], channels, size)
        wrong += tensor_violations("initial_states", initial_states)
        raise_all(cannot, wrong)
        wrong += refused(GeometryError, rules.shape("initial_states", initial_states.shape, shape, "[N, D, S - 1]"))
        wrong += beside_violations("initial_states", initial_states, x)
    if (initial_states is not None or given.return_final_states) and (padding[0] != size or size == 0):
        wrong.append(GeometryError(f"padding={padding}: states stand in place of S - 1 = {size} zeros; use 'causal'"))
    raise_all(cannot, wrong)
    Called(given.asked, x.narrow(1, 0, channels), given.w, given.bias).check()
    if "C" in chunks and _extent(given) != x.shape[2]:
        raise_all(cannot, [GeometryError(f"padding={padding}: a factor of y has its extents, W; use 'causal'")])
    if given.layout == "NWC" and x.shape[2] != 1:
        raise_all(cannot, list(refused(UnsupportedError, taps_unsupported(width))))


def _extent(given: Call) -> int:
    """W of y."""
    return given.asked.extents(given.rows.shape[2:], given.w.shape[2:])[0]


def _laid(given: Call, y: Tensor) -> Tensor:
    """y [N, D, W] in the call's layout."""
    return y if given.layout == "NCW" else y.transpose(1, 2).contiguous()


def split_of(given: Call) -> SplitCall:
    """The call of the kernel that reads token-major rows; `chunks` are an argument beside it."""
    splits = ((1, given.weight.shape[0], False),)
    return SplitCall(
        *given[:4], splits, given.activation, 0.0, "NWC", given.return_final_states, None, None, None, given.layer
    )


def _made(given: Call) -> tuple[Tensor, Tensor]:
    """Results without values."""
    x, (channels, width) = given.input, given.weight.shape
    size = width - 1 if given.return_final_states else 0
    extents = (channels, _extent(given)) if given.layout == "NCW" else (_extent(given), channels)
    return x.new_empty(x.shape[0], *extents), x.new_empty(x.shape[0], channels, size)


def _parts(given: Call) -> tuple[Convolution, Tensor, Tensor | None, Tensor]:
    """(the convolution, its input with states in front, the factor of its result, the final states), by torch."""
    x, asked = given.rows, given.asked
    parts = dict(zip(given.chunks, x.chunk(len(given.chunks), 1), strict=True))
    product = parts["x"]
    if "B" in parts:
        product = product * parts["B"]
    if "G" in parts:
        product = host.in_dtype(host.wide(product) * host.wide(parts["G"]).sigmoid(), x.dtype)
    size, rows = given.weight.shape[1] - 1, product
    if given.initial_states is not None or given.return_final_states:
        rows = with_state(product, given.initial_states, size)
        asked = dataclasses.replace(asked, padding=((0, given.padding[1]),))
    final = last_of(rows, size) if given.return_final_states else x.new_empty(*product.shape[:2], 0)
    return asked, rows, parts.get("C"), final


def _again(given: Call) -> tuple[Tensor, Tensor]:
    """(y, final states) by operators that autograd knows."""
    asked, rows, factor, final = _parts(given)
    y = call(Called(asked, rows, given.w, given.bias))
    return _laid(given, y if factor is None else y * factor), final


def _composed(given: Call) -> tuple[Tensor, Tensor]:
    """(y, final states) by torch, rounded once."""
    asked, rows, factor, final = _parts(given)
    bias = None if given.bias is None else host.wide(given.bias)
    y = host.reference(Called(asked, host.wide(rows), host.wide(given.w), bias))
    return _laid(given, host.in_dtype(y if factor is None else y * host.wide(factor), given.input.dtype)), final


def _by_kernel(given: Call, backend: Any) -> Sequence[Tensor]:
    if given.layout == "NWC":
        (y, *final), empty = backend.causal_conv1d_split(split_of(given), given.chunks), _made(given)
        return torch.ops.aten._unsafe_view(y, empty[0].shape), final[0] if final else empty[1]
    found = backend.convolve(given.called)
    return found if given.return_final_states else (found, given.input.new_empty(*found.shape[:2], 0))


def _compared(given: Call, found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """torch's results, where the kernel's y is as near the truth as both must be.

    Raises ComparisonError, naming the layer.
    """
    from ..bounds import epilogue_bound, factor_bound, gated_bound
    from ..reference import abs_sum_ref, chunks_ref, conv_ref, epilogue_ref, num_terms

    expected, final = _composed(given)
    arrays: list[Any] = [None if one is None else to_numpy(one) for one in (given.rows, *given[1:4])]
    kind, chunks, asked = DTYPES[given.input.dtype], given.chunks, given.asked
    (product, factor), error = chunks_ref(arrays[0], chunks), gated_bound(arrays[0], chunks, kind)
    if arrays[3] is not None:
        product = np.concatenate([arrays[3].astype(np.float64), product], 2)
        error = np.concatenate([np.zeros(arrays[3].shape), error], 2)
        asked = dataclasses.replace(asked, padding=((0, given.padding[1]),))
    problem = asked.problem(torch.empty(product.shape, dtype=given.input.dtype, device="meta"), given.w)
    filters = arrays[1].reshape(problem.filter_shape)
    images = product.reshape(problem.input_shape)
    sums, abs_sum = conv_ref(images, filters, problem), abs_sum_ref(images, filters, problem)
    inexact = abs_sum_ref(error.reshape(problem.input_shape), filters, problem)
    wide, more = "fp32" if factor is not None else problem.dtype, (arrays[2], given.activation)
    limit = epilogue_bound(num_terms(problem), abs_sum, sums, wide, *more, inexact=inexact)
    if factor is not None:
        factor = factor.reshape(sums.shape)
        limit = factor_bound(limit, factor, factor * epilogue_ref(sums, *more), problem.dtype)
    on = f"input {tuple(given.input.shape)}, weight {tuple(given.weight.shape)}"
    limit = limit if given.layout == "NCW" else np.moveaxis(limit, 1, -1)
    agreements.require_near(expected, found[0], limit, f"{given.layer}: the kernel and torch", on)
    return expected, final


def _flops(x: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    return states.flops(x[0], out_shape[0][rest[6].index("W")], weight)


OPERATOR = define_block(
    Block(
        NAME, arguments_of(Call), Call, tuple[Tensor, Tensor], _check, _made,
        lambda given: [one.contiguous() for one in _composed(given)],
        _by_kernel, _compared, _again, _flops, rows=lambda _: (0, 3),
    )
)  # fmt: skip
