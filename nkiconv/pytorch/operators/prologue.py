"""The prologue of a convolution: act(x * x_scale + x_shift), with a scale and a shift per channel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ... import rules
from ...errors import refused
from ..errors import DtypeError, GeometryError, NkiconvError, UnsupportedError
from .tensor_kinds import tensor_violations

#: x_scale and x_shift, [C] or [N, C]; None: 1 and 0.
Scales = tuple[Tensor | None, Tensor | None]
NO_SCALES: Scales = (None, None)


def is_asked(scales: Scales, activation: str | None, upsample: int = 1) -> bool:
    """Whether something happens to x before it is convolved."""
    return activation is not None or scales[0] is not None or scales[1] is not None or upsample != 1


def form_of(numbers: Tensor | None) -> str | None:
    """What the planner calls numbers of this shape."""
    return None if numbers is None else rules.SCALE_FORMS[numbers.dim() - 1]


def violations(x: Tensor, scales: Scales, activation: str | None, frames: Tensor | None) -> Iterator[NkiconvError]:
    """Why a prologue does not go with x, a tensor [N, C, ...], and frames in front of it."""
    yield from refused(UnsupportedError, rules.activation(activation, "x_activation", "input"))
    if frames is not None and is_asked(scales, activation):
        yield UnsupportedError(
            "x_scale, x_shift, x_activation: are not taken with initial_frames; apply them before, or join both tensors"
        )
    for name, numbers in zip(("x_scale", "x_shift"), scales, strict=True):
        if numbers is None:
            continue
        errors = list(tensor_violations(name, numbers))
        yield from errors
        if errors or x.dim() < 2:
            continue
        wanted = torch.float64 if x.dtype == torch.float64 else torch.float32
        if numbers.dtype != wanted:
            yield DtypeError(f"{name}.dtype={numbers.dtype}: must be {wanted} for input.dtype={x.dtype}; cast it")
        yield from refused(UnsupportedError, rules.same(name, "device", numbers.device, "input", x.device))
        yield from refused(GeometryError, rules.of_channels(name, numbers.shape, x.shape[0], x.shape[1]))


def batched_scales(scales: Scales, dims: tuple[int | None, ...], size: int, images: int, are_channels: bool) -> Scales:
    """Scales with a batch axis each, or without one (None), for batches that are more images, or more channels of so
    many images."""

    def joined(numbers: Tensor | None, dim: int | None) -> Tensor | None:
        if numbers is None:
            return None
        rows = numbers if dim is None else numbers.movedim(dim, 0)
        of_images = rows.dim() - (dim is not None) == 2
        if dim is None and not of_images and not are_channels:
            return rows
        rows = rows if dim is not None else rows.expand(size, *rows.shape)
        if are_channels:
            return (rows.transpose(0, 1) if of_images else rows).flatten(-2)
        return (rows if of_images else rows[:, None].expand(-1, images, -1)).flatten(0, 1)

    scale, shift = map(joined, scales, dims)
    return scale, shift
