"""Registers the operators: by torch-neuronx, so that its compiler sees the kernels inside of them, else by torch."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch

from . import autograd, flop_formulas, sharding
from .fakes import fake_kernel


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


def define(
    name: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    derivatives: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
    batched: Callable[..., Any] | None = None,
    flops: Callable[..., int] | None = None,
    by_images: sharding.ByImages | None = None,
) -> Any:
    """Register operator `nkiconv::name`.

    Args:
        fake: checks arguments and makes results; derivatives: remember, backward and forward_mode of
            `autograd.register`; batched: rule of vmap; flops: formula of `flop_formulas`; by_images: of `sharding`.
    """
    operator = registrar()(f"nkiconv::{name}", mutates_args=())(forward)
    operator.register_fake(fake_kernel(name, fake))
    autograd.register(name, *derivatives)
    if batched is not None:
        operator.register_vmap(batched)
    if flops is not None:
        flop_formulas.register(name, flops)
    if by_images is not None:
        sharding.declare(name, by_images)
    return operator
