"""A model's convolutions swapped for nkiconv's, in place or in a copy that shares every tensor with it.

A module is swapped by giving it another class: its parameters, hooks, flags, parametrizations and all references
to it stay.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
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
from .classes import OURS, change_class, intercepted, is_changed, left_out, ours
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
#: What our classes read from a module besides what torch's do.
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
    """Swap Conv1d to Conv3d and ConvTranspose1d to 3d of a model for nkiconv's; whatever stays is in the report with
    the reason.

    Args:
        model: any module, itself perhaps a convolution. Its convolutions may have hooks, parametrizations and weight
            norm, and may be subclasses of torch's. A subclass with a forward of its own keeps it, and it runs under
            `intercept`, so that what it convolves by torch's forward or functions is nkiconv's. Of diffusers' Wan,
            Qwen-Image and Cosmos, whose code is known, the padding and the cache go into the convolution.
        filter: told a convolution's name and module, says whether to swap it; None: all. What it leaves out is torch's
            where it is called; a layer that reads the weight and calls a function is the `functional` argument's.
        fold_batchnorm: multiply a batch norm that follows a convolution into its filters and bias, and put an Identity
            in its place. Only in eval mode. A norm is whatever has running_mean and running_var and is found, on
            numbers in float64, to compute act(scale * x + shift): its activation goes into the convolution where
            nkiconv fuses it, and otherwise takes its place. It must be the only one to see the convolution's output,
            whatever the inputs: torch.fx's graphs of all ways through the model prove that, or the norm stays.
        fuse: run chains of GroupNorm, InstanceNorm or, in eval mode, BatchNorm, an activation that nkiconv fuses and a
            convolution as one call each (`norm_act_conv2d`), with the sum after it where its other term has y's shape,
            numbers for each channel that are added before the norm, or multiply and shift what it gives, and copies of
            pixels around the input.
            That nothing else sees what the norm gives is proved as for fold_batchnorm, and each call is held against
            its modules in float64. Norms over channels of known video VAEs go into the convolution before them. On a
            Neuron device, and in `plan_model`, what quick plans of both ways, made once a shape, price higher in one
            call stays apart. `report.chains` names every norm, and why it stays. Parameters, names and gradients stay;
            hooks that come later than this are the modules' of chains no more. Under torch.autocast, and of single
            images without N, the modules compute one by one. Linear layers between the permutations of
            images, ConvNeXt's, become 1x1 convolutions with the activation, or the scale and the sum, after them, and
            so do two 1x1 convolutions with an activation between; `report.layers` names each. Every other convolution
            takes in the sum with a tensor of its shape and the activation after it, which `Entry.epilogue` names;
            fold_batchnorm takes the norms between out of the way. Called by itself, such a convolution hands on what
            is computed when it is used, a Tensor by isinstance. Upsampling by 2, "nearest" or "nearest-exact", in front
            of a convolution of images is its x_upsample, which `report.doublings` names. Modules with depthwise
            convolutions of rows, as LFM2, Conformers, Qwen3-Next, Kimi Linear and Mamba2 have them, run their forward
            with the fused calls that `report.blocks` names, each held against the module in float64.
        polyphase: with fuse, make convolutions of images that are upsampled by 2 transposed ones with the weight's
            `polyphase_filter`: of 3x3 taps 4/9 of the products. Each call sums the taps and rounds the sums once to the
            weight's dtype, an error as of rounding the weight. With strides, dilation, padding="same" or
            strict_nonfinite they have x_upsample.
        causal_conv1d: where layers pass a convolution's weight to `causal_conv1d_fn` and `causal_conv1d_update`
            (transformers' Mamba, Qwen3-Next and others), let these be nkiconv's: in the file that defines the layers,
            so for every model of that file in the process, until `report.installation.undo()`. A call that nkiconv
            refuses stays with the file's own function, which a warning tells.
        functional: run the model's forward under `intercept`, so that convolutions by functions of torch are
            nkiconv's too, in every module. Other methods of the model than forward can be called under `intercept`
            by hand.
        pack_filters: "frozen": in eval mode, for inference, let a module own its filter in the kernel's order, so that
            calls need not transpose it, if plans of example_inputs take less time so; the report says when it was made,
            and why others stay plain. Such a module has no Parameter of it that could be changed, does not train, and
            is what its `pack_filter()` makes. None: every call takes the weight as it is then.
        inplace: change the model itself. Otherwise `report.model` is a copy of its modules with the same Parameter and
            buffer objects: optimizers and tied weights go on working, and what changes the one's changes the other's.
            So cast and move a model first: `model.to` changes the parameters of both, but the buffers of one. Folded
            convolutions get new parameters in either case.
        example_inputs: arguments of forward, a tuple, or a dict of them by name, on which the converted model runs
            once, in eval mode and without gradients, so that the report can say which share of its convolutions' flops
            is nkiconv's. With pack_filters also the images of the plans: each distinct convolution is planned twice
            (seconds each; plans are kept, for devices too).
        strict_nonfinite: of all convolutions that become nkiconv's, as `conv2d` has it; None: as `set_strict_nonfinite`
            says. Of the functions of a file it holds for every model of that file.

    Returns: a `Report`, whose `model` is the converted one.

    Raises: UnsupportedError, DtypeError, KindError, before any change; what the model raises on example_inputs.
    """
    from . import packing  # which records a run of a converted model

    if not isinstance(model, torch.nn.Module):
        raise DtypeError(f"model: must be a torch.nn.Module, not {type(model).__name__}; pass the module itself")
    errors: list[NkiconvError] = []
    if filter is not None and not callable(filter):
        errors.append(
            UnsupportedError(f"filter={shown(filter)}: must be None or a function of (name, module); pass one")
        )
    if example_inputs is not None and not isinstance(example_inputs, (tuple, list, Mapping)):
        kind = type(example_inputs).__name__
        text = f"example_inputs: must be a tuple or dict of forward's arguments, not {kind}; pass (x,)"
        errors.append(DtypeError(text))
    errors += packing.violations(pack_filters, example_inputs)
    errors += refused(UnsupportedError, rules.flag("fuse", fuse), rules.flag("polyphase", polyphase))
    if polyphase is True and fuse is False:
        errors.append(UnsupportedError("polyphase=True: is of what fuse=True finds; pass both"))
    if fuse is True and pack_filters is not None:
        errors.append(UnsupportedError("fuse=True: does not go with pack_filters; pass one of them"))
    for argument, wanted in (("fold_batchnorm=True", fold_batchnorm), ("pack_filters='frozen'", pack_filters)):
        errors += batchnorm.violations(model, argument) if wanted else ()
    raise_all("convert cannot run this call", errors)
    modes.wants_strict_nonfinite(strict_nonfinite)
    options: dict[str, Any] = {
        "fold_batchnorm": fold_batchnorm,
        "fuse": fuse,
        "polyphase": polyphase,
        "causal_conv1d": causal_conv1d,
        "functional": functional,
    }
    if pack_filters:
        copied(model, "convert it before that (FSDP2's fully_shard keeps frozen filters), or pass pack_filters=None")
    share = None
    if inplace and example_inputs is not None and _can_be_copied(model):
        more: dict[str, Any] = {"pack_filters": pack_filters, "strict_nonfinite": strict_nonfinite, "filter": filter}
        # on a copy first: what its run raises comes before any change
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
    for name in swapped:
        _swap(target.get_submodule(name), name, strict_nonfinite)
    for entry in entries:
        if entry.function == CALLED:
            vars(target.get_submodule(entry.name))[STRICT] = strict_nonfinite
            change_class(target.get_submodule(entry.name), intercepted)
        elif entry.reason == FILTERED and functional:
            change_class(target.get_submodule(entry.name), left_out)
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
    elif not (
        isinstance(model, (_ConvNd, torch.jit.ScriptModule, torch.fx.GraphModule)) or is_changed(model, intercepted)
    ):
        vars(model)[STRICT] = strict_nonfinite
        change_class(model, intercepted)
    return model


def _by_intercepted(entry: Entry) -> Entry:
    """The entry of a convolution that reaches nkiconv as a function, as far as nkiconv takes its calls."""
    if not entry.reason.startswith(OWN):
        return entry
    return dataclasses.replace(entry, reason="", function=f"torch's, intercepted ({entry.reason})")


def copied(model: torch.nn.Module, remedy: str = "mend that, or convert it with inplace=True") -> torch.nn.Module:
    """A copy of the modules, and of what they hold, but with the same tensors.

    Raises UnsupportedError: something in the model cannot be copied.
    """
    tensors = [one for module in model.modules() for one in (*vars(module).values(), *_registered(module))]
    shared = {id(one): one for one in tensors if isinstance(one, torch.Tensor)}
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception as error:
        raise UnsupportedError(f"model: cannot be copied ({type(error).__name__}: {error}); {remedy}") from error


def _registered(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


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
    """Whether one of our modules computes what this does: torch's forward, or one that `videos` knows, and no attribute
    of its own that ours would read."""
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
    elif isinstance(module, _CONVERTED) or is_changed(module, intercepted):
        yield "is nkiconv's already"
    elif is_changed(module, left_out):
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
    tensors = [one for one in _all_tensors(module) if one.is_floating_point() or one.is_complex() or one.is_quantized]
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


def _all_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from (one for one in vars(module).values() if isinstance(one, torch.Tensor))


def _swap(module: Any, name: str, strict_nonfinite: bool | None) -> None:
    """Make a module one of ours; `layer` is how messages call it."""
    change_class(module, ours)
    module.layer, module.strict_nonfinite = name or None, strict_nonfinite
