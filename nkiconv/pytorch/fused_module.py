"""The common part of convolution modules: arguments besides torch's, their checks, padding other than zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parametrize

from .. import rules
from ..errors import refused, shown
from .computers import modes
from .errors import GeometryError, UnsupportedError, raise_all
from .function_modes import refuse_script
from .operators.filters import Freezes
from .operators.tensor_kinds import tensor_violations
from .places import int_of

# torch.fx traces a model with these modules into calls of this function, which it does not look into.
torch.fx.wrap("padded")

#: torch's ways to pad.
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class Fused(Freezes):
    """nkiconv's additions to torch's module of the same name, which comes next in the order of base classes."""

    #: Accepted values of padding_mode and x_upsample.
    padding_modes: tuple[str, ...] = PADDING_MODES
    upsamples: tuple[int, ...] = (1,)
    activation: str | None = None
    residual_position: str = "pre_activation"
    layer: str | None = None
    strict_nonfinite: bool | None = None
    x_upsample: int = 1

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
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        residual_position: str = "pre_activation",
        layer: str | None = None,
        strict_nonfinite: bool | None = None,
        x_upsample: int = 1,
    ) -> None:
        numbers = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        self._init((*numbers, device, dtype), activation, residual_position, layer, strict_nonfinite, x_upsample)

    def _init(
        self, of_torch: Sequence[Any], activation: Any, residual_position: Any, layer: Any, strict: Any, times: Any = 1
    ) -> None:
        """Initialize torch's module and this; of_torch: padding_mode, device and dtype are the last of them."""
        padding_mode, x_upsample = of_torch[-3], int_of(times)
        wrong = [rules.accepted("padding_mode", padding_mode, self.padding_modes), rules.activation(activation)]
        wrong.append(rules.accepted("x_upsample", x_upsample, self.upsamples, "use one of them, or upsample the input"))
        if x_upsample != 1 and padding_mode != "zeros":
            wrong.append(f"padding_mode={padding_mode!r}: must be 'zeros' with x_upsample; upsample the input before")
        errors = refused(UnsupportedError, *wrong, rules.residual_position(residual_position))
        raise_all(f"{type(self).__name__} cannot be built", list(errors))
        modes.wants_strict_nonfinite(strict)
        super().__init__(*of_torch)
        self.activation, self.residual_position, self.layer = activation, residual_position, layer
        self.strict_nonfinite, self.x_upsample = strict, x_upsample

    @property
    def operator(self) -> str:
        """The operator `torch.ops.nkiconv.*` that forward calls."""
        return operator_of(cast("torch.nn.Conv1d", self))

    def _fused(self) -> dict[str, Any]:
        """The arguments that every function takes, by name."""
        layer = modes.told_layer(self.layer)
        found = {"activation": self.activation, "layer": layer, "strict_nonfinite": self.strict_nonfinite}
        return found if self.x_upsample == 1 else found | {"x_upsample": self.x_upsample}

    def _around(self, input: Tensor) -> tuple[Tensor, Any]:
        """(input with pixels around it where padding_mode asks for them, the padding that is left)."""
        conv = cast("torch.nn.Conv1d", self)
        if conv.padding_mode == "zeros":
            return input, conv.padding
        return padded(input, conv._reversed_padding_repeated_twice, conv.padding_mode), 0

    def _convolved(self, function: Callable[..., Any], input: Tensor, residual: Tensor | None, **more: Any) -> Any:
        """forward's y by one of the functions; more: of its arguments, before the module's own; other padding than
        zeros is before."""
        conv = cast("torch.nn.Conv1d", self)
        weight, packed = self._filters(input)
        input, padding = self._around(input)
        numbers = conv.stride, padding, conv.dilation, conv.groups
        named = {"residual_position": self.residual_position, **self._fused(), **more}
        return function(input, weight, conv.bias, *numbers, residual=residual, packed=packed, **named)

    __prepare_scriptable__ = refuse_script

    def extra_repr(self) -> str:
        """As torch's, the activation, and when a frozen filter was made."""
        text: str = super().extra_repr()
        if self.is_frozen:
            text += f", weight={vars(self)['weight']!r}"
        text += "" if self.x_upsample == 1 else f", x_upsample={self.x_upsample}"
        return text if self.activation is None else f"{text}, activation={self.activation}"


def operator_of(module: Any) -> str:
    """The operator that `functional` takes for a module's filters."""
    rank = len(module.kernel_size)
    if module.transposed:
        return f"conv_transpose{rank}d"
    if rank > 1:
        return f"conv{rank}d"
    return "depthwise_conv1d" if module.groups == module.in_channels == module.out_channels else "conv1d"


def filter_shape(module: Any) -> tuple[int, ...]:
    """Of a convolution's filters, which are not computed where they are parametrized."""
    channels = module.out_channels, module.in_channels // module.groups
    if module.transposed:
        channels = module.in_channels, module.out_channels // module.groups
    return (*channels, *module.kernel_size)


def stored_filter(module: Any) -> Tensor:
    """Of a layer, a tensor with its weight's dtype and device, which is not computed where it is parametrized: that may
    draw numbers, or move the estimates of a spectral norm."""
    if parametrize.is_parametrized(module, "weight"):
        found: Tensor = next(module.parametrizations["weight"].parameters())
        return found
    weight: Tensor = module.weight
    return weight


def padded(x: Tensor, sides: list[int], mode: str) -> Tensor:
    """Images padded by copies of their pixels; sides: as in torch.nn.functional.pad."""
    raise_all("these images cannot be padded", list(tensor_violations("input", x)))
    try:
        return F.pad(x, sides, mode=mode)
    except (RuntimeError, NotImplementedError) as error:  # more than there is to reflect, or another rank
        raise GeometryError(
            f"input.shape={tuple(x.shape)}: cannot be padded by {sides} with padding_mode={shown(mode)} ({error}); pad "
            f"less, or give larger images"
        ) from error
