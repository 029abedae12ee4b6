"""Whether one fused kernel is faster than several, by quick plans of both.

Calls are timed on a Neuron device and on fake tensors, if NKICONV_PLAN allows planning. Elsewhere, and under
torch.compile, every chain is one call. Both times are noted on a module, for the report.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import NkiconvError
from ...launches import degree
from ...planner.entry import answer
from ...planner.floors import pass_us
from ...planner.request import Asked, Request
from ..computers import device, modes
from ..functional import Fused, asked_for
from ..fused_module import filter_shape, operator_of
from ..operators.called import Called
from ..operators.pixel_norm import PixelNorm
from ..operators.tensor_kinds import DTYPES
from . import only_ways
from .statistics_plan import CHANNEL_STATS, Statistics, taken

#: Attribute of a module: its prices, by kind (ALL, SUM, STATISTICS) and the shape of the convolution's input.
_PRICES = "nkiconv_prices"
#: Kinds of prices: of a whole fused call, or of a convolution's call with a residual or with statistics.
ALL, SUM, STATISTICS = "all", "sum", "statistics"


class Price(NamedTuple):
    """Modelled us of one fused kernel and of separate ones; infinite where no kernel runs."""

    together: float
    apart: float

    @property
    def pays(self) -> bool:
        """Whether one kernel runs and takes no longer."""
        return self.together < math.inf and self.together <= self.apart


def _prices_of(module: torch.nn.Module, what: str) -> dict[tuple[int, ...], Price]:
    """The prices of a module's calls, by the shape of the convolution's input."""
    found: dict[tuple[int, ...], Price] = vars(module).get(_PRICES, {}).get(what, {})
    return found


def is_apart(module: torch.nn.Module, what: str = ALL) -> bool:
    """Whether a price kept all calls of a module apart that have one."""
    found = _prices_of(module, what).values()
    return bool(found) and not any(price.pays for price in found)


def told(module: torch.nn.Module, together: str, what: str = ALL) -> str:
    """How a module computes, in words; together: where one kernel does."""
    costly = [
        f"{price.together:,.1f} us for {price.apart:,.1f}, x {'x'.join(map(str, shape))}"
        for shape, price in _prices_of(module, what).items()
        if not price.pays
    ]
    if not costly:
        return together
    words = f"apart: costs more ({'; '.join(costly)})"
    return words if is_apart(module, what) else f"{together}; {words}"


def norm_pays(
    norm: torch.nn.Module, name: str, tensors: tuple[Any, ...], numbers: tuple[Any, ...], own: PixelNorm, fused: Fused
) -> bool:
    """Whether a call with a norm of its result is faster than one without it and a pass over the result.

    Args:
        norm: its module, `own` with its parameters; name: of the function; tensors: x, w, bias, the packed filter and
            the frames in front of x, or None; numbers: stride, padding, dilation, groups.
    """
    x, w, bias, packed, frames = tensors
    if not is_timed(x):
        return True
    called = Called(asked_for(name, w, numbers, fused), x, w, bias, packed=packed, frames=frames, norm=own)
    plain = dataclasses.replace(called.planned, activation=None, y_norm=None, y_norm_weight=False, y_norm_bias=False)
    passed = _pass_us(called.problem.output_shape, x)
    return _noted(norm, x, _us(_request(called)), _us(_request(called, plain)) + passed)


def prologue_pays(norm: torch.nn.Module, convolution: Any, x: Tensor, activation: str | None) -> bool:
    """Whether a convolution with a norm and an activation on the way in is faster than one without them and a pass over
    x."""
    form = "image" if x.shape[0] > 1 else "channel"
    more = {"x_scale": form, "x_shift": form, "x_activation": activation}
    return _pays(convolution, x, more, lambda _: _pass_us(x.shape, x), norm)


def statistics_pay(convolution: Any, x: Tensor) -> bool:
    """Whether a convolution of x returns statistics in less time than `channel_stats` takes them after it."""

    def read_again(called: Called) -> float:
        call = Statistics(CHANNEL_STATS, (called.problem.output_shape, called.problem.dtype))
        return taken(call, degree())[0]

    return _pays(convolution, x, {"return_stats": "channel"}, read_again, convolution, STATISTICS)


def sum_pays(convolution: Any, x: Tensor) -> bool:
    """Whether a convolution of x takes a sum with a tensor of its result's shape in less time than a pass does."""
    more = {"residual": "pre_activation"}
    return _pays(convolution, x, more, lambda one: _pass_us(one.problem.output_shape, x, reads=2), convolution, SUM)


def _pays(
    convolution: Any, x: Tensor, more: dict[str, Any], rest: Callable[[Called], float], module: Any, what: str = ALL
) -> bool:
    """Whether a convolution's call that is asked for more is faster than one without that and the rest. The products
    of a single group hide it, so only convolutions of several groups are planned."""
    if convolution.groups == 1 or not is_timed(x):
        return True
    called = _called(convolution, x)
    together = _request(called, dataclasses.replace(called.planned, **more))
    return _noted(module, x, _us(together), _us(_request(called)) + rest(called), what)


def layers_pay(layer: torch.nn.Module, call: only_ways.Mlp, x: Tensor) -> bool:
    """Whether `pointwise_mlp`, or a pass with its norm and it, takes less than two convolutions and that pass; x: whose
    call's time is known."""
    normed = 0.0 if call.x_norm is None else _pass_us(x.shape, x)
    first, second = (_us(_request_of(problem, asked)) for problem, asked in call.apart)
    together = min(_mlp_us(call), _mlp_us(call._replace(x_norm=None)) + normed)
    return _noted(layer, x, together, first + second + normed)


def x_norm_pays(norm: torch.nn.Module, call: only_ways.Mlp, x: Tensor) -> bool:
    """Whether `pointwise_mlp` with its norm takes less than a pass and it; x: as in `layers_pay`."""
    return _noted(norm, x, _mlp_us(call), _mlp_us(call._replace(x_norm=None)) + _pass_us(x.shape, x))


def is_timed(x: Tensor) -> bool:
    """Whether a call's time is known."""
    if torch.compiler.is_compiling():
        return False
    on_shapes = x.is_meta or isinstance(x, FakeTensor)
    return device.effort() != "kernel" and (on_shapes or modes.computer(x) == "device")


def _noted(module: torch.nn.Module, x: Tensor, together: float, apart: float, what: str = ALL) -> bool:
    """Whether one kernel pays, after both times are noted on a module."""
    price = Price(together, apart)
    vars(module).setdefault(_PRICES, {}).setdefault(what, {})[tuple(map(int, x.shape))] = price
    return price.pays


def _called(convolution: Any, x: Tensor) -> Called:
    """A convolution's call by itself, with padding by zeros for every padding_mode."""
    name, sides = operator_of(convolution).replace("depthwise_", ""), (convolution.stride, convolution.padding)
    w = torch.empty(filter_shape(convolution), dtype=x.dtype, device="meta")
    numbers: Any = (*sides, convolution.dilation, convolution.groups)
    if convolution.transposed:
        numbers = *sides, convolution.output_padding, convolution.groups, convolution.dilation
    return Called(asked_for(name, w, numbers, Fused()), x, w, convolution.bias)


def _request(called: Called, asked: Asked | None = None) -> Request:
    return _request_of(called.problem, asked or called.planned, called.asked.operation)


def _request_of(problem: Any, asked: Asked, operation: str = "conv2d") -> Request:
    return Request(problem=problem, lnc=degree(), asked=asked, operation=operation)


def _pass_us(shape: Any, x: Tensor, reads: int = 1) -> float:
    """Of a pass that reads so many tensors of this shape, of x's dtype, and writes one."""
    return pass_us(math.prod(map(int, shape)), DTYPES[x.dtype], degree(), reads)


@functools.lru_cache(maxsize=1024)
def _us(request: Request) -> float:
    """Of a quick plan."""
    try:
        return answer(request, quick=True).modelled_us
    except NkiconvError:  # no kernel takes it, or is timed
        return math.inf


def _mlp_us(call: only_ways.Mlp) -> float:
    """Of `pointwise_mlp`."""
    return only_ways.plan_mlp(_request_of(call.problem, call.asked), call.hidden, call.x_norm).modelled_us
