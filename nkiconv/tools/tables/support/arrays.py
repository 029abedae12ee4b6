"""The functions of nkiconv on NumPy arrays: each call runs in the simulator, on arrays of a few elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ....api.conv import conv2d, conv3d
from ....api.conv1d import conv1d, depthwise_conv2d
from ....api.conv_problem import FILTER_LAYOUTS_1D
from ....api.conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from ....api.depthwise_conv1d import depthwise_conv1d
from ....api.pack_filter import pack_filter
from ....pixel_norms import NORMS
from ....problem import DTYPES
from ....rules import ACTIVATIONS, FILTER_LAYOUTS, LNC_DEGREES, PRECISIONS, VOLUME_FILTER_LAYOUTS
from .table import KERNEL, Column, Operands, Row, always, markdown

#: The kernels' dtypes, and others that NumPy users have; float8_e4m3fn is torch's, without infinities.
ASKED = {
    **DTYPES,
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float64": np.dtype(float),
    "int8": np.dtype("i1"),
}

N, C, K, SIZE, TAPS = 2, 4, 16, 6, 3
OUT, GROWN = SIZE - TAPS + 1, SIZE + TAPS - 1
#: Layouts and orders of filters that are not the first, by how many axes there are.
LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
FILTERS: dict[int, Iterable[str]] = {1: FILTER_LAYOUTS_1D, 2: FILTER_LAYOUTS, 3: VOLUME_FILTER_LAYOUTS}


def _operands(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], transposed: bool = False
) -> Callable[[str], Operands]:
    def of_dtype(dtype: str) -> Operands:
        def array(shape: tuple[int, ...], other: str = dtype) -> np.ndarray[Any, Any]:
            return np.ones(shape, ASKED[other])

        return Operands(x, w, y, array, dtype, transposed=transposed)

    return of_dtype


def _plain(operands: Operands) -> Mapping[str, Any]:
    return {"x": operands.array(operands.x), "w": operands.array(operands.w), "lnc": 1}


def _run(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    function(**arguments)
    return KERNEL


COLUMNS = tuple(
    Column(f"`{function.__name__}`", function, _operands(x, w, y), _plain, _run)
    for function, x, w, y in (
        (depthwise_conv1d, (N, C, SIZE), (C, TAPS), (N, C, OUT)),
        (conv1d, (N, C, SIZE), (K, C, TAPS), (N, K, OUT)),
        (conv2d, (N, C, SIZE, SIZE), (K, C, TAPS, TAPS), (N, K, OUT, OUT)),
        (conv3d, (N, C, *[SIZE] * 3), (K, C, *[TAPS] * 3), (N, K, *[OUT] * 3)),
        (depthwise_conv2d, (N, C, SIZE, SIZE), (C, 1, TAPS, TAPS), (N, C, OUT, OUT)),
    )
) + tuple(
    Column(
        f"`{function.__name__}`",
        function,
        _operands((N, C, *[SIZE] * axes), (C, K, *[TAPS] * axes), (N, K, *[GROWN] * axes), transposed=True),
        _plain,
        _run,
    )
    for axes, function in enumerate((conv_transpose1d, conv_transpose2d, conv_transpose3d), 1)
)


def _sides(before: int, behind: int) -> Callable[[Operands], Mapping[str, Any]]:
    """Padding of each axis."""
    pair = (before, behind)
    return lambda operands: {"padding": pair if operands.axes == 1 else (pair,) * operands.axes}


def _filters(dtype: str) -> Callable[[Operands], Mapping[str, Any]]:
    return lambda operands: {"w": operands.array(operands.w, dtype)}


def _grouped(operands: Operands) -> Mapping[str, Any]:
    first, second, *taps = operands.w
    return {"groups": 2, "w": operands.array((first, second // 2, *taps))}


def _multiplied(operands: Operands) -> Mapping[str, Any]:
    """Two filters a channel."""
    if operands.transposed:
        return {"w": operands.array((C, 2, *operands.w[2:])), "groups": C}
    filters = {"w": operands.array((2 * C, 1, *operands.w[2:]))}
    return filters if operands.w[:2] == (C, 1) else {**filters, "groups": C}


def _channels_last(operands: Operands) -> Mapping[str, Any]:
    n, channels, *image = operands.x
    # token-major rows of depthwise_conv1d are causal
    causal = {"padding": "causal"} if len(operands.w) == 2 else {}
    return {"x": operands.array((n, *image, channels)), "layout": LAST[operands.axes], **causal}


def _filter_layout(operands: Operands) -> Mapping[str, Any]:
    filters, *rest = operands.w
    inputs, *taps = rest if len(rest) > operands.axes else (1, *rest)
    return {"w": operands.array((*taps, inputs, filters)), "filter_layout": list(FILTERS[operands.axes])[1]}


def _residual(**more: Any) -> Callable[[Operands], Mapping[str, Any]]:
    return lambda operands: {"residual": operands.array(operands.y, "fp32"), **more}


ROWS = (
    *(Row("filters in", name, _filters(name)) for name in DTYPES),
    Row("`stride`", "", always(stride=2)),
    Row("`dilation`", "", always(dilation=2)),
    Row("`lhs_dilation`", "", always(lhs_dilation=2)),
    Row("`padding`", "an int", always(padding=1)),
    Row("`padding`", "of each side", _sides(2, 1)),
    Row("`padding`", "negative", _sides(-1, 0)),
    *(Row("`padding`", name, always(padding=name)) for name in ("same", "valid", "causal")),
    Row("`output_padding`", "", always(stride=2, output_padding=1)),
    Row("`groups`", "", _grouped),
    Row("several filters a channel", "", _multiplied),
    Row("`layout`", "channels last", _channels_last),
    Row("`filter_layout`", "", _filter_layout),
    Row(
        "w of `pack_filter`",
        "",
        lambda operands: {"w": pack_filter(operands.array((K, C, *[TAPS] * max(2, operands.axes))))},
    ),
    Row("`bias`", "", lambda operands: {"bias": operands.array(operands.y[1:2], "fp32")}),
    Row("`x_scale`", "of channels", lambda operands: {"x_scale": operands.array(operands.x[1:2], "fp32")}),
    Row("`x_shift`", "of images", lambda operands: {"x_shift": operands.array(operands.x[:2], "fp32")}),
    Row("`x_activation`", "silu", always(x_activation="silu")),
    *(Row("`activation`", name, always(activation=name)) for name in ACTIVATIONS),
    *(Row("`y_norm`", name, always(y_norm=name)) for name in NORMS),
    Row("`return_before_norm`", "", always(y_norm="rms", return_before_norm=True)),
    Row("`residual`", "before the activation", _residual()),
    Row("`residual`", "behind it", _residual(residual_position="post_activation")),
    Row("`residual`", "times `beta`", _residual(beta=0.5)),
    *(Row("`out_dtype`", name, always(out_dtype=name)) for name in DTYPES),
    *(Row("`precision`", name, always(precision=name)) for name in PRECISIONS),
    Row(
        "`initial_state`",
        "",
        lambda operands: {"initial_state": operands.array((N, C, TAPS - 1)), "padding": "causal"},
    ),
    Row("`return_final_state`", "", always(return_final_state=True, padding="causal")),
    Row("`initial_frames`", "", lambda operands: {"initial_frames": operands.array((N, C, 2, SIZE, SIZE))}),
    Row("`return_final_frames`", "", always(return_final_frames=True)),
    Row("`return_stats`", "", always(return_stats="channel")),
    Row("`strict_nonfinite`", "", always(strict_nonfinite=True)),
    *(Row("`lnc`", str(cores), always(lnc=cores)) for cores in LNC_DEGREES),
)


def table() -> str:
    """The support table of these functions."""
    return markdown(COLUMNS, ROWS, tuple(ASKED))
