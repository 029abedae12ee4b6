"""Freeze filters of a model in the kernel's order where its plans are faster so.

Neither order is faster for all images: packed filters need no transposes, plain ones allow K packing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ... import rules
from ...errors import NkiconvError, UnsupportedError, refused
from ...launches import degree
from ...planner import Request
from ...planner.entry import answer
from ..operators.filters import Freezes, refusal
from .recording import Convolved, record
from .report import Entry

#: The value of `convert`'s pack_filters.
FROZEN = "frozen"
#: Modelled us of all calls of a layer in one run, plain and packed, by its name.
Times = dict[str, tuple[float, float]]


def violations(pack_filters: Any, example_inputs: Any) -> Iterator[NkiconvError]:
    """Errors of these arguments of `convert`."""
    yield from refused(UnsupportedError, rules.accepted("pack_filters", pack_filters, (None, FROZEN)))
    if pack_filters is not None and example_inputs is None:
        yield UnsupportedError(
            "pack_filters='frozen', example_inputs=None: whether a packed filter is faster depends on the images; pass "
            "example_inputs"
        )


def times(model: torch.nn.Module, arguments: tuple[Sequence[Any], Mapping[str, Any]], **options: bool) -> Times:
    """Plan the layers of a model, plain and packed, on the shapes of one run; those that cannot be packed are left out.

    Args: arguments: of forward, by position and by name; options: of `convert`. The model stays as it is.

    Raises: UnsupportedError where the model raises.
    """
    found: Times = {}
    inputs, named = arguments
    for convolved, layers in record(model, inputs, named, **options).convolved.items():
        each = _times(convolved)
        for layer in layers if each else ():
            plain, packed = found.get(layer, (0.0, 0.0))
            found[layer] = plain + each[0], packed + each[1]
    return found


def _times(convolved: Convolved) -> tuple[float, ...]:
    """(plain, packed) of one call; () where one of them has no plan."""
    if convolved.problem.groups > 1 or convolved.operation not in ("conv2d", "conv3d"):
        return ()
    ways = [dataclasses.replace(convolved.asked, packed=packed) for packed in (False, True)]
    try:
        plans = [
            answer(Request(problem=convolved.problem, lnc=degree(), asked=way, operation=convolved.operation))
            for way in ways
        ]
    except UnsupportedError:
        return ()
    return tuple(plan.modelled_us for plan in plans)


def frozen(model: torch.nn.Module, entry: Entry, found: Times, has_own_forward: bool) -> Entry:
    """The entry of a swapped convolution of a converted model, whose filter is frozen where that takes less."""
    module = model.get_submodule(entry.name)
    assert isinstance(module, Freezes)
    reason = refusal(module)
    if has_own_forward:
        reason = "a forward of its own may read it"
    elif not reason and entry.name not in found:
        reason = "no plan of example_inputs takes it packed"
    if reason:
        return dataclasses.replace(entry, packing=f"filter stays plain: {reason}")
    plain, packed = found[entry.name]
    took = f"{packed:.1f} us packed, {plain:.1f} plain, modelled"
    if packed >= plain:
        return dataclasses.replace(entry, packing=f"filter stays plain: {took}")
    module.pack_filter()
    made = vars(module)["weight"].made
    return dataclasses.replace(entry, packed=True, packing=f"filter frozen {made}: {took}")
