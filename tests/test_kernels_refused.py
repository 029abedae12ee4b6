"""What public kernels say, called bare, of an argument that is no tensor."""

import inspect

import ml_dtypes
import numpy as np
import pytest

import nkiconv
from nkiconv.kernels import _arguments

ROWS, IMAGES, VOLUMES = (np.ones((1, 2, *axes), np.float32) for axes in ((1, 8), (8, 8), (4, 8, 8)))
ROW_TAPS, TAPS, CUBES = (
    np.ones((2, 1, 1, 3), np.float32),
    *(np.ones((2, 2, *taps), np.float32) for taps in ((3, 3), (3, 3, 3))),
)
#: Kernels, and arguments that they run with.
KERNELS = {
    "depthwise_conv1d_implicit_gemm": {"img_ref": ROWS, "filter_ref": ROW_TAPS},
    "depthwise_conv1d_weight_gradient": {"img_ref": ROWS, "grad_ref": ROWS[..., 2:], "filter_shape": ROW_TAPS.shape},
    "conv2d_implicit_gemm": {"img_ref": IMAGES, "filter_ref": TAPS},
    "conv3d_implicit_gemm": {"img_ref": VOLUMES, "filter_ref": CUBES},
    "conv_transpose2d_implicit_gemm": {"img_ref": IMAGES, "filter_ref": TAPS},
    "conv_transpose3d_implicit_gemm": {"img_ref": VOLUMES, "filter_ref": CUBES},
    "conv_weight_gradient": {"img_ref": IMAGES, "grad_ref": IMAGES[..., 2:, 2:], "filter_shape": TAPS.shape},
    "channel_statistics": {"img_ref": IMAGES},
    "norm_scale_and_shift": {"stats": (np.ones((1, 1, 2, 3), np.float32),), "norm": "batch"},
    "pointwise_mlp_fused": {"x_ref": IMAGES, "w1_ref": TAPS[..., 0, 0], "w2_ref": TAPS[..., 0, 0]},
    "b2b_causal_conv1d_fused": {
        "x_ref": np.ones((1, 6, 8), np.float32),
        "proj_ref": np.ones((6, 3), np.float32),
        "mixer_ref": np.ones((2, 3), np.float32),
    },
    "causal_conv1d_split_heads": {"x_ref": ROWS[:, :, 0], "w_ref": ROW_TAPS[:, 0, 0], "splits": ((1, 2, False),)},
    "causal_conv1d_split_step": {
        "x_ref": ROWS[:, :, 0, :1],
        "state_ref": ROWS[:, :, 0, :2],
        "w_ref": ROW_TAPS[:, 0, 0],
        "splits": ((1, 2, False),),
    },
}


RANKS = [
    ("b2b_causal_conv1d_fused", "x_ref", (6, 64)),
    ("b2b_causal_conv1d_fused", "proj_ref", (6,)),
    ("b2b_causal_conv1d_fused", "mixer_ref", (2, 3, 7)),
    ("pointwise_mlp_fused", "x_ref", (2,)),
]


@pytest.mark.parametrize(("name", "tensor", "shape"), RANKS)
def test_what_has_other_axes(name, tensor, shape):
    with pytest.raises(ValueError, match=f"assert: {tensor}.shape=.*must have .* axes"):
        nkiconv.simulate(getattr(nkiconv, name))(**KERNELS[name] | {tensor: np.ones(shape, np.float32)})


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_no_tensor(name):
    kernel, given = getattr(nkiconv, name), KERNELS[name]
    nkiconv.simulate(kernel)(**given)
    tensors = [one for one in inspect.signature(kernel).parameters if one.endswith("_ref") or one == "stats"]
    tensors += sorted(_arguments.OPTIONAL & set(inspect.signature(kernel).parameters))
    for tensor in tensors:
        for wrong in (3, "x", (1,), np.float32, np, np.float32(3)):
            with pytest.raises(ValueError, match=f"assert: {tensor}=.*must be"):
                nkiconv.simulate(kernel)(**given | {tensor: wrong})


NHWC_FP8 = {
    name: np.ones(shape, ml_dtypes.float8_e4m3)
    for name, shape in (("img_ref", (1, 8, 8, 64)), ("filter_ref", (64, 64, 1, 1)))
}
NHWC_FP8 |= {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1), "y_norm": "rms"}


SPREAD = {"img_ref": VOLUMES, "grad_ref": VOLUMES, "filter_shape": CUBES.shape}


@pytest.mark.parametrize(("name", "given", "remedy"), [
    ("conv_weight_gradient", SPREAD, "stride=.*one for each axis"),
    ("conv2d_implicit_gemm", NHWC_FP8, "store y as NCHW"),
])  # fmt: skip
def test_remedies_that_help(name, given, remedy):
    with pytest.raises(ValueError, match=remedy):
        nkiconv.simulate(getattr(nkiconv, name))(**given)
