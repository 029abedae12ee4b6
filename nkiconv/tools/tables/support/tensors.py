"""The functions of nkiconv.pytorch and the modules that `convert` swaps: each call is checked on tensors without data.

The operators that run show the backend: nkiconv's are the kernels', on a Neuron device. Those that are one convolution
are also checked by the planner's operation, which knows the kernel's refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ....errors import raise_all
from ....planner.operations import OPERATIONS
from ....pytorch import (
    causal_conv1d_fn,
    causal_conv1d_update,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    convert,
    depthwise_conv1d,
    depthwise_conv2d,
)
from ....pytorch.operators.calls import WITH_PROLOGUE, WITH_STATS, read
from ....pytorch.operators.custom import NAMES
from ....pytorch.operators.tensor_kinds import DTYPES
from ....rules import ACTIVATIONS
from .table import ABSENT, KERNEL, TORCH, Column, Operands, Row, always, markdown

#: The kernels' dtypes by nkiconv's names, and others that models have.
ASKED = {name: dtype for dtype, name in DTYPES.items()} | {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.int8)
}
#: Those of them that torch makes modules of.
OF_MODULES = ("bf16", "fp16", "fp32", "float64", "complex64")

N, C, K, SIZE, TAPS = 2, 4, 8, 6, 3
OUT, GROWN = SIZE - TAPS + 1, SIZE + TAPS - 1


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes nkiconv's operators, and checks their calls by the planner's operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.who = TORCH

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it."""
        space, _, name = func.name().partition("::")
        result = func(*args, **(kwargs or {}))
        if space == "nkiconv":
            self.who = KERNEL
            if name.removesuffix(WITH_PROLOGUE).removesuffix(WITH_STATS) in NAMES:
                _check(name, args)
        return result


def _check(operator: str, args: Any) -> None:
    """Raise why no kernel runs a call of an operator."""
    found = read(operator, args)
    name, problem, wanted = found.asked.name, found.problem, found.planned
    operation = OPERATIONS[name if name in OPERATIONS else "conv_transpose2d" if problem.transposed else "conv2d"]
    raise_all(name, operation.violations(problem, wanted))


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The backend of a call, or of the derivatives by its tensors that require them."""
    with _Seen() as seen:
        y = function(**arguments)
    by = [one for one in arguments.values() if isinstance(one, torch.Tensor) and one.requires_grad]
    if by:
        y = y[0] if isinstance(y, tuple) else y
        with _Seen() as seen:
            torch.autograd.grad(y, by, torch.ones_like(y))
    who: str = seen.who
    return who


def _converted(kind: Callable[..., torch.nn.Module], arguments: Mapping[str, Any]) -> str:
    """Who computes a module of torch's once its model is converted; ABSENT where torch makes no such module."""
    try:
        module = kind(**arguments).eval()
    except (TypeError, ValueError):
        return ABSENT
    report = convert(module)
    if not report.swapped:
        return TORCH
    shape = (N, arguments["in_channels"], *[SIZE] * len(module.kernel_size))  # type: ignore[arg-type]
    return _call(report.model, {"input": torch.empty(shape, dtype=arguments["dtype"], device="meta")})


def _operands(
    names: tuple[str, str], x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], transposed: bool = False
) -> Callable[[str], Operands]:
    def of_dtype(dtype: str) -> Operands:
        def array(shape: tuple[int, ...], other: str = dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=ASKED[other], device="meta")

        return Operands(x, w, y, array, dtype, names, transposed)

    return of_dtype


def _plain(operands: Operands) -> dict[str, Any]:
    images, filters = operands.names
    return {images: operands.array(operands.x), filters: operands.array(operands.w)}


def _plain_module(operands: Operands) -> dict[str, Any]:
    dtype = ASKED[operands.dtype]
    return {"in_channels": C, "out_channels": K, "kernel_size": TAPS, "device": "meta", "dtype": dtype}


FUNCTIONS = tuple(
    Column(f"`{function.__name__}`", function, _operands(names, x, w, y), plain, _call)
    for names, function, x, w, y, plain in (
        (("input", "weight"), conv1d, (N, C, SIZE), (K, C, TAPS), (N, K, OUT), _plain),
        (("input", "weight"), conv2d, (N, C, SIZE, SIZE), (K, C, TAPS, TAPS), (N, K, OUT, OUT), _plain),
        (("input", "weight"), conv3d, (N, C, *[SIZE] * 3), (K, C, *[TAPS] * 3), (N, K, *[OUT] * 3), _plain),
        (("input", "weight"), depthwise_conv1d, (N, C, SIZE), (C, 1, TAPS), (N, C, OUT), _plain),
        (("input", "weight"), depthwise_conv2d, (N, C, SIZE, SIZE), (C, 1, TAPS, TAPS), (N, C, OUT, OUT), _plain),
        (("x", "weight"), causal_conv1d_fn, (N, C, SIZE), (C, TAPS), (N, C, SIZE), _plain),
        (
            ("x", "weight"),
            causal_conv1d_update,
            (N, C, SIZE),
            (C, TAPS),
            (N, C, SIZE),
            lambda operands: {**_plain(operands), "conv_state": operands.array((N, C, TAPS - 1))},
        ),
    )
) + tuple(
    Column(
        f"`{function.__name__}`",
        function,
        _operands(("input", "weight"), (N, C, *[SIZE] * axes), (C, K, *[TAPS] * axes), (N, K, *[GROWN] * axes), True),
        _plain,
        _call,
    )
    for axes, function in enumerate((conv_transpose1d, conv_transpose2d, conv_transpose3d), 1)
)
MODULES = tuple(
    Column(f"`{kind.__name__}`", kind, _operands(("", ""), (), (), ()), _plain_module, _converted)
    for kind in (
        torch.nn.Conv1d,
        torch.nn.Conv2d,
        torch.nn.Conv3d,
        torch.nn.ConvTranspose1d,
        torch.nn.ConvTranspose2d,
        torch.nn.ConvTranspose3d,
    )
)


def _filters(dtype: str) -> Callable[[Operands], Mapping[str, Any]]:
    return lambda operands: {operands.names[1]: operands.array(operands.w, dtype)}


def _grouped(operands: Operands) -> Mapping[str, Any]:
    first, second, *taps = operands.w
    return {"groups": 2, operands.names[1]: operands.array((first, second // 2, *taps))}


def _multiplied(operands: Operands) -> Mapping[str, Any]:
    """Two filters a channel."""
    if operands.transposed:
        return {operands.names[1]: operands.array((C, 2, *operands.w[2:])), "groups": C}
    lone = [1] * (len(operands.w) - operands.axes - 1)
    filters = {operands.names[1]: operands.array((2 * C, *lone, *[TAPS] * operands.axes))}
    return {**filters, "groups": C} if operands.w[0] == K else filters


def _residual(position: str) -> Callable[[Operands], Mapping[str, Any]]:
    return lambda operands: {"residual": operands.array(operands.y), "residual_position": position}


def _numbers(**shapes: tuple[int, ...]) -> Callable[[Operands], Mapping[str, Any]]:
    """Arguments that count or index, of these shapes."""
    made = {name: torch.empty(shape, dtype=torch.int32, device="meta") for name, shape in shapes.items()}
    return lambda _operands: made


def _sequences(operands: Operands) -> Mapping[str, Any]:
    return {**_numbers(cu_seqlens=(3,))(operands), operands.names[0]: operands.array((1, *operands.x[1:]))}


def _packed(operands: Operands) -> Mapping[str, Any]:
    filters, inputs, *taps = operands.w
    return {"packed": operands.array((1, inputs, *(1, *taps)[-2:], filters))}


def _by(name: str) -> Callable[[Operands], Mapping[str, Any]]:
    """The derivative by an argument."""

    def arguments(operands: Operands) -> Mapping[str, Any]:
        images, filters = operands.names
        made = {images: operands.x, filters: operands.w, "bias": operands.y[1:2], "residual": operands.y}
        made |= {"initial_states": (N, C, TAPS - 1)}
        made |= {"x_scale": operands.x[1:2]}
        called = {"x": images, "w": filters}.get(name, name)
        dtype = "fp32" if name == "x_scale" else operands.dtype
        return {called: operands.array(made[called], dtype).requires_grad_()}

    return arguments


_GEOMETRY = (
    Row("`stride`", "", always(stride=2)),
    Row("`dilation`", "", always(dilation=2)),
    Row("`padding`", "an int", always(padding=1)),
    *(Row("`padding`", name, always(padding=name)) for name in ("same", "valid", "causal")),
    Row("`output_padding`", "", always(stride=2, output_padding=1)),
)
ROWS = (
    *(Row("filters in", name, _filters(name)) for name in DTYPES.values()),
    Row("x without its batch axis", "", lambda operands: {operands.names[0]: operands.array(operands.x[1:])}),
    Row("x of one step, [N, C]", "", lambda operands: {operands.names[0]: operands.array(operands.x[:2])}),
    *_GEOMETRY,
    Row("`groups`", "", _grouped),
    Row("several filters a channel", "", _multiplied),
    Row("`packed`, of `pack_filter`", "", _packed),
    Row("`bias`", "", lambda operands: {"bias": operands.array(operands.y[1:2], "fp32")}),
    Row("`x_scale`", "of channels", lambda operands: {"x_scale": operands.array(operands.x[1:2], "fp32")}),
    Row("`x_shift`", "of images", lambda operands: {"x_shift": operands.array(operands.x[:2], "fp32")}),
    Row("`x_activation`", "silu", always(x_activation="silu")),
    Row("`return_stats`", "", always(return_stats="channel")),
    *(Row("`activation`", name, always(activation=name)) for name in ACTIVATIONS),
    *(Row("`residual`", position, _residual(position)) for position in ("pre_activation", "post_activation")),
    Row("`seq_idx`", "", _numbers(seq_idx=(N, SIZE))),
    Row("`cu_seqlens`", "", _sequences),
    Row("`initial_states`", "", lambda operands: {"initial_states": operands.array((N, C, TAPS - 1))}),
    Row("`return_final_states`", "", always(return_final_states=True)),
    Row("`cache_seqlens`", "", _numbers(cache_seqlens=(N,))),
    Row("`conv_state_indices`", "", _numbers(conv_state_indices=(N,))),
    *(
        Row("derivative", f"by {name}", _by(name))
        for name in ("x", "w", "bias", "residual", "x_scale", "initial_states")
    ),
)
OF_CONVERTED = (
    *(row for row in _GEOMETRY if row.value != "causal"),
    Row("`groups`", "", always(groups=2)),
    Row("`bias`", "False", always(bias=False)),
    *(
        Row("`padding_mode`", mode, always(padding_mode=mode, padding=1))
        for mode in ("reflect", "replicate", "circular")
    ),
)


def tables() -> tuple[str, str]:
    """The support tables of the functions, and of modules that `convert` is given."""
    return markdown(FUNCTIONS, ROWS, tuple(ASKED)), markdown(MODULES, OF_CONVERTED, OF_MODULES)
