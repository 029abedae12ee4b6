"""torch.nn's convolutions by nkiconv's kernels, with an activation and a residual fused in.

    conv = nkiconv.pytorch.nn.Conv2d(64, 64, 3, padding=1, activation="relu")
    y = conv(x, residual)

Parameters, their names and how they are initialized are torch's: a state_dict of either loads into the other.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from .. import rules
from ..errors import refuse
from .blocks import GatedDeltaConv
from .chunks import FRONTS, in_front, sides_of
from .errors import UnsupportedError
from .functional import conv1d, conv2d, conv3d
from .fused_module import Fused, padded
from .gated_modules import ConformerConv, GatedShortConv
from .norm_act_modules import NormActConv
from .operators.frames import last
from .transposed import conv_transpose1d, conv_transpose2d, conv_transpose3d

__all__ = [
    "CausalConv1d",
    "CausalConv3d",
    "ConformerConv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "GatedDeltaConv",
    "GatedShortConv",
    "NormActConv1d",
    "NormActConv2d",
    "NormActConv3d",
]

# torch.fx traces a model with these modules into calls of these functions, which it does not look into.
torch.fx.wrap("conv1d")
torch.fx.wrap("conv2d")
torch.fx.wrap("conv3d")
torch.fx.wrap("conv_transpose1d")
torch.fx.wrap("conv_transpose2d")
torch.fx.wrap("conv_transpose3d")
torch.fx.wrap("padded")


class Conv1d(Fused, torch.nn.Conv1d):
    """`torch.nn.Conv1d` of [N, C, W] or [C, W]; one filter a channel goes to the depthwise kernel.

    Args:
        in_channels, ..., dtype: torch's own. Where padding_mode is not "zeros", torch pads, then the kernel runs.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`, as in "silu"; fused.
        residual_position: where forward's residual is added: "pre_activation" or "post_activation".
        layer: a name for messages.
        strict_nonfinite: as in `functional.conv1d`; None: as `set_strict_nonfinite` says when forward runs.

    Raises: UnsupportedError, KindError.
    """

    def forward(self, input: Tensor, residual: Tensor | None = None, *, return_stats: str | None = None) -> Any:
        """y [N, K, Q] of input [N, C, W]; residual: of y's shape. The rest, and errors, as in `functional.conv1d`."""
        return self._convolved(conv1d, input, residual, return_stats=return_stats)


class Conv2d(Fused, torch.nn.Conv2d):
    """`torch.nn.Conv2d` of [N, C, H, W] or [C, H, W].

    Args:
        x_upsample: 1, or 2: convolve the result of `torch.nn.Upsample(scale_factor=2)` of the input, as in
            `functional.conv2d`; padding_mode must be "zeros".
        The rest, and errors: as in `Conv1d`, whose x_upsample is 1.
    """

    upsamples = rules.UPSAMPLES

    def forward(self, input: Tensor, residual: Tensor | None = None, *, return_stats: str | None = None) -> Any:
        """y [N, K, P, Q] of input [N, C, H, W]; residual: of y's shape. The rest as in `functional.conv2d`."""
        return self._convolved(conv2d, input, residual, return_stats=return_stats)


class Conv3d(Fused, torch.nn.Conv3d):
    """`torch.nn.Conv3d` of [N, C, D, H, W] or [C, D, H, W]. Arguments and errors as in `Conv1d`."""

    def forward(self, input: Tensor, residual: Tensor | None = None, *, return_stats: str | None = None) -> Any:
        """y [N, K, Z, P, Q] of input [N, C, D, H, W]; residual: of y's shape. The rest as in `functional.conv3d`."""
        return self._convolved(conv3d, input, residual, return_stats=return_stats)


class _Transposed(Fused):
    """nkiconv's additions to torch's transposed modules, like `Fused`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        residual_position: str = "pre_activation",
        layer: str | None = None,
        strict_nonfinite: bool | None = None,
    ) -> None:
        of_torch = in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation
        ours = activation, residual_position, layer, strict_nonfinite
        self._init((*of_torch, padding_mode, device, dtype), *ours)

    def forward(
        self, input: Tensor, output_size: Any = None, *, residual: Tensor | None = None, return_stats: str | None = None
    ) -> Any:
        """y [N, K, ...] of input [N, C, ...]; output_size: torch's, of y's extents among those that stride allows;
        residual: of y's shape. The rest, and errors, as in `conv_transpose1d`."""
        conv = cast("torch.nn.ConvTranspose1d", self)
        ends: Any = conv.output_padding
        if output_size is not None:
            numbers = conv.stride, conv.padding, conv.kernel_size, len(conv.kernel_size), conv.dilation
            ends = conv._output_padding(input, output_size, *numbers)  # type: ignore[arg-type]
        numbers = conv.stride, conv.padding, ends, conv.groups, conv.dilation
        more = {"residual": residual, "residual_position": self.residual_position, "return_stats": return_stats}
        return self._called(input, conv.weight, conv.bias, *numbers, **more, **self._fused())

    def _called(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError


class ConvTranspose1d(_Transposed, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` of [N, C, W] or [C, W].

    Args:
        in_channels, ..., dtype: torch's own.
        activation, residual_position, layer, strict_nonfinite: as in `Conv1d`.

    Raises: UnsupportedError.
    """

    def _called(self, *args: Any, **named: Any) -> Any:
        return conv_transpose1d(*args, **named)


class ConvTranspose2d(_Transposed, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` of [N, C, H, W] or [C, H, W]. Arguments and errors as in `ConvTranspose1d`."""

    def _called(self, *args: Any, **named: Any) -> Any:
        return conv_transpose2d(*args, **named)


class ConvTranspose3d(_Transposed, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` of [N, C, D, H, W] or [C, D, H, W]. Arguments and errors as in `ConvTranspose1d`."""

    def _called(self, *args: Any, **named: Any) -> Any:
        return conv_transpose3d(*args, **named)


class CausalConv1d(Conv1d):
    """`Conv1d` with (S - 1) * dilation zeros in front of a row and none after it: no output sees a later input.

    The zeros are never stored: the kernel leaves them out. Depthwise where groups, in_channels and out_channels are
    equal. There is no padding to choose; the other arguments are `Conv1d`'s.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        **fused: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, 0, dilation, groups, bias, "zeros", device, dtype, **fused
        )
        self.padding = "causal"


class CausalConv3d(Conv3d):
    """`Conv3d` of videos, causal in time: zeros, a chunk's cache or copies of the first frame in front, none after.

    Args:
        padding: (height, width), with (T - 1) * dilation planes in front, so that no output reads a later input; or an
            int or (depth, height, width), with 2 * depth planes in front, as in diffusers' causal modules.
        time_padding: the planes in front of a video: "zeros", which are never stored, or "replicate", its first frame.
            padding_mode: of height and width, as in torch.
        The rest: as in `Conv1d`. Parameters are those of `torch.nn.Conv3d`.

    Raises: UnsupportedError, GeometryError, TypeError.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, ...] = (0, 0),
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        time_padding: str = "zeros",
        **fused: Any,
    ) -> None:
        refuse(UnsupportedError, rules.accepted("time_padding", time_padding, FRONTS))
        numbers = in_channels, out_channels, kernel_size, stride, 0, dilation, groups, bias, padding_mode
        super().__init__(*numbers, device, dtype, **fused)
        self.time_padding = time_padding
        self.sides = sides_of(padding, (self.kernel_size[0] - 1) * self.dilation[0] + 1)

    def forward(  # type: ignore[override]  # the cache comes first, as diffusers' callers pass it
        self,
        input: Tensor,
        cache_x: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        return_final_frames: bool | int = False,
    ) -> Any:
        """y [N, K, Z, P, Q] of input [N, C, D, H, W].

        Args:
            cache_x: [N, C, F, H, W], the planes before input; padding in front makes up for missing ones.
            residual: of y's shape.
            return_final_frames: also return the cache_x of the next chunk, as `functional.conv3d` does.
        """
        weight, packed = self._filters(input)
        frames, front = in_front(input, cache_x, self.sides[0][0], self.time_padding)
        images, before, padding = input, frames, ((front, 0), *self.sides[1:])
        if self.padding_mode != "zeros":
            around = [side for pair in self.sides[:0:-1] for side in pair] + [0, 0]
            images, padding = padded(input, around, self.padding_mode), ((front, 0), (0, 0), (0, 0))
            before = None if frames is None else padded(frames, around, self.padding_mode)
        numbers = self.stride, padding, self.dilation, self.groups
        more = {"residual": residual, "residual_position": self.residual_position, **self._fused()}
        y = conv3d(images, weight, self.bias, *numbers, **more, packed=packed, initial_frames=before)
        if return_final_frames is False:
            return y
        window = (self.kernel_size[0] - 1) * self.dilation[0] + 1
        return y, last(input, frames, return_final_frames, window)

    def extra_repr(self) -> str:
        """As torch's, with the padding."""
        return f"{super().extra_repr()}, padding={self.sides}, time_padding={self.time_padding}"


class NormActConv1d(NormActConv):
    """`NormActConv2d` of [N, C, W] or [C, W]."""

    rank, ours, theirs = 1, Conv1d, torch.nn.Conv1d
    kinds = torch.nn.GroupNorm, torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d


class NormActConv2d(NormActConv):
    """conv(x_activation(norm(x))) of [N, C, H, W] or [C, H, W], the norm and the activation on the way in.

    Its submodules are `norm`, torch's norm, and `conv`, nkiconv's `Conv2d`: a state_dict has norm.weight, norm.bias,
    norm.running_mean, conv.weight, ... In training mode a BatchNorm's running statistics move as torch's.
    `NormActConv2d.of(norm, "silu", conv)` shares the parameters of a model's modules.

    Args:
        in_channels, ..., bias: as in `Conv2d`, which pads with zeros after the norm. device, dtype: of all parameters.
        norm: "group", "batch" or "instance". num_groups: of "group"; None: 32. eps, affine: as in torch's norms.
        momentum, track_running_stats: of "batch", as in torch.
        x_activation: the activation after the norm, None or a name of `nkiconv.rules.ACTIVATIONS`.
        fused: activation, residual_position, layer, strict_nonfinite and x_upsample of `Conv2d`.

    Raises: UnsupportedError, GeometryError, KindError.
    """

    rank, ours, theirs = 2, Conv2d, torch.nn.Conv2d
    kinds = torch.nn.GroupNorm, torch.nn.BatchNorm2d, torch.nn.InstanceNorm2d


class NormActConv3d(NormActConv):
    """`NormActConv2d` of [N, C, D, H, W] or [C, D, H, W]."""

    rank, ours, theirs = 3, Conv3d, torch.nn.Conv3d
    kinds = torch.nn.GroupNorm, torch.nn.BatchNorm3d, torch.nn.InstanceNorm3d
