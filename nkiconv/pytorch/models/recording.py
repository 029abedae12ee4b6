"""Which convolutions a model runs: one run of a copy, on shapes without data where the model allows it.

A dispatch mode sees every operator below autograd, so that nothing is missed: convolutions by nkiconv's operators, and
those that stay in torch, of modules or of torch.nn.functional. Hooks keep the name of the module that runs.
"""

from __future__ import annotations

import dataclasses
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ...errors import UnsupportedError
from ...planner import Asked
from ...planner.operations import operation_of
from ...problem import ConvProblem
from ...schedules.split import Split
from .. import b2b, gated, pointwise
from ..causal import split, states
from ..causal.installation import Installation
from ..causal.states import Call
from ..operators import filter_gradients
from ..operators.called import SPLIT, SplitCall
from ..operators.calls import WITH_NORM, WITH_PROLOGUE, WITH_STATS, read
from ..operators.convolution import filter_like
from ..operators.gradients import GRADIENT
from ..operators.tensor_kinds import DTYPES
from . import pixel_chains
from .callers import READS_NOTHING
from .conversion import convert, copied
from .flops import POINTWISE_MLP, Share, flops_of, is_convolution
from .fusing import waits
from .only_ways import mlp_of
from .pixel_inputs import HandsOnPixels
from .pixel_layers import MakesPixels
from .report import Report
from .statistics_plan import KERNELS, Statistics, statistics_of

#: How a model was run: shapes only; shapes only because its parameters have no data; with data.
FAKE, META, DATA = "fake tensors", "meta tensors", "data"
#: Names of operators that are filter gradients.
_WEIGHT_OPERATORS = frozenset(f"nkiconv::conv{rank}d_weight" for rank in filter_gradients.OPERATORS)
#: Up to how many integers are computed with where a model runs on shapes alone.
_FEW = 1 << 20


@dataclass(frozen=True)
class Convolved:
    """A convolution as the planner knows it; calls that are equal in this take one plan."""

    operation: str  # "depthwise_conv1d", "conv2d" or "conv3d", as the kernel of the operator
    problem: ConvProblem
    asked: Asked
    direction: str = "forward"  # or "dgrad", "wgrad", of a gradient
    hidden: int = 0  # channels between two 1x1 convolutions that are one kernel, of operation "pointwise_mlp"
    x_norm: str | None = None  # a norm in front of them
    splits: tuple[Split, ...] = ()  # parts that the kernel of operation "causal_conv1d_split" writes
    tokens_first: bool = False  # whether it reads [N, T, C]
    within: tuple[int, int] | None = None  # (place of the first of x's channels that it reads, all of x's)
    mixer: int = 0  # taps of the second filters of operation "b2b_causal_conv1d"

    @property
    def has_one_way(self) -> bool:
        """Whether its kernel has no plan."""
        return bool(self.hidden or self.splits or self.mixer)


@dataclass(frozen=True)
class Other:
    """A convolution of another operator than nkiconv's."""

    layer: str  # the module that runs it; "" is the model itself
    operator: str
    shapes: tuple[tuple[int, ...], ...]  # of its first tensors: images and filters
    flops: int  # of one call


@dataclass
class Recording:
    """The record of one run."""

    report: Report
    ran_on: str  # one of FAKE, META, DATA
    order: list[tuple[str, Convolved]] = field(default_factory=list)  # (layer, what it runs) of all calls, in order
    others: Counter[Other] = field(default_factory=Counter)  # calls
    statistics: Counter[Statistics] = field(default_factory=Counter)  # calls
    called: set[str] = field(default_factory=set)  # names of modules
    share: Share = field(default_factory=Share)  # whose the arithmetic of the convolutions is
    because: str = ""  # its error on fake tensors, where it ran on data instead

    @property
    def convolved(self) -> dict[Convolved, list[str]]:
        """The layers of all calls of each convolution, in order."""
        found: dict[Convolved, list[str]] = {}
        for layer, convolved in self.order:
            found.setdefault(convolved, []).append(layer)
        return found


def record(
    model: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], *, training: bool = False, **options: bool
) -> Recording:
    """Convert a copy of a model to nkiconv and run it once, in eval mode and without gradients; with `training` also
    the gradients of its parameters that want one.

    The model itself stays as it is. It first runs on fake tensors, and on data where that raises: where its shapes or
    its ways depend on numbers that are computed. Integers that it is given or has as buffers keep their values there.

    Args: options: of `convert`.

    Raises: UnsupportedError, where the model raises: with its error and the layer.
    """
    if any(one.is_meta for one in model.parameters()):
        inputs, named = tree_map_only(torch.Tensor, lambda one: one.to("meta"), ([*inputs], {**named}))
        return _run(META, model, inputs, named, training, options)
    try:
        return _run(FAKE, model, inputs, named, training, options)
    except ModelError as error:  # perhaps of its data: with it, the same error comes again if it is not
        found = _run(DATA, model, inputs, named, training, options)
        found.because = error.raised
        return found


class ModelError(UnsupportedError):
    """A model raised."""

    raised = ""  # the error and its layer


class _UnknownShapeError(Exception):
    """A convolution's shape depends on numbers that a run on shapes alone does not compute."""


def _run(
    kind: str,
    model: torch.nn.Module,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    training: bool,
    options: Mapping[str, Any],
) -> Recording:
    # A model may keep tensors of a run as its attributes: every run has a copy of its own.
    report = convert(copied(model).eval(), inplace=True, **options)
    found = Recording(report, kind)
    stack: list[str] = []
    with Installation() as stacked:
        stacked.enter_context(report.installation)
        stacked.enter_context(torch.set_grad_enabled(training))
        stacked.enter_context(_names(report.model, stack, found.called))
        if kind == FAKE:
            shapes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
            mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True, shape_env=shapes)
            stacked.enter_context(mode)
            # whose errors are reported by us
            stacked.set(vars(logging.getLogger("torch._subclasses.fake_tensor")), "disabled", True)
            inputs = [_faked(mode, one) for one in inputs]
            named = {name: _faked(mode, one) for name, one in named.items()}
        parts = report.model.named_modules()
        owners = {id(one): name for name, module in parts for one in module.parameters(recurse=False)}
        recorder = stacked.enter_context(_Recorder(found, stack, owners))
        try:
            outputs = report.model(*inputs, **named)
            if training:
                recorder.is_back = True
                _differentiate(outputs, [one for one in report.model.parameters() if one.requires_grad])
        except Exception as error:  # the model's own code may raise any exception
            raise _raised(error, report.model, kind, inputs, named) from error
    return found


def _differentiate(outputs: Any, parameters: Sequence[torch.Tensor]) -> None:
    """Run the gradients of parameters, of the sum of all outputs."""
    losses = [one.sum() for one in tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad]
    if losses and parameters:
        loss = torch.stack([one.float() for one in losses]).sum()
        torch.autograd.grad(loss, parameters, allow_unused=True)


def _faked(mode: FakeTensorMode, one: Any) -> Any:
    """An input without its data; integers, which a model may branch on, keep theirs."""
    if not isinstance(one, torch.Tensor) or _is_whole(one):
        return one
    return mode.from_tensor(one)


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _raised(
    error: Exception, model: torch.nn.Module, kind: str, inputs: Sequence[Any], named: Mapping[str, Any]
) -> ModelError:
    """The ModelError for an error of a model."""
    layer = _layer_of(error, model)
    raised = f"raised {type(error).__name__} {f'in layer {layer}' if layer else 'in its own forward'}"
    remedy = "give it inputs that it takes"
    if kind == META:
        remedy += "; if it needs numbers that are computed, give its parameters data, which on meta they have not"
    if _wants_whole_numbers(error):
        remedy += "; of indices, as tokens are, zeros of type int64 (on the command line 1x4096:int64)"
    found = ModelError(f"model: {raised}, given {_given(inputs, named)}: {error}; {remedy}")
    found.raised = f"{raised}: {str(error).strip().partition(chr(10))[0]}"
    return found


def _wants_whole_numbers(error: Exception) -> bool:
    """Whether an error is torch's of indices of a floating type."""
    text = str(error)
    return "indices" in text and ("Long" in text or "int" in text.lower())


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

    setattr(leave, READS_NOTHING, True)
    # a module that returns a Pending computes it at once if it has hooks; a scripted one takes none
    without = MakesPixels, HandsOnPixels, pixel_chains.HandsOnSums, pixel_chains.TakesSums, torch.jit.ScriptModule
    parts = {name: one for name, one in model.named_modules() if not (waits(one) or isinstance(one, without))}
    hooks = [module.register_forward_pre_hook(enter(name), prepend=True) for name, module in parts.items()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in parts.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the convolutions among the operators that run under it."""

    def __init__(self, found: Recording, stack: list[str], owners: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found
        self.stack = stack
        self.owners = owners  # of parameters, by id
        self.is_back = False  # whether gradients run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it."""
        layer = self.stack[-1] if self.stack else ""
        if self.found.ran_on == FAKE and _is_of_numbers(func, args, kwargs or {}):
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if self.is_back:
            self._note_gradient(func, args)
        elif is_convolution(func):
            self._note(func, args, result, layer)
            self.found.share.add(func, args, result)
        elif (name := func.name().removeprefix("nkiconv::")) in KERNELS:
            self.found.statistics[statistics_of(name, args)] += 1
        return result

    def _note_gradient(self, func: Any, args: Any) -> None:
        is_weight = func.name().partition(".")[0] in _WEIGHT_OPERATORS
        if func.name().startswith("nkiconv::") and (is_weight or is_convolution(func)):
            name, convolved = _weight_gradient(args) if is_weight else _gradient(func, args)
            self.found.order.append(((name or "").removesuffix(GRADIENT), convolved))

    def _note(self, func: Any, args: Any, result: Any, layer: str) -> None:
        # of a chain that a sum or a norm ends, outside of its forward
        if func.name().endswith((WITH_PROLOGUE, WITH_STATS)) or WITH_NORM in func.name():
            layer = self.owners.get(id(args[1]), layer)
        told = {own.name: value for own, value in zip(func._schema.arguments, args, strict=False)}.get("layer")
        report = self.found.report
        later = {one.name for one in report.layers} | {one.name for one in report.entries if one.epilogue}
        later |= {one.convolution for one in report.chains if one.fused and one.convolution is not None}
        if isinstance(told, str) and told in later:  # its result is computed later
            layer = told
        self.found.called.update(self.owners[id(one)] for one in args[1:2] if id(one) in self.owners)
        shapes = [tuple(one.shape) for one in args[:2] if isinstance(one, torch.Tensor)]
        if any(isinstance(extent, torch.SymInt) for shape in shapes for extent in shape):
            raise _UnknownShapeError(f"the shapes of {func.name()}, {shapes}, depend on numbers that are computed")
        if func.name().startswith("nkiconv::"):
            self.found.order.append((layer, _convolved(func, args)))
        else:
            self.found.others[Other(layer, func.name(), tuple(shapes), flops_of(func, args, result))] += 1


def _is_of_numbers(func: Any, args: Any, named: Mapping[str, Any]) -> bool:
    """Whether an operator's tensors are integers with data, few enough to be computed with, or single numbers.

    Operators that write in place do not count: the tensor may be a buffer that the model holds too.
    """
    tensors = [one for one in tree_leaves((args, named)) if isinstance(one, torch.Tensor)]
    if not tensors or func._schema.is_mutable or any(isinstance(one, FakeTensor) for one in tensors):
        return False
    return all(one.numel() <= (_FEW if _is_whole(one) else 1) for one in tensors)


def _mlp(given: pointwise.Call) -> Convolved:
    """Two 1x1 convolutions in one kernel, with a norm of x."""
    x, *filters = given[:3]
    call = mlp_of(x, (filters[0], filters[1]), given[3:5], given.activation, given.residual, given.x_norm)
    return Convolved(POINTWISE_MLP, call.problem, call.asked, hidden=call.hidden, x_norm=given.x_norm)


def _gated(given: gated.Call) -> Convolved:
    """The launch of gated_conv1d."""
    found = Convolved("depthwise_conv1d", given.called.problem, given.called.planned)
    if given.layout == "NCW":
        return found
    return dataclasses.replace(found, operation=SPLIT, splits=gated.split_of(given).splits, tokens_first=True)


def _split(given: SplitCall) -> Convolved:
    """The launch of causal_conv1d_split; of packed sequences, as if each row were one."""
    rows = given.rows, *given[1:4], None, None
    found = _causal(Call(*rows, given.return_final_states, given.activation, None))
    first, channels = given.first_channel, int(given.x.shape[given.layout.index("C")])
    within = None if first is None else (first, channels)
    tokens_first = given.layout == "NWC"
    return dataclasses.replace(found, operation=SPLIT, splits=given.splits, tokens_first=tokens_first, within=within)


def _b2b(given: b2b.Call) -> Convolved:
    """The launch of b2b_causal_conv1d."""
    rows = given.x, given.weights_proj, None, given.x_state, None, None
    found = _causal(Call(*rows, given.return_final_states, None, None))
    return dataclasses.replace(found, operation=b2b.NAME, mixer=int(given.weights_mixer.shape[1]))


def _causal(given: Call) -> Convolved:
    """The launch of causal_conv1d; of sequences that only seq_idx numbers, as if each row were one."""
    x, weight, *_, cu_seqlens, seq_idx = given[:6]
    channels, width = weight.shape
    packed = cu_seqlens is not None or seq_idx is not None
    with_states, rows, zeros = width > 1 and not packed, x, width - 1
    if packed:
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        rows, zeros = x.new_empty(1, channels, x.shape[0] * x.shape[2] + (width - 1) * sequences), 0
    asked = Asked(
        bias=given.bias is not None,
        activation=given.activation,
        initial_state=with_states and given.initial_states is not None,
        return_final_state=with_states and given.return_final_states,
        strict_nonfinite=packed or given.strict_nonfinite,
    )
    plain = states.causal(channels, zeros, given.activation)
    return Convolved("depthwise_conv1d", plain.problem(rows, weight[:, None]), asked)


#: The calls of nkiconv's operators besides convolutions, and what they launch.
_LAUNCHES: dict[str, tuple[Callable[..., Any], Callable[[Any], Convolved]]] = {
    "causal_conv1d": (Call, _causal),
    POINTWISE_MLP: (pointwise.Call, _mlp),
    gated.NAME: (gated.Call, _gated),
    b2b.NAME: (b2b.Call, _b2b),
    SPLIT: (split.called, _split),
}


def _convolved(func: Any, args: tuple[Any, ...]) -> Convolved:
    """The planner's request for a call of one of nkiconv's operators."""
    name = func.name().removeprefix("nkiconv::").partition(".")[0]
    if name in _LAUNCHES:
        call, launch = _LAUNCHES[name]
        return launch(call(*args))
    found = read(name, args)
    return Convolved(found.asked.operation, found.problem, found.planned)


def _gradient(func: Any, args: tuple[Any, ...]) -> tuple[str | None, Convolved]:
    """(layer, the planner's request) of a call of one of nkiconv's operators for an input gradient."""
    names = [one.name for one in func._schema.arguments]
    return args[names.index("layer")], dataclasses.replace(_convolved(func, args), direction="dgrad")


def _weight_gradient(args: tuple[Any, ...]) -> tuple[str | None, Convolved]:
    """The same of a filter gradient."""
    asked, x, _, size, dtype, bias = filter_gradients.read(*args)
    problem = asked.problem(x, filter_like(x, size, x.dtype)).toward("wgrad")
    of_gradient = Asked(bias=bias, out_dtype=DTYPES[dtype])
    return asked.layer, Convolved(operation_of(problem).name, problem, of_gradient, "wgrad")
