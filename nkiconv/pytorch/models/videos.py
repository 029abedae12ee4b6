"""Causal convolutions of videos by others, which pad in their own forward: whether `nn.CausalConv3d` is the same.

Found on numbers: what a module's forward passes on to torch's must be, to the bit, what CausalConv3d puts around its
input, whole and in chunks, for videos of several shapes. Then neither zeros nor a cache are ever copied.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import nn
from ..streaming import Sides, in_front

#: How diffusers' causal modules name the planes of the chunk before.
CACHE = "cache_x"
#: Planes, height and width of the videos that are tried, and planes of caches.
_VIDEOS, _CACHES = ((1, 7, 9), (4, 8, 8), (5, 9, 6)), (1, 2)


class Form(NamedTuple):
    """What CausalConv3d is to put around a video: as its attributes of these names."""

    sides: Sides
    time_padding: str


class _Seen(torch.nn.Conv3d):
    """In the place of torch's Conv3d below a class: keeps what it is given, and returns a token."""

    def forward(self, input: Tensor) -> Tensor:
        vars(self)["seen"].append(input)
        token: Tensor = vars(self)["token"]
        return token


def seen(kind: type) -> type:
    """A subclass of a Conv3d's class that convolves nothing."""
    return type(kind.__name__, (kind, _Seen), {})


def form_of(probe: Any) -> Form | None:
    """What a module computes as a CausalConv3d with something in front; None of any other.

    probe: a copy of it in a class that `seen` made.
    """
    names = _names(type(probe))
    if names is None or probe.padding_mode != "zeros" or probe.padding[0] != 0:
        return None
    try:
        forms = {_form(probe, extents, names) for extents in _VIDEOS}
    except Exception:  # the module's own code, which may raise whatever it likes
        return None
    return forms.pop() if len(forms) == 1 else None


def _names(kind: type) -> list[str] | None:
    """Names of the arguments of a forward that takes a video, and perhaps a cache; None of another."""
    forward: Any = kind.forward  # type: ignore[attr-defined]  # a module
    arguments = [*inspect.signature(forward).parameters.values()][1:]
    names = [one.name for one in arguments]
    plain = all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in arguments)
    return names if plain and len(names) in (1, 2) and names[1:] in ([], [CACHE]) else None


def _form(probe: Any, extents: tuple[int, ...], names: list[str]) -> Form | None:
    """The form in which a module pads one video, with each cache too; None where there is none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, probe.in_channels, *extents, generator=generator, device="cpu")
    padded = _given(probe, x)
    if padded is None:
        return None
    front, height, width = (large - small for large, small in zip(padded.shape[2:], extents, strict=True))
    if front < 1 or min(height, width) < 0 or height % 2 or width % 2:
        return None
    inner = (front, 0), (height // 2,) * 2, (width // 2,) * 2
    caches: list[Tensor | None] = [None]
    if CACHE in names:
        caches += [
            torch.randn(*x.shape[:2], planes, *x.shape[3:], generator=generator, device="cpu") for planes in _CACHES
        ]
    for time_padding in ("zeros", "replicate"):
        if all(_pads_so(probe, x, cache, inner, time_padding) for cache in caches):
            around = tuple((side + own,) * 2 for (side, _), own in zip(inner[1:], probe.padding[1:], strict=True))
            return Form(((front, 0), around[0], around[1]), time_padding)
    return None


def _given(probe: Any, *inputs: Tensor) -> Tensor | None:
    """What a forward passes on to torch's, whose result it returns; None where it does more or less."""
    vars(probe).update(seen=[], token=torch.empty(0, device="cpu"))
    found = probe.forward(*inputs)
    images = vars(probe)["seen"]
    whole = found is vars(probe)["token"] and len(images) == 1 and images[0].dtype == inputs[0].dtype
    return images[0] if whole and images[0].dim() == 5 else None


def _pads_so(probe: Any, x: Tensor, cache: Tensor | None, sides: Sides, time_padding: str) -> bool:
    """Whether a forward puts around x what CausalConv3d does."""
    given = _given(probe, x) if cache is None else _given(probe, x, cache)
    frames, zeros = in_front(x, cache, sides[0][0], time_padding)
    joined = x if frames is None else torch.cat([frames, x], 2)
    expected = F.pad(joined, (*sides[2], *sides[1], zeros, 0))
    return given is not None and torch.equal(given, expected)


@functools.cache
def causal(kind: type) -> type:
    """The class for modules of `kind` that are to be a CausalConv3d: of both, with the arguments of its forward."""
    names = _names(kind) or []

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        values = [*given, *(named.pop(name) for name in names[len(given) :] if name in named)]
        if named or len(values) > len(names):
            raise TypeError(f"{kind.__name__}.forward: takes {', '.join(names)}, not {len(values)} and {[*named]}")
        return nn.CausalConv3d.forward(self, *values)

    more = {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce_ex__": _reduce}
    return type(kind.__name__, (nn.CausalConv3d, kind), {**more, "_causal_from": kind})


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    """How to pickle a module whose class nobody can import: by the class that it was made from."""
    reduced: Any = object.__reduce_ex__(self, max(2, int(protocol)))
    return (_instance, (self._causal_from,), *reduced[2:])


def _instance(kind: type) -> Any:
    made: Any = causal(kind)
    return made.__new__(made)
