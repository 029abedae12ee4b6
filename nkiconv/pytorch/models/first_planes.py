"""Convolutions of videos in front of which a module puts copies of the first plane: they read these beside the video.

The forward of such a module is a published one, known by its `fingerprint`: it joins the copies and the video for its
convolution. Here the convolution gets a `Joined`, and takes the copies as its initial frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..computers import modes
from ..norm_act_modules import is_hooked
from .classes import Changed, change_class
from .pending import Joined, handed_on, tensor_of
from .videos import fingerprint


def _video_of_ltx(module: Any, hidden_states: Any) -> Any:
    return hidden_states if module.is_causal is True else None


def _video_of_ltx2(_module: Any, hidden_states: Any, causal: bool = True) -> Any:
    return hidden_states if causal is True else None


#: Functions with a known forward's arguments, by the forward's `fingerprint`: the video in front of which it puts
#: kernel_size[0] - 1 copies, or None.
_KNOWN: dict[str, Callable[..., Any]] = {
    # LTXVideoCausalConv3d, LTX2VideoCausalConv3d of diffusers 0.42
    "a662a4e979a97d3591cf070951c8ae1f53ce669b3a386d37b6482d90a6360566": _video_of_ltx,
    "11de05b5ab29e2c396fe3e992a5d6d8306db164c45441cac781223e703c50b83": _video_of_ltx2,
}

#: Attribute of a module: the function of `_KNOWN` for its forward.
_VIDEO = "nkiconv_video"


def find(model: torch.nn.Module, plain: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules with a known forward.

    plain: names of convolutions with torch's forward that become nkiconv's.
    """
    return tuple(
        name
        for name, module in model.named_modules()
        if f"{name}.conv".lstrip(".") in plain and "forward" not in vars(module) and _known(type(module)) is not None
    )


def _known(kind: Any) -> Callable[..., Any] | None:
    found = _KNOWN.get(fingerprint(kind.forward) or "")
    return found if found is not None and kind.forward.__globals__.get("torch") is torch else None


def take(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Make these modules give their convolutions a `Joined`."""
    for name in names:
        module = model.get_submodule(name)
        vars(module)[_VIDEO] = _known(type(module))
        change_class(module, HandsOnPlanes)


class HandsOnPlanes(Changed):
    """A module with a known forward, which joins nothing."""

    def forward(self, *args: Any, **named: Any) -> Any:
        try:
            x = tensor_of(vars(self)[_VIDEO](self, *args, **named))
            count = self.kernel_size[0] - 1
        except (AttributeError, TypeError):  # of a call that the module's own forward refuses
            x = None
        if not isinstance(x, Tensor) or not _takes_planes(self.conv, x, count):
            return super().forward(*args, **named)
        return self.conv(handed_on(Joined, x, count))


def _takes_planes(convolution: Any, x: Tensor, count: int) -> bool:
    """Whether a convolution of x with copies of its first plane in front is one call with initial frames."""
    return (
        x.dim() == 5
        and x.shape[2] > 0
        and 0 < count < convolution.kernel_size[0]
        and convolution.padding_mode == "zeros"
        and convolution.padding[0] == 0
        and not is_hooked(convolution)
        and not modes.is_autocast(x.device.type)
    )
