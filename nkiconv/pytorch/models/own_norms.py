"""Subclasses of torch's norms of channels with their own forward, as timm's BatchNormAct2d, which has an activation.

The class proves nothing: such a norm runs in float64 beside its base class, in both modes, and must return the base's
result, activated, and leave the same buffers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...activations import ACTIVATIONS
from ..computers.host import activate
from ..norm_act_modules import is_hooked
from .norms import alone_of, are_close

#: Attribute of a norm: the result of `activation_within`.
_OWN = "nkiconv_own_activation"
#: A norm has none.
NO_ACTIVATION = ""
_RANKS = {torch.nn.GroupNorm: 2, torch.nn.BatchNorm1d: 1, torch.nn.BatchNorm2d: 2, torch.nn.BatchNorm3d: 3}


def base_forward_of(norm: Any) -> Any:
    """The forward of torch that a norm has, or has something after."""
    return torch.nn.GroupNorm.forward if isinstance(norm, torch.nn.GroupNorm) else _BatchNorm.forward


def activation_within(norm: Any) -> str | None:
    """nkiconv's name of the activation in a norm's own forward, or NO_ACTIVATION; None: it does something else. Found
    once, and noted on the module."""
    if _OWN not in vars(norm):
        vars(norm)[_OWN] = _seen(norm)
    found: str | None = vars(norm)[_OWN]
    return found


@torch.no_grad()
def _seen(norm: Any) -> str | None:
    rank = next((rank for kind, rank in _RANKS.items() if isinstance(norm, kind)), None)
    if rank is None or is_hooked(*norm.modules()):
        return None
    is_meta = any(one.is_meta for one in norm.state_dict().values())
    alone = alone_of(norm, is_meta)
    generator = torch.Generator().manual_seed(0)
    for one in alone.state_dict().values():
        one.copy_(8 * torch.rand(one.shape, dtype=torch.float64, generator=generator) + 1)
    channels = norm.num_channels if isinstance(norm, torch.nn.GroupNorm) else norm.num_features
    x = torch.randn(3, channels, *[4] * rank, dtype=torch.float64, generator=generator)
    names = {NO_ACTIVATION, *ACTIVATIONS}
    for training in (False, True):
        own, base = (copy.deepcopy(alone).train(training) for _ in range(2))
        try:
            y, z = own(x.clone()), base_forward_of(norm)(base, x)
        except Exception:  # the norm's own code may raise any exception
            return None
        names = {name for name in names if are_close(y, activate(z, name) if name else z)}
        buffers = zip(own.state_dict().values(), base.state_dict().values(), strict=True)
        if not names or not all(are_close(*pair) for pair in buffers):
            return None
    return min(names)
