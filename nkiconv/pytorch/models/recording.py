"""Which convolutions a model runs: one run of a copy, on shapes without data where the model allows it.

A dispatch mode sees every operator below autograd, so that nothing is missed: convolutions by nkiconv's operators, and
those that stay in torch, of modules or of torch.nn.functional. Hooks keep the name of the module that runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import UnsupportedError
from ...planner import Asked
from ...problem import ConvProblem
from ..causal import states
from ..operators.custom import ARGUMENTS, asked_of
from .conversion import convert, copied
from .report import Report

#: How a model was run: shapes only; shapes only because its parameters have no data; with data.
FAKE, META, DATA = "fake tensors", "meta tensors", "data"


@dataclass(frozen=True)
class Convolved:
    """A convolution as the planner knows it; calls that are equal in this take one plan."""

    operation: str  # "depthwise_conv1d" or "conv2d", as the kernel of the operator
    problem: ConvProblem
    asked: Asked


@dataclass(frozen=True)
class Other:
    """A convolution of another operator than nkiconv's."""

    layer: str  # the module that runs it; "" is the model itself
    operator: str
    shapes: tuple[tuple[int, ...], ...]  # of its first tensors: images and filters


@dataclass
class Recording:
    """What one run showed."""

    report: Report
    ran_on: str  # one of FAKE, META, DATA
    convolved: dict[Convolved, list[str]] = field(default_factory=dict)  # the layer of each call, in order
    others: dict[Other, int] = field(default_factory=dict)  # calls
    called: set[str] = field(default_factory=set)  # names of modules


def record(
    model: torch.nn.Module,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    *,
    fold_batchnorm: bool = False,
    pack_filters: bool = True,
) -> Recording:
    """Convert a copy of a model to nkiconv and run it once, in eval mode and without gradients.

    The model itself stays as it is. It first runs on fake tensors, and on data where that raises.

    Raises: UnsupportedError, where the model raises: with its error and the layer.
    """
    options = {"fold_batchnorm": fold_batchnorm, "pack_filters": pack_filters}
    if any(one.is_meta for one in model.parameters()):
        meta = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in inputs]
        named = {name: one.to("meta") if isinstance(one, torch.Tensor) else one for name, one in named.items()}
        return _run(META, model, meta, named, options)
    try:
        return _run(FAKE, model, inputs, named, options)
    except _ModelError:  # perhaps of its data: with it, the same error comes again if it is not
        return _run(DATA, model, inputs, named, options)


class _ModelError(UnsupportedError):
    """A model raised."""


def _run(
    kind: str, model: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], options: Mapping[str, Any]
) -> Recording:
    # A model may keep tensors of a run as its attributes: every run has a copy of its own.
    report = convert(copied(model).eval(), inplace=True, **options)
    found = Recording(report, kind)
    stack: list[str] = []
    with ExitStack() as stacked:
        stacked.enter_context(torch.no_grad())
        stacked.enter_context(_names(report.model, stack, found.called))
        if kind == FAKE:
            mode = stacked.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            inputs = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in inputs]
            named = {
                name: mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for name, one in named.items()
            }
        stacked.enter_context(_Recorder(found, stack))
        try:
            report.model(*inputs, **named)
        except Exception as error:  # the model's own code, which may raise whatever it likes
            layer = _layer_of(error, report.model)
            where = f"in layer {layer}" if layer else "in its own forward"
            raise _ModelError(
                f"model: raised {type(error).__name__} {where}, given {_given(inputs, named)}: {error}; give it inputs "
                f"that it takes"
            ) from error
    return found


def _layer_of(error: Exception, model: torch.nn.Module) -> str:
    """The name of the innermost module that an error comes from; "" is the model itself."""
    names = {id(module): name for name, module in model.named_modules()}
    frames = [frame for frame, _line in traceback.walk_tb(error.__traceback__)]
    found = [names[key] for key in (id(frame.f_locals.get("self")) for frame in frames) if key in names]
    return found[-1] if found else ""


def _given(inputs: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Inputs in words."""
    told = [*map(_told, inputs), *(f"{name}={_told(one)}" for name, one in named.items())]
    return ", ".join(told) or "nothing"


def _told(one: Any) -> str:
    if isinstance(one, torch.Tensor):
        return f"{'x'.join(map(str, one.shape))} {str(one.dtype).removeprefix('torch.')}"
    return type(one).__name__


@contextmanager
def _names(model: torch.nn.Module, stack: list[str], called: set[str]) -> Iterator[None]:
    """Keep the names of the modules that run on `stack`, and of all that ran in `called`, while the block runs."""

    def enter(name: str) -> Any:
        def hook(_module: Any, _inputs: Any) -> None:
            stack.append(name)
            called.add(name)

        return hook

    def leave(_module: Any, _inputs: Any, _outputs: Any) -> None:
        stack.pop()

    hooks = [module.register_forward_pre_hook(enter(name), prepend=True) for name, module in model.named_modules()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the convolutions among the operators that run under it."""

    def __init__(self, found: Recording, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found
        self.stack = stack

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it."""
        name, layer = func.name(), self.stack[-1] if self.stack else ""
        result = func(*args, **(kwargs or {}))
        if name.startswith("nkiconv::"):
            self.found.convolved.setdefault(_convolved(func, args), []).append(layer)
        elif "conv" in name and "convert" not in name:
            shapes = [tuple(one.shape) for one in args[:2] if isinstance(one, torch.Tensor)]
            other = Other(layer, name, tuple(shapes))
            self.found.others[other] = self.found.others.get(other, 0) + 1
        return result


def _convolved(func: Any, args: tuple[Any, ...]) -> Convolved:
    """What the planner is asked about a call of one of our operators."""
    name = func.name().removeprefix("nkiconv::").partition(".")[0]
    if name == "causal_conv1d":
        return _causal(*args[:8])
    x, w, bias, residual = args[:4]
    asked = asked_of(name, *args[4 : 4 + ARGUMENTS])
    packed = args[4 + ARGUMENTS] if len(args) > 4 + ARGUMENTS else None
    return Convolved(
        operation="depthwise_conv1d" if asked.name == "depthwise_conv1d" else "conv2d",
        problem=asked.problem(x, w),
        asked=Asked(
            bias=bias is not None,
            activation=asked.activation,
            residual=None if residual is None else asked.residual_position,
            packed=packed is not None,
        ),
    )


def _causal(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    initial_states: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    seq_idx: torch.Tensor | None,
    return_final_states: bool,
    activation: str | None,
) -> Convolved:
    """The launch of causal_conv1d; of sequences that only seq_idx numbers, as if each row were one."""
    channels, width = weight.shape
    with_states = width > 1 and (initial_states is not None or return_final_states)
    plain, rows = states.causal(channels, width - 1, activation), x
    packed = cu_seqlens is not None or seq_idx is not None
    if packed:
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        length = x.shape[0] * x.shape[2] + (width - 1) * sequences
        plain, rows = states.causal(channels, 0, activation), x.new_empty(1, channels, length)
    return Convolved(
        operation="depthwise_conv1d",
        problem=plain.problem(rows, weight[:, None]),
        asked=Asked(
            bias=bias is not None,
            activation=activation,
            initial_state=with_states and not packed and initial_states is not None,
            return_final_state=with_states and not packed and return_final_states,
            strict_nonfinite=packed,
        ),
    )
