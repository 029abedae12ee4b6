"""The base of NormActConv1d to NormActConv3d: a norm of channels, an activation and a convolution in one kernel."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .. import norms, rules
from ..errors import refused
from .errors import GeometryError, NkiconvError, UnsupportedError, raise_all
from .function_modes import refuse_script
from .norm_act import BY_RANK
from .places import int_of, number_of

if TYPE_CHECKING:
    from typing import Self  # which came with Python 3.11

#: Dicts of a module's hooks; hooks do not run where a kernel replaces the module.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(*modules: Any) -> bool:
    """Whether one of these modules has hooks."""
    return any(getattr(one, hooks) for one in modules for hooks in _HOOKS)


@torch.fx.wrap
def _norm_act_conv(rank: int, *args: Any, **named: Any) -> Any:
    """norm_act_conv*d of so many axes; torch.fx does not look into it."""
    return BY_RANK[rank](*args, **named)


def running_statistics(norm: Any, counts: bool = True) -> dict[str, Any]:
    """A BatchNorm's arguments of `norm_act_conv2d` besides weight and bias, by torch's rule; counts: whether this is a
    batch of training, which is counted."""
    if norm.running_mean is None or norm.running_var is None or (norm.training and not norm.track_running_stats):
        return {}
    running = {"running_mean": norm.running_mean, "running_var": norm.running_var, "training": norm.training}
    if not norm.training or not counts:
        return running
    norm.num_batches_tracked.add_(1)
    # without a momentum, running statistics are the mean of all batches
    share = 1.0 / norm.num_batches_tracked.to(norm.running_mean.dtype) if norm.momentum is None else norm.momentum
    return {**running, "momentum": share}


class NormActConv(torch.nn.Module):
    """A norm, an activation and a convolution; see `nkiconv.pytorch.nn.NormActConv2d`."""

    #: Axes of images; our convolution and torch's; torch's norms, in the order of `nkiconv.norms.NORMS`.
    rank: ClassVar[int]
    ours: ClassVar[Any]
    theirs: ClassVar[Any]
    kinds: ClassVar[tuple[Any, Any, Any]]
    norm: Any
    conv: Any
    x_activation: str | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        norm: str = "group",
        num_groups: int | None = None,
        eps: float = 1e-5,
        affine: bool = True,
        momentum: float | None = 0.1,
        track_running_stats: bool = True,
        x_activation: str | None = "silu",
        **fused: Any,
    ) -> None:
        eps, momentum, num_groups = number_of(eps), number_of(momentum), int_of(num_groups)
        moved = "" if momentum is None else norms.momentum(momentum)
        wrong: list[NkiconvError] = [*refused(UnsupportedError, norms.norm(norm), norms.eps(eps), moved)]
        if not wrong:
            wrong += refused(GeometryError, *norms.num_groups(num_groups, norm, in_channels))
        raise_all(f"{type(self).__name__} cannot be built", wrong)
        kind, where = self.kinds[norms.NORMS.index(norm)], {"device": device, "dtype": dtype}
        if norm == "group":
            made = kind(num_groups or norms.NUM_GROUPS, in_channels, eps, affine, **where)
        elif norm == "batch":
            made = kind(in_channels, eps, momentum, affine, track_running_stats, **where)
        else:
            made = kind(in_channels, eps, affine=affine, **where)
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        conv = self.ours(*sizes, device=device, dtype=dtype, **fused)
        super().__init__()
        self._hold(made, x_activation, conv)

    @classmethod
    def of(cls, norm: torch.nn.Module, x_activation: str | None, conv: torch.nn.Module) -> Self:
        """A module that shares the parameters and statistics of a model's norm and the convolution after it.

        Args:
            norm: torch's GroupNorm, or, of this rank, BatchNorm or InstanceNorm without running statistics.
            x_activation: the activation between them, None or a name of `nkiconv.rules.ACTIVATIONS`.
            conv: torch's or nkiconv's convolution of this rank, with zeros for padding.

        Raises: UnsupportedError for subclasses, hooks, other norms, activations and paddings; GeometryError.
        """
        found = cls.__new__(cls)
        torch.nn.Module.__init__(found)
        found._hold(norm, x_activation, conv)
        return found

    def _hold(self, norm: Any, x_activation: str | None, conv: Any) -> None:
        name = type(self).__name__
        wrong = [rules.activation(x_activation, "x_activation", "what the norm gives")]
        if type(norm) not in self.kinds:
            kinds = ", ".join(kind.__name__ for kind in self.kinds)
            wrong.append(f"norm={type(norm).__name__}: accepted are torch.nn's {kinds}; leave it in front")
        elif type(norm) is self.kinds[2] and norm.track_running_stats:
            wrong.append(
                "norm.track_running_stats=True: an InstanceNorm's running statistics are not kept; use torch's"
            )
        if type(conv) not in (self.theirs, self.ours):
            wrong.append(f"conv={type(conv).__name__}: accepted are {self.theirs.__name__} of torch.nn and of ours")
        elif conv.padding_mode != "zeros":
            wrong.append(f"conv.padding_mode={conv.padding_mode!r}: must be 'zeros'; pad what the norm gives by torch")
        for called, module in (("norm", norm), ("conv", conv)):
            if is_hooked(module):
                wrong.append(f"{called}: has hooks, which would not run; remove them")
        raise_all(f"{name} cannot be built", list(refused(UnsupportedError, *wrong)))
        channels = norm.num_channels if isinstance(norm, torch.nn.GroupNorm) else norm.num_features
        if channels != conv.in_channels:
            raise GeometryError(
                f"norm: has {channels} channels, conv takes {conv.in_channels}; pass one that follows it"
            )
        if type(conv) is self.theirs:
            conv = copy.copy(conv)
            vars(conv)["_parameters"] = dict(conv._parameters)  # the same Parameters in a module of its own
            conv.__class__ = self.ours
        self.norm, self.conv, self.x_activation = norm, conv, x_activation
        self.training = norm.training

    def forward(
        self,
        input: Tensor,
        residual: Tensor | None = None,
        *,
        stats: Tensor | Sequence[Tensor] | None = None,
        return_stats: str | None = None,
    ) -> Any:
        """y of input [N, C, ...] or [C, ...]; residual: of y's shape; stats: input's `channel_stats`, if known;
        return_stats="channel": also return y's. Errors as in `norm_act_conv2d`."""
        conv, norm = self.conv, self.norm
        weight, packed = conv._filters(input)
        of_norm = {"norm": norms.NORMS[self.kinds.index(type(norm))], "norm_weight": norm.weight, "eps": norm.eps}
        of_norm |= {"norm_bias": norm.bias, "stats": stats, "x_activation": self.x_activation}
        of_norm |= {"num_groups": norm.num_groups} if of_norm["norm"] == "group" else running_statistics(norm)
        epilogue = {"residual": residual, "residual_position": conv.residual_position, "return_stats": return_stats}
        numbers = conv.stride, conv.padding, conv.dilation, conv.groups
        given: Any = input, weight, conv.bias, *numbers
        return _norm_act_conv(self.rank, *given, **of_norm, **epilogue, **conv._fused(), packed=packed)

    __prepare_scriptable__ = refuse_script

    def extra_repr(self) -> str:
        """The activation between norm and convolution."""
        return f"x_activation={self.x_activation}"
