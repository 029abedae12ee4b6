"""A model's convolutions swapped for nkiconv's, in place or in a copy that shares every tensor with it.

A module is swapped by giving it another class: its parameters, hooks, flags, parametrizations and all references
to it stay.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from ... import rules
from ...errors import DtypeError, NkiconvError, UnsupportedError, raise_all, refused, shown
from ..causal import model_files
from ..causal.installation import Installation
from ..computers import modes
from ..fused_module import filter_shape, operator_of
from ..operators.tensor_kinds import DTYPES
from . import batchnorm, fusion, graphs, videos
from .classes import OURS, Intercepted, LeftOut, change_class, ours
from .flops import share_of
from .fusion import Fusion
from .intercept import STRICT, intercept
from .report import Entry, Report

Filter = Callable[[str, torch.nn.Module], bool]
#: How a convolution is nkiconv's whose own forward calls torch's functions.
CALLED = "its own forward, under which torch's functions are nkiconv's"
#: Reasons that end where functions are nkiconv's too, or that `filter` gives.
OWN, FILTERED = "has its own", "filter leaves it out"
_CONVERTED = tuple(OURS.values())
#: Methods in which a subclass may do something else than torch.
_METHODS = ("forward", "_conv_forward")
#: Attributes that nkiconv's classes read and torch's do not.
_ATTRIBUTES = (
    "activation", "residual_position", "layer", "strict_nonfinite", "x_upsample", "upsamples", "operator",
    "is_frozen", "pack_filter", "unpack_filter", "_filters", "_freeze", "_as_parameter", "_where", "_around",
    "_convolved", "_transposed", "_fused",
)  # fmt: skip


def convert(
    model: torch.nn.Module,
    filter: Filter | None = None,
    *,
    fold_batchnorm: bool = False,
    fuse: bool = False,
    polyphase: bool = False,
    causal_conv1d: bool = True,
    functional: bool = True,
    pack_filters: str | None = None,
    inplace: bool = False,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    strict_nonfinite: bool | None = None,
) -> Report:
    """Replace a model's Conv1d to Conv3d and ConvTranspose1d to 3d by nkiconv's. The report names each convolution that
    stays, with the reason.

    With fuse=True each of these chains runs as one call:

    - norm (GroupNorm, InstanceNorm or, in eval mode, BatchNorm), activation, convolution (`norm_act_conv2d`), with a
      residual of y's shape, a value per channel that is added before the norm or scales and shifts its result, and
      padding by copies of pixels; `report.chains` names every norm, with the reason if it stays
    - convolution and the norm over channels after it, in known video VAEs; `report.chains` too
    - linear layers between permutations of images (ConvNeXt), as 1x1 convolutions with the activation, or the scale
      and the sum, after them; two 1x1 convolutions with an activation between; `report.layers` names each
    - any other convolution with a residual of its shape and an activation after it (`Entry.epilogue`), and with
      fold_batchnorm a norm between. Such a convolution returns a Tensor by isinstance that is computed on first use
    - upsampling by 2 ("nearest", "nearest-exact") and the convolution of images after it (x_upsample);
      `report.doublings` names each
    - modules with depthwise convolutions of rows (LFM2, Conformer, Qwen3-Next, Kimi Linear, Mamba2); `report.blocks`
      names the fused calls of each

    Args:
        model: any module; it may itself be a convolution. Its convolutions may have hooks, parametrizations and weight
            norm, and may be subclasses of torch's. A subclass with its own forward keeps it; that forward runs under
            `intercept`, so the torch convolutions that it calls are nkiconv's. For the known classes of diffusers' Wan,
            Qwen-Image and Cosmos, the convolution takes the padding and the cache too.
        filter: called with each convolution's name and module, returns whether to replace it; None replaces all. It
            does not hold for layers that read a weight and call a function: see `functional`.
        fold_batchnorm: fold each batch norm after a convolution into its filters and bias, and put an Identity in its
            place. Eval mode only. A batch norm is any module with running_mean and running_var that computes
            act(scale * x + shift), which is checked in float64. The convolution takes the activation if nkiconv fuses
            it; otherwise the activation replaces the norm. The norm must be the only reader of the convolution's output
            for all inputs: torch.fx's graphs of all paths through the model prove that, or the norm stays.
        fuse: run each chain above as one call. The graphs prove that nothing else reads a chain's intermediate tensors,
            and each call is compared with its modules in float64. Parameters, names and gradients stay. Hooks added
            afterwards do not see the intermediate tensors. Under torch.autocast, and for single images without N, the
            modules run one by one. On a Neuron device and in `plan_model`, a chain stays apart where quick plans, made
            once a shape, price it higher than its parts.
        polyphase: with fuse, run a convolution of images upsampled by 2 as a transposed one with the weight's
            `polyphase_filter`: for 3x3 taps 4/9 of the products. Each call sums taps and rounds the sums once to the
            weight's dtype, an error like that of rounding the weight. Convolutions with strides, dilation,
            padding="same" or strict_nonfinite use x_upsample instead.
        causal_conv1d: replace `causal_conv1d_fn` and `causal_conv1d_update` by nkiconv's in the files of layers that
            pass a convolution's weight to them (transformers' Mamba, Qwen3-Next and others). That holds for every model
            of such a file in the process, until `report.installation.undo()`. A call that nkiconv refuses goes to the
            file's own function, with a warning.
        functional: run the model's forward under `intercept`, so that calls of torch's convolution functions are
            nkiconv's in every module. Call other methods of the model under `intercept` yourself.
        pack_filters: "frozen": in eval mode, for inference, keep a module's filter in the kernel's order, so that no
            call transposes it, where plans for example_inputs are faster so. The report says when each filter was
            packed, and why others stay plain. A packed module has no Parameter for its filter and cannot train; it
            equals the result of its `pack_filter()`. None: every call reads the weight.
        inplace: change the model itself. Otherwise `report.model` is a copy of its modules with the same Parameter and
            buffer objects: optimizers and tied weights keep working, and a change in one model changes the other. So
            cast and move a model first: `model.to` changes the parameters of both, but the buffers of one. Folded
            convolutions get new parameters in either case.
        example_inputs: arguments of forward, as a tuple or a dict by name. The converted model runs once on them, in
            eval mode and without gradients, so that the report has nkiconv's share of the convolutions' flops. With
            pack_filters each distinct convolution of that run is planned twice (seconds each; plans are kept, also for
            devices).
        strict_nonfinite: for all convolutions that become nkiconv's, as in `conv2d`; None: as `set_strict_nonfinite`
            says. For replaced functions it holds for every model of their file.

    Returns: a `Report`, whose `model` is the converted one.

    Raises: UnsupportedError, DtypeError, KindError, before any change; the model's own errors on example_inputs.
    """
    from . import packing  # which records a run of a converted model

    options: dict[str, Any] = {"fold_batchnorm": fold_batchnorm, "fuse": fuse, "polyphase": polyphase}
    options |= {"causal_conv1d": causal_conv1d, "functional": functional}
    flags = {**options, "inplace": inplace}
    raise_all("convert cannot run this call", list(_refused(model, filter, pack_filters, example_inputs, flags)))
    modes.wants_strict_nonfinite(strict_nonfinite)
    if pack_filters:
        copied(model, "convert it before that (FSDP2's fully_shard keeps frozen filters), or pass pack_filters=None")
    share = None
    if inplace and example_inputs is not None and _can_be_copied(model):
        more: dict[str, Any] = {"pack_filters": pack_filters, "strict_nonfinite": strict_nonfinite, "filter": filter}
        # on a copy first: an error of its run comes before any change
        first = convert(model, example_inputs=example_inputs, **options, **more)
        first.installation.undo()
        share = first.measured
    times = packing.times(model, _arguments(example_inputs), **options) if pack_filters else {}
    entries = tuple(_entry(name, module, filter) for name, module in _convolutions(model))
    swapped = [entry.name for entry in entries if entry.swapped]
    plain = [name for name in swapped if not _own(model.get_submodule(name))]
    folds = batchnorm.find(model, plain, copied) if fold_batchnorm else ()
    found = Fusion()
    if fuse:
        found = fusion.find(model, swapped, plain, folds, causal_conv1d, strict_nonfinite, copied, polyphase)
        entries = tuple(dataclasses.replace(one, epilogue=str(found.epilogues.get(one.name, ""))) for one in entries)
    target = model if inplace else copied(model)
    _swap_all(target, entries, functional, strict_nonfinite)
    for fold in folds:
        if fold.folded:
            batchnorm.fold(target, fold)
    fusion.take(target, found, swapped, strict_nonfinite)
    if pack_filters:
        entries = tuple(
            packing.frozen(target, one, times, one.name not in plain) if one.swapped else one for one in entries
        )
    installation = Installation()
    if causal_conv1d:
        entries = tuple(_by_causal_conv1d(target, entry, installation, strict_nonfinite) for entry in entries)
    entries += tuple(graphs.entries(target, functional))
    if functional:
        graphs.take(target, strict_nonfinite)
        target = _intercepted(target, strict_nonfinite)
        entries = tuple(map(_by_intercepted, entries))
    if example_inputs is not None and share is None:
        try:
            share = share_of(target, *_arguments(example_inputs))
        except BaseException:
            installation.undo()
            raise
    norms = found.chains + found.pixel_chains
    return Report(
        target, entries, folds, installation, functional, share, norms, found.layers, found.blocks, found.doublings
    )


def check_module(model: Any) -> None:
    """Raise DtypeError where a model is no module, UnsupportedError where it is scripted."""
    if not isinstance(model, torch.nn.Module):
        raise DtypeError(f"model: must be a torch.nn.Module, not {type(model).__name__}; pass the module itself")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError("model: is scripted or traced; convert the model before torch.jit.script or trace")


def _refused(
    model: Any, filter: Any, pack_filters: Any, example_inputs: Any, flags: dict[str, Any]
) -> Iterator[NkiconvError]:
    """Errors of arguments."""
    from . import packing

    check_module(model)
    if filter is not None and not callable(filter):
        yield UnsupportedError(f"filter={shown(filter)}: must be None or a function of (name, module); pass one")
    if example_inputs is not None and not isinstance(example_inputs, (tuple, list, Mapping)):
        kind = type(example_inputs).__name__
        yield DtypeError(f"example_inputs: must be a tuple or dict of forward's arguments, not {kind}; pass (x,)")
    yield from packing.violations(pack_filters, example_inputs)
    yield from refused(UnsupportedError, *itertools.starmap(rules.flag, flags.items()))
    if flags["polyphase"] is True and flags["fuse"] is False:
        yield UnsupportedError("polyphase=True: is of what fuse=True finds; pass both")
    if flags["fuse"] is True and pack_filters is not None:
        yield UnsupportedError("fuse=True: does not go with pack_filters; pass one of them")
    evals = {"fold_batchnorm=True": flags["fold_batchnorm"], "pack_filters='frozen'": pack_filters}
    for argument, wanted in evals.items():
        yield from batchnorm.violations(model, argument) if wanted else ()


def _swap_all(
    target: torch.nn.Module, entries: tuple[Entry, ...], functional: bool, strict_nonfinite: bool | None
) -> None:
    """Give convolutions the classes that their entries say."""
    for entry in entries:
        module: Any = target.get_submodule(entry.name)
        if entry.swapped:
            change_class(module, ours)
            module.layer, module.strict_nonfinite = entry.name or None, strict_nonfinite
        elif entry.function == CALLED:
            vars(module)[STRICT] = strict_nonfinite
            change_class(module, Intercepted)
        elif entry.reason == FILTERED and functional:
            change_class(module, LeftOut)


def _can_be_copied(model: torch.nn.Module) -> bool:
    try:
        copied(model)
    except UnsupportedError:
        return False
    return True


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(by position, by name)."""
    return ((), dict(example_inputs)) if isinstance(example_inputs, Mapping) else (tuple(example_inputs), {})


def _by_causal_conv1d(
    model: torch.nn.Module, entry: Entry, installation: Installation, strict_nonfinite: bool | None
) -> Entry:
    """The entry of a convolution whose filter goes to functions of its layer's file, which become nkiconv's."""
    if not entry.name or entry.reason or not isinstance(model.get_submodule(entry.name), torch.nn.Conv1d):
        return entry
    layer = model.get_submodule(entry.name.rpartition(".")[0])
    candidates: list[Any] = [*model_files.files_of(layer), layer]
    places = [place for place in candidates if model_files.looks(place)]
    for place in places:
        model_files.set_in(place, installation, strict_nonfinite=strict_nonfinite)
    if not places:
        return entry
    name = type(layer).__name__ if places[0] is layer else places[0].__name__
    return dataclasses.replace(entry, operator="causal_conv1d", function=f"causal_conv1d_fn of {name}")


def _intercepted(model: Any, strict_nonfinite: bool | None) -> Any:
    """The same model with a forward under `intercept`."""
    if "forward" in vars(model):
        own = vars(model)["forward"]

        @functools.wraps(own)
        def forward(*args: Any, **named: Any) -> Any:
            with intercept(strict_nonfinite):
                return own(*args, **named)

        model.forward = forward
    elif not isinstance(model, (_ConvNd, torch.fx.GraphModule, Intercepted)):
        vars(model)[STRICT] = strict_nonfinite
        change_class(model, Intercepted)
    return model


def _by_intercepted(entry: Entry) -> Entry:
    """The entry of a convolution that reaches nkiconv as a function, as far as nkiconv takes its calls."""
    if not entry.reason.startswith(OWN):
        return entry
    return dataclasses.replace(entry, reason="", function=f"torch's, intercepted ({entry.reason})")


def copied(model: torch.nn.Module, remedy: str = "mend that, or convert it with inplace=True") -> torch.nn.Module:
    """A copy of the modules and their attributes that shares their tensors.

    Raises UnsupportedError: something in the model cannot be copied.
    """
    kept = [one for module in model.modules() for one in vars(module).values()]
    shared = {id(one): one for one in (*kept, *model.parameters(), *model.buffers()) if isinstance(one, torch.Tensor)}
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception as error:
        raise UnsupportedError(f"model: cannot be copied ({type(error).__name__}: {error}); {remedy}") from error


def _convolutions(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module that convolves, torch's kinds that nkiconv lacks among them."""
    for name, module in model.named_modules():
        if isinstance(module, _ConvNd) or ("Conv" in _kind(module) and _is_rewritten(module)):
            yield name, module


def _is_rewritten(module: torch.nn.Module) -> bool:
    """Whether this is a single module that torch quantized or scripted."""
    quantized = type(module).__module__.startswith("torch.ao.nn")
    return (quantized or isinstance(module, torch.jit.ScriptModule)) and not any(module.children())


def _kind(module: torch.nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", "ScriptModule"))
    return type(module).__name__


def _entry(name: str, module: torch.nn.Module, filter: Filter | None) -> Entry:
    reason = "; ".join(_reasons(module))
    if not reason and filter is not None and not filter(name, module):
        reason = FILTERED
    operator = None
    if isinstance(module, _CONVERTED) or (isinstance(module, tuple(OURS)) and not reason):
        operator = operator_of(module)
    function = "" if reason or _is_plain(module) else CALLED
    return Entry(name, _kind(module), _filters(module), operator, reason, function=function)


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether nkiconv's class can replace this module's: it has torch's forward, or one that `videos` knows, and no
    attribute that nkiconv's class would read."""
    own = _own(module)
    known = own == ["forward"] and isinstance(module, torch.nn.Conv3d) and videos.forward_of(type(module)) is not None
    return (not own or known) and not any(hasattr(module, name) for name in _ATTRIBUTES)


def _filters(module: torch.nn.Module) -> tuple[int, ...]:
    """Shape of the filters; () where the module cannot say."""
    if not isinstance(module, _ConvNd) or _is_lazy(module):
        return ()
    return filter_shape(module)


def _is_lazy(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params()


def _reasons(module: torch.nn.Module) -> Iterator[str]:
    """Why a module stays as it is."""
    if isinstance(module, torch.jit.ScriptModule):
        yield "is scripted; convert the model before torch.jit.script"
    elif isinstance(module, (*_CONVERTED, Intercepted)):
        yield "is nkiconv's already"
    elif isinstance(module, LeftOut):
        yield "was left out by a filter before; convert the model that was converted then"
    elif type(module).__module__.startswith("torch.ao.nn"):
        yield "is quantized, or prepared for it; nkiconv has no integer convolution"
    elif not isinstance(module, tuple(OURS)):
        yield "nkiconv convolves rows, images and volumes only"
    elif _is_lazy(module):
        yield "is lazy, its parameters have no shape yet; run the model once, then convert it"
    else:
        yield from _obstacles(module)


def _obstacles(module: torch.nn.Module) -> Iterator[str]:
    """Why one of torch's convolutions stays as it is."""
    own = [name for name in _METHODS if name in vars(module)]  # perhaps bound to another module
    if own:
        yield f"{OWN} {' and '.join(own)}"
    tensors = [one for one in (*module.parameters(), *vars(module).values()) if isinstance(one, torch.Tensor)]
    tensors = [one for one in tensors if one.is_floating_point() or one.is_complex() or one.is_quantized]
    kinds = {str(one.dtype): None for one in tensors if one.dtype not in (*DTYPES, torch.float64)}
    if kinds:
        yield f"weights are {', '.join(kinds)}; accepted are {', '.join(map(str, DTYPES))}"
    layouts = {str(one.layout): None for one in tensors if one.layout != torch.strided}
    if layouts:
        yield f"weights are {', '.join(layouts)}; accepted are torch.strided ones"


def _own(module: torch.nn.Module) -> list[str]:
    """Names of the methods in which the class of one of torch's convolutions does something else than torch."""
    base: Any = next(kind for kind in OURS if isinstance(module, kind))
    return [name for name in _METHODS if getattr(type(module), name) is not getattr(base, name)]
