"""Registers the operators: by torch-neuronx, so that its compiler sees the kernels inside of them, else by torch."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..computers import modes
from ..errors import UnsupportedError
from . import autograd, sharding


def registrar() -> Callable[..., Any]:
    """torch-neuronx's way to register an operator, which lets its compiler see the kernel; else torch's.

    A torch-neuronx that is there and cannot be imported is a RuntimeWarning; an older one has no `nki_op`.
    """
    try:
        neuronx: Any = importlib.import_module("torch_neuronx")
    except Exception as error:  # the stub of PyPI may raise any exception
        if not (isinstance(error, ModuleNotFoundError) and error.name == "torch_neuronx"):
            warnings.warn(
                f"torch_neuronx: cannot be imported ({type(error).__name__}: {error}), so torch registers nkiconv's "
                f"operators, and torch.compile will not see their kernels; repair its installation, or uninstall it",
                RuntimeWarning,
                stacklevel=2,
            )
        neuronx = None
    return getattr(neuronx, "nki_op", torch.library.custom_op)


#: Types of an operator's arguments by name, or pairs of a type and a default.
Arguments = Mapping[str, Any]
#: Types of arguments that are tensors.
TENSORS = (Tensor, Tensor | None)


def arguments_of(call: Any) -> dict[str, Any]:
    """The Arguments that are the fields of a NamedTuple."""
    defaults: dict[str, Any] = call._field_defaults
    kinds = {name: kind for name, kind in get_type_hints(call).items() if name in call._fields}
    return {name: (kind, defaults[name]) if name in defaults else kind for name, kind in kinds.items()}


def num_tensors(arguments: Arguments) -> int:
    """Tensors among arguments, which come first."""
    return sum(kind in TENSORS for kind in arguments.values())


class Transforms(NamedTuple):
    """What torch's transforms make of an operator besides its derivatives.

    batched: rule of vmap; flops: from its arguments, shapes for tensors, and `out_shape`, for torch.utils.flop_counter;
    by_images: of `sharding`.
    """

    batched: Callable[..., Any] | None = None
    flops: Callable[..., int] | None = None
    by_images: sharding.ByImages | None = None


def define(
    name: str,
    arguments: Arguments,
    results: Any,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    derivatives: autograd.Derivatives,
    transforms: Transforms,
) -> Any:
    """Register operator `nkiconv::name`.

    Args:
        results: their type; fake: checks arguments and makes results. It refuses torch.onnx (UnsupportedError).
    """

    def run(*args: Any) -> Any:
        return forward(*args)

    def made(*args: Any) -> Any:
        if modes.is_onnx():
            raise UnsupportedError(
                f"torch.onnx.export: ONNX has no nkiconv::{name}; pass the model, not a program of torch.export, and "
                f"torch's own convolutions are exported (packed sequences have none)"
            )
        sharding.announce()
        return fake(*args)

    parameters = []  # from which torch infers the operator's schema
    for argument, kind in arguments.items():
        kind, default = kind if isinstance(kind, tuple) else (kind, inspect.Parameter.empty)
        either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(argument, either, default=default, annotation=kind))
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": results}
    vars(run)["__signature__"] = inspect.Signature(parameters, return_annotation=results)
    operator = registrar()(f"nkiconv::{name}", mutates_args=())(run)
    operator.register_fake(made)
    autograd.register(name, derivatives)
    if transforms.batched is not None:
        operator.register_vmap(transforms.batched)
    if transforms.flops is not None:
        register_flop_formula(getattr(torch.ops.nkiconv, name))(transforms.flops)
    if transforms.by_images is not None:
        sharding.declare(name, transforms.by_images)
    return operator
