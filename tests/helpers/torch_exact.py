"""Small integers, whose sums are exact in any order, and results held against torch's of float64, bit by bit; torch's
functions and activations by the names of nkiconv's."""

from functools import partial

import torch
from torch.nn import functional as F


def integers(*shapes, dtype=torch.float32, most=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-most, most + 1, shape, generator=generator).to(dtype) for shape in shapes]


def filled(module):
    """A module whose parameters are small integers."""
    with torch.no_grad():
        for i, one in enumerate(module.parameters()):
            one.copy_(*integers(one.shape, seed=i))
    return module


def leaves_of(*shapes, **more):
    """(leaves, the same numbers as leaves of float64)."""
    leaves = [one.requires_grad_() for one in integers(*shapes, **more)]
    return leaves, [one.detach().double().requires_grad_() for one in leaves]


def same(found, expected):
    """Whether results equal expected ones: after one rounding where they are of 16 bits, else exactly."""

    return all(
        torch.equal(*((one, other.to(one.dtype)) if one.itemsize == 2 else (one.double(), other.double())))
        for one, other in zip(found, expected, strict=True)
    )


def spread(x, gaps):
    """x [N, C, ...] with zeros between its elements, which lie so many places apart on each axis."""
    sizes = ((size - 1) * gap + 1 for size, gap in zip(x.shape[2:], gaps, strict=True))
    found = x.new_zeros(*x.shape[:2], *sizes)
    found[(..., *(slice(None, None, gap) for gap in gaps))] = x
    return found


def torchs(name, x, w, bias=None, **more):
    """What nkiconv's function of this name says, by torch's."""
    if isinstance(more.get("padding"), tuple) and isinstance(more["padding"][0], tuple):
        x, more = F.pad(x, [one for pair in reversed(more["padding"]) for one in pair]), {**more, "padding": 0}
    if name.startswith("depthwise"):
        more = {**more, "groups": x.shape[-1 - int(name[-2])]}
    return getattr(F, name.removeprefix("depthwise_"))(x, w, bias, **more)


def activation_of(name):
    """torch.nn.functional's function of one of nkiconv's activations, without its table; the identity of None."""
    if name is None:
        return lambda z: z
    return partial(F.gelu, approximate="tanh") if name == "gelu_tanh" else getattr(F, name)
