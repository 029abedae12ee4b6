"""nkiconv: convolutions for AWS Trainium, as NKI kernels that run on trn2 and in a simulator on any machine.

`nkiconv.pytorch` has the same for torch tensors and models, `nkiconv.simulator` is NKI on NumPy, and
`nkiconv.simulator.profiling` says where a kernel's modelled time goes.

Names are imported when they are first used: only then does a NKICONV_NKI that cannot be satisfied raise, and
`nkiconv doctor` can explain it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    ComparisonError,
    DtypeError,
    FileFormatError,
    GeometryError,
    LaunchWarning,
    LayoutError,
    MissingPackageError,
    NkiconvError,
    PlanningError,
    PlanWarning,
    UnsupportedError,
)

if TYPE_CHECKING:
    from . import pytorch, simulator
    from ._nki import simulate
    from .api.b2b import b2b_causal_conv1d
    from .api.causal_conv1d_split import causal_conv1d_split, causal_conv1d_split_update
    from .api.conv import conv2d, conv3d
    from .api.conv1d import conv1d, depthwise_conv2d
    from .api.conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
    from .api.depthwise_conv1d import depthwise_conv1d
    from .api.depthwise_gradients import depthwise_conv1d_input, depthwise_conv1d_weight
    from .api.gated import gated_short_conv, glu_conv1d
    from .api.gradients import (
        conv1d_input,
        conv1d_weight,
        conv2d_input,
        conv2d_weight,
        conv3d_input,
        conv3d_weight,
    )
    from .api.pack_filter import pack_filter
    from .api.pointwise_mlp import pointwise_mlp
    from .api.statistics import ScaleShift, channel_stats, norm_scale_shift
    from .api.transposed_gradients import (
        conv_transpose1d_weight,
        conv_transpose2d_weight,
        conv_transpose3d_weight,
    )
    from .kernels.blocks.b2b_causal_conv1d import b2b_causal_conv1d_fused
    from .kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads, causal_conv1d_split_step
    from .kernels.blocks.pointwise_mlp import pointwise_mlp_fused
    from .kernels.conv import (
        conv2d_implicit_gemm,
        conv3d_implicit_gemm,
        conv_transpose2d_implicit_gemm,
        conv_transpose3d_implicit_gemm,
    )
    from .kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
    from .kernels.gradients import conv_weight_gradient
    from .kernels.gradients.depthwise_conv1d import depthwise_conv1d_weight_gradient
    from .kernels.statistics import channel_statistics, norm_scale_and_shift
    from .planner import Plan
    from .planner.entry import plan
    from .problem import ConvProblem
    from .simulator import ArraySpec
    from .simulator.profiling import Profile, profile

__version__ = "0.1.0"

__all__ = [
    "ArraySpec",
    "ComparisonError",
    "ConvProblem",
    "DtypeError",
    "FileFormatError",
    "GeometryError",
    "LaunchWarning",
    "LayoutError",
    "MissingPackageError",
    "NkiconvError",
    "Plan",
    "PlanWarning",
    "PlanningError",
    "Profile",
    "ScaleShift",
    "UnsupportedError",
    "b2b_causal_conv1d",
    "b2b_causal_conv1d_fused",
    "causal_conv1d_split",
    "causal_conv1d_split_heads",
    "causal_conv1d_split_step",
    "causal_conv1d_split_update",
    "channel_statistics",
    "channel_stats",
    "conv1d",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_implicit_gemm",
    "conv2d_input",
    "conv2d_weight",
    "conv3d",
    "conv3d_implicit_gemm",
    "conv3d_input",
    "conv3d_weight",
    "conv_transpose1d",
    "conv_transpose1d_weight",
    "conv_transpose2d",
    "conv_transpose2d_implicit_gemm",
    "conv_transpose2d_weight",
    "conv_transpose3d",
    "conv_transpose3d_implicit_gemm",
    "conv_transpose3d_weight",
    "conv_weight_gradient",
    "depthwise_conv1d",
    "depthwise_conv1d_implicit_gemm",
    "depthwise_conv1d_input",
    "depthwise_conv1d_weight",
    "depthwise_conv1d_weight_gradient",
    "depthwise_conv2d",
    "gated_short_conv",
    "glu_conv1d",
    "norm_scale_and_shift",
    "norm_scale_shift",
    "pack_filter",
    "plan",
    "pointwise_mlp",
    "pointwise_mlp_fused",
    "profile",
    "pytorch",
    "simulate",
    "simulator",
    "spec",
]

#: Modules that are imported when they are first used, as names are; pytorch needs torch.
_MODULES = ("pytorch", "simulator")

#: Where each name is.
_HOMES = {
    "ArraySpec": "simulator",
    "ConvProblem": "problem",
    "Plan": "planner",
    "Profile": "simulator.profiling",
    "ScaleShift": "api.statistics",
    "b2b_causal_conv1d": "api.b2b",
    "b2b_causal_conv1d_fused": "kernels.blocks.b2b_causal_conv1d",
    "causal_conv1d_split": "api.causal_conv1d_split",
    "causal_conv1d_split_heads": "kernels.blocks.causal_conv1d_split",
    "causal_conv1d_split_step": "kernels.blocks.causal_conv1d_split",
    "causal_conv1d_split_update": "api.causal_conv1d_split",
    "channel_statistics": "kernels.statistics",
    "channel_stats": "api.statistics",
    "conv1d": "api.conv1d",
    "conv2d": "api.conv",
    "conv3d": "api.conv",
    "conv2d_implicit_gemm": "kernels.conv",
    "conv3d_implicit_gemm": "kernels.conv",
    "conv_transpose1d": "api.conv_transpose",
    "conv_transpose2d": "api.conv_transpose",
    "conv_transpose3d": "api.conv_transpose",
    "conv_transpose2d_implicit_gemm": "kernels.conv",
    "conv_transpose3d_implicit_gemm": "kernels.conv",
    "conv_transpose1d_weight": "api.transposed_gradients",
    "conv_transpose2d_weight": "api.transposed_gradients",
    "conv_transpose3d_weight": "api.transposed_gradients",
    "conv1d_input": "api.gradients",
    "conv1d_weight": "api.gradients",
    "conv2d_input": "api.gradients",
    "conv2d_weight": "api.gradients",
    "conv3d_input": "api.gradients",
    "conv3d_weight": "api.gradients",
    "conv_weight_gradient": "kernels.gradients",
    "depthwise_conv1d": "api.depthwise_conv1d",
    "depthwise_conv1d_implicit_gemm": "kernels.depthwise_conv1d",
    "depthwise_conv1d_input": "api.depthwise_gradients",
    "depthwise_conv1d_weight": "api.depthwise_gradients",
    "depthwise_conv1d_weight_gradient": "kernels.gradients.depthwise_conv1d",
    "depthwise_conv2d": "api.conv1d",
    "gated_short_conv": "api.gated",
    "glu_conv1d": "api.gated",
    "norm_scale_and_shift": "kernels.statistics",
    "norm_scale_shift": "api.statistics",
    "pack_filter": "api.pack_filter",
    "plan": "planner.entry",
    "pointwise_mlp": "api.pointwise_mlp",
    "pointwise_mlp_fused": "kernels.blocks.pointwise_mlp",
    "profile": "simulator.profiling",
    "simulate": "_nki",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


def spec(shape: tuple[int, ...], dtype: Any) -> ArraySpec:
    """Shape and dtype of an array that is never made; stands for it where a kernel is only traced.

    Args:
        shape: positive ints.
        dtype: as nki.language, NumPy or ConvProblem name it.

    Returns: an `ArraySpec`.

    Raises: NkiError (NKI001, NKI002).
    """
    made: ArraySpec = importlib.import_module(".simulator", __name__).ArraySpec(shape, dtype)
    return made
