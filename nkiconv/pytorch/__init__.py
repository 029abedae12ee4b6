"""nkiconv's convolutions for PyTorch: on a Neuron device the NKI kernels, on the host torch or the simulator.

    from nkiconv import pytorch as nkiconv_torch
    y = nkiconv_torch.conv2d(x, weight, bias, padding=1, activation="silu")

On cpu, NKICONV_CPU selects the backend: "torch" (the default), "simulate" (the kernel, in the simulator) or "compare"
(both; they must agree). Importing this module registers the operators `torch.ops.nkiconv.*`. Where torch computes,
calls go to torch's own functions, unless torch.compile, torch.export, torch.jit.trace or a TorchDispatchMode is active.
Either way derivatives work in both modes, twice and under torch.func's transforms, and refusals are RuntimeErrors too.

`causal_conv1d_fn` and `causal_conv1d_update` have the signatures of the package causal-conv1d;
`install_causal_conv1d()` makes libraries that import that package find them. `serving` has functions of these names
with vLLM's arguments, `fla` with flash-linear-attention's. `nn` has modules, `convert(model)` replaces a model's
convolutions by them, `intercept` replaces torch's functions within a block, `plan_model` models their time on trn2.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackageError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingPackageError.of(
        "nkiconv.pytorch", "torch", "torch", "Builds for CPUs are a tenth of the size: docs/torch.md, Install"
    ) from None

from . import fla, nn, serving
from .b2b import b2b_causal_conv1d
from .causal.functions import causal_conv1d_fn, causal_conv1d_update
from .causal.install import install_causal_conv1d
from .causal.split import causal_conv1d_split, causal_conv1d_split_update
from .chunks import conv1d_chunk, conv_transpose1d_chunk
from .computers.modes import set_strict_nonfinite, strict_nonfinite
from .functional import conv1d, conv2d, conv3d, depthwise_conv1d, depthwise_conv2d
from .gated import gated_short_conv, glu_conv1d
from .models.intercept import intercept
from .norm_act import channel_stats, norm_act_conv1d, norm_act_conv2d, norm_act_conv3d, norm_scale_shift
from .operators.filters import pack_filter
from .pointwise import pointwise_mlp
from .streams import StreamingConv1d, StreamingConvTranspose1d
from .transposed import conv_transpose1d, conv_transpose2d, conv_transpose3d, polyphase_filter

if TYPE_CHECKING:
    from .models.conversion import convert
    from .models.flops import Share
    from .models.model_plan import ModelPlan, plan_model
    from .models.report import Report

__all__ = [
    "ModelPlan",
    "Report",
    "Share",
    "StreamingConv1d",
    "StreamingConvTranspose1d",
    "b2b_causal_conv1d",
    "causal_conv1d_fn",
    "causal_conv1d_split",
    "causal_conv1d_split_update",
    "causal_conv1d_update",
    "channel_stats",
    "conv1d",
    "conv1d_chunk",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose1d_chunk",
    "conv_transpose2d",
    "conv_transpose3d",
    "convert",
    "depthwise_conv1d",
    "depthwise_conv2d",
    "fla",
    "gated_short_conv",
    "glu_conv1d",
    "install_causal_conv1d",
    "intercept",
    "nn",
    "norm_act_conv1d",
    "norm_act_conv2d",
    "norm_act_conv3d",
    "norm_scale_shift",
    "pack_filter",
    "plan_model",
    "pointwise_mlp",
    "polyphase_filter",
    "serving",
    "set_strict_nonfinite",
    "strict_nonfinite",
]

#: Names imported on first use, and their modules in `models`: with the planner and torch's symbols their import takes
#: over a second.
_HOMES = {
    "ModelPlan": "model_plan",
    "Report": "report",
    "Share": "flops",
    "convert": "conversion",
    "plan_model": "model_plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".models.{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
