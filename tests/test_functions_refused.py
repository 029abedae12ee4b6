"""What functions, plans and problems refuse that is no rule of one argument, and what public kernels say, called bare,
of an argument that is no tensor.
"""

import inspect
import re

import ml_dtypes
import numpy as np
import pytest
import torch
from depthwise import arguments

import nkiconv
from nkiconv import ConvProblem, DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.kernels import _arguments
from nkiconv.simulator import KernelAssertionError

FP8 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


X, W, W2 = zeros(2, 6, 9, 11), zeros(4, 6, 3, 2), zeros(4, 3, 3, 2)
ROW, TAPS, VOLUME, FILTER = zeros(2, 5, 40), zeros(5, 4), zeros(2, 6, 4, 5, 7), zeros(4, 6, 2, 3, 3)
GOOD = {
    "conv1d": {"x": zeros(2, 6, 19), "w": zeros(8, 3, 5), "groups": 2},
    "conv2d": {"x": X, "w": W},
    "conv3d": {"x": VOLUME, "w": FILTER},
    "conv_transpose1d": {"x": zeros(2, 6, 9), "w": zeros(6, 4, 4)},
    "conv_transpose2d": {"x": zeros(2, 6, 5, 7), "w": zeros(6, 4, 3, 4)},
    "depthwise_conv1d": {"x": ROW, "w": TAPS},
    "depthwise_conv2d": {"x": zeros(2, 5, 9, 8), "w": zeros(10, 1, 3, 2)},
    "pack_filter": {"w": zeros(4, 4, 3, 3)},
    "conv1d_weight": {"x": zeros(1, 3, 5), "weight_size": (4, 3, 3), "gy": zeros(1, 4, 4)},
    "conv2d_weight": {"x": zeros(1, 3, 5, 5), "weight_size": (4, 3, 3, 3), "gy": zeros(1, 4, 3, 3)},
    "conv1d_input": {"input_size": (1, 3, 6), "w": zeros(4, 3, 3), "gy": zeros(1, 4, 4)},
    "conv2d_input": {"input_size": (1, 3, 5, 5), "w": zeros(4, 3, 3, 3), "gy": zeros(1, 4, 3, 3)},
    "conv_transpose2d_weight": {"x": zeros(1, 4, 5, 5), "weight_size": (4, 3, 3, 3), "gy": zeros(1, 3, 11, 11)},
    "depthwise_conv1d_weight": {"x": zeros(2, 3, 9), "weight_size": (3, 4), "gy": zeros(2, 3, 6)},
    "depthwise_conv1d_input": {"input_size": (1, 4, 20), "w": zeros(4, 3), "gy": zeros(1, 4, 18)},
    "plan": {"problem": ConvProblem(N=1, C=4, H=4, W=4, S=1)},
    "ConvProblem": {"N": 1, "C": 2, "W": 5, "S": 1},
}
UP = ConvProblem.transpose(stride=(2, 2), padding=((0, 0), (0, 0)), output_padding=(0, 0), dilation=(1, 1), taps=(2, 2),
                           N=1, C=64, K=32, H=8, W=8)  # fmt: skip
VIDEO = ConvProblem(N=1, C=32, D=6, H=8, W=8, K=32, T=3, R=3, S=3)
OWN = {"algorithm": "implicit_gemm"}
TOKENS = {"x": zeros(2, 9, 5), "padding": "causal", "layout": "NWC"}
APART = {"stride": 2, "lhs_dilation": 2}
BLOCKS, SKEWED = {"algorithm": "blocks"}, {"algorithm": "skewed"}
OF_FOUR = {"x": zeros(1, 4, 5, 5), "weight_size": (4, 1, 3, 3), "groups": 4, "algorithm": "diagonals"}


def diagonals(C, K, size, taps, **more):
    """Arguments of conv2d_weight: C channels of one image in a group each, or all in one."""
    sizes = {"x": zeros(1, C, size, size), "weight_size": (K, 1, taps, taps), "groups": C}
    return OF_FOUR | sizes | {"gy": zeros(1, K, size - taps + 1, size - taps + 1), **more}


# function, arguments, class, message or a pattern of it
REFUSED = {
    "conv2d": [
        ({"w": W[:0]}, GeometryError, "w.shape=.*: every extent of .* must be at least 1"),
        ({"w": zeros(4, 6, 10, 2)}, GeometryError, "P=0: output height must be at least 1"),
        ({"x": X[:, :5]}, GeometryError, "has 6 input channels per group, x has C=5 in groups=1"),
        ({"filter_layout": "RSCK"}, GeometryError, "in the order of filter_layout='RSCK'"),
        ({"algorithm": "grouped"}, UnsupportedError, "was removed, weight_stationary takes its problems"),
        (OWN | {"config": (("speed", 2),)}, UnsupportedError, "implicit_gemm has no setting speed"),
        (OWN | {"config": (("warmup", 1), ("warmup", 2))}, UnsupportedError, "warmup stands there twice; give one"),
        ({"padding": "same", "lhs_dilation": (1, 2)}, GeometryError, r"not defined with lhs_dilation=\(1, 2"),
        ({"batch_group_count": 2, "groups": 2, "w": W2}, UnsupportedError,
         "batch_group_count=2, groups=2: only one of them may be above 1, as in XLA"),
        ({"batch_group_count": 2, "w": zeros(1, 6, 3, 3, 2)}, UnsupportedError, "filters of groups are not packed"),
        ({"batch_group_count": 2, "w": W2}, GeometryError, "must have x's C=6 input channels, whatever"),
        ({"x": X.astype(FP8), "w": W.astype(FP8)}, DtypeError,
         r"no magnitude is above 240 .*astype\(ml_dtypes.float8_e4m3\)"),
        ({"x": X.astype(BF16), "w": W.astype(BF16), "precision": "tf32"}, UnsupportedError,
         "precision='tf32': x and w are bf16, whose products are exact"),
        ({"w": W2[:3], "groups": 2}, GeometryError, "groups=2: must divide C=6 and K=3"),
        ({"x": X.astype(int), "w": W[0], "beta": "x", "lnc": 0}, DtypeError, "4 reasons"),
        ({"w": zeros(2, 6, 3, 3, 4), "filter_layout": "RSCK"}, LayoutError, "w is packed, which has one order"),
        ({"w": zeros(4, 6, 3, 3, 3)}, LayoutError, "5 axes are those of a packed filter, .* makes no blocks of 3"),
        ({"w": zeros(2, 5, 3, 3, 16)}, GeometryError, "has 5 input channels per group, x has C=6")],
    "conv3d": [
        ({"algorithm": "weight_stationary", "config": (("segments", 1),)}, UnsupportedError,
         "feature_group_count=1, lhs_dilation=1: weight_stationary"),
        ({"algorithm": "stacked", "config": (("planes", "rows"),)}, UnsupportedError,
         r"config planes=rows: must be one of \('taps', 'channels'\)"),
        ({"algorithm": "weight_stationary", "config": (("planes", "channels"),)}, UnsupportedError,
         "config planes=channels: weight_stationary takes them as taps"),
        ({"initial_frames": VOLUME, "batch_group_count": 2}, UnsupportedError,
         "batch_group_count=2: frames in front go with 1")],
    "conv_transpose1d": [({"w": zeros(5, 2, 3)}, GeometryError, r"w.shape=\(5, 2, 3\): has 5 input channels, x has C")],
    "conv_transpose2d": [({"padding": 9}, GeometryError, r"P=-11: padding 9\+9 takes off all 7 outputs")],
    "depthwise_conv1d": [
        ({"w": TAPS[:3]}, GeometryError, r"w.shape=\(3, 4\): must be \[C, S\] = \(5, 4\)"),
        ({"x": ROW[:0, :, :2]}, GeometryError, "must be at least 1"),
        ({"x": ROW[:0], "residual": ROW[:1]}, GeometryError, "residual.*: must have no images, as x"),
        ({"dilation": 20}, GeometryError, r"window 61 = dilation 20\*\(S-1\)\+1"),
        ({"return_final_state": True, "stride": 2}, GeometryError, "a state needs 1 and 1"),
        ({"stride": 2, "flipped": True}, GeometryError, r"stride=\(1, 2\): must be 1 with transposed=True"),
        ({"algorithm": "banded", "dilation": 2, "stride": 2}, UnsupportedError, "rhs_dilation=2, stride=2")],
    "depthwise_conv2d": [({"w": zeros(9, 1, 3, 2)}, GeometryError, r"must be \[C \* multiplier, 1, R, S\] for C=5"),
     ({"w": zeros(10, 5, 3, 2)}, GeometryError, "use conv2d for filters over several channels")],
    "conv2d_weight": [
        ({"groups": 2}, GeometryError, "x has C=3 in groups=2"),
        ({"precision": "fp16x3"}, UnsupportedError, "precision=fp16x3: a filter gradient takes None, bf16 and tf32"),
        (BLOCKS | {"config": (("channels", 200),)}, UnsupportedError,
         "config channels=200: a bank of 512 columns holds all taps of 3"),
        (BLOCKS | APART | {"config": (("pixels", 2),), "gy": zeros(1, 4, 4, 4)}, UnsupportedError,
         "lhs_dilation=(1, 2, 2): pixels=2 takes 1"),
        (APART | {"algorithm": "diagonals", "gy": zeros(1, 4, 4, 4)}, UnsupportedError,
         "lhs_dilation=(1, 2, 2): diagonals takes 1"),
        (OF_FOUR | {"config": (("side", 3),)}, UnsupportedError,
         "config side=3: the Tensor Engine has 1, 2 or 4 tiles"),
        (OF_FOUR | {"config": (("beside", 100),)}, UnsupportedError,
         "config rows=1 columns=1 beside=100 below=1: 100 rows and 900 columns of sums"),
        (OF_FOUR | {"config": (("rows", 128), ("down", 512))}, UnsupportedError,
         "config rows=128 down=512 columns=1 across="),
        (OF_FOUR | {"config": (("rows", 20), ("columns", 20))}, UnsupportedError,
         "config rows=20 columns=20: times 1 channels must be at most 128"),
        (diagonals(1, 1, 40, 27), UnsupportedError,
         "filters of 729 taps, 1 input channels a group: diagonals need 729 columns of sums, "
         'a bank has 512; use algorithm="blocks"'),
        (diagonals(1, 130, 3, 1), UnsupportedError,
         'K=130, groups=1: diagonals take 128 of a group; use algorithm="blocks"')],
    "conv2d_input": [({"input_size": (1, 3, 7, 5)}, GeometryError, "3 outputs on axis 2 come of 5 to 5 elements")],
    "conv_transpose2d_weight": [
        ({"stride": 2, "gy": zeros(1, 3, 11, 10)}, GeometryError,
         "gy.shape=(1, 3, 11, 10): 10 elements on axis 3, a transposed convolution of 5 has 11"),
        ({"stride": 2, "weight_size": (3, 3, 3, 3)}, GeometryError, "weight_size=(3, 3, 3, 3): its first entry is C"),
        ({"stride": 2, "groups": 3}, GeometryError, "must have y's N=1 and K=9"),
        ({"stride": 2, "bias_gradient": True}, UnsupportedError,
         "bias_gradient=True: a transposed convolution's is gy's sum"),
        ({"stride": 2, "bias_gradient": np.ones(2)}, UnsupportedError, "must be True or False; pass one of these")],
    "depthwise_conv1d_weight": [
        ({"gy": zeros(2, 3, 6, dtype=np.float16)}, DtypeError, "gy.dtype=float16: must be float32 exactly when x's is"),
        ({"weight_size": (6, 4)}, GeometryError, "w.shape=(6, 4): must be [C, S] = (3, 4)"),
        (SKEWED | {"config": (("beside", 3),)}, UnsupportedError, "config beside=3: must be one of (1, 2, 4, 8, 16)"),
        (SKEWED | APART | {"gy": zeros(2, 3, 7)}, UnsupportedError,
         "lhs_dilation=2: skewed takes 1; use mixed or vector")],
    "depthwise_conv1d_input": [({"gy": zeros(1, 4)}, LayoutError, "gy.shape=(1, 4): must have 3 axes")],
    "pack_filter": [({"filter_layout": "CKRS"}, LayoutError, "filter_layout='CKRS': accepted are KCRS, RSCK, KRSC"),
        ({"w": zeros(131, 4, 3, 3)}, UnsupportedError, "K=131 can be packed in have 1 channels, at least 16 are")],
    "plan": [
        ({"problem": UP, "packed": True}, UnsupportedError, "packed=True: transposed convolutions take False"),
        ({"problem": UP, "operation": "conv2d"}, UnsupportedError,
         "operation='conv2d': the problem's transposed is True"),
        ({"problem": VIDEO, "operation": "conv2d"}, UnsupportedError,
         "operation='conv2d': the problem .* an axis of planes"),
        ({"operation": "conv3d"}, UnsupportedError, "operation='conv3d': the problem .* an axis of planes"),
        ({"problem": VIDEO, "initial_frames": 6}, GeometryError, "D=6 planes"),
        ({"problem": VIDEO, "initial_frames": True}, GeometryError, "initial_frames=True: must be an int of at least "),
        ({"initial_frames": 1}, GeometryError, "D=None planes")],
    "ConvProblem": [
        ({"T": 3}, GeometryError, "T=3: filter planes need input planes; give D, or drop T"),
        ({"D": 2, "stride": (1, 1)}, GeometryError, "stride=(1, 1): must be a tuple (depth, height, width) of ints"),
        ({"D": 2, "padding": ((0, 0), (0, 0))}, GeometryError, r"padding=.*: must be \(\(front, back\), "),
        ({"D": 2, "layout": "NCHW"}, LayoutError, "layout='NCHW': accepted are NCDHW, NDHWC"),
        ({"layout": "NDHWC"}, LayoutError, "layout='NDHWC': accepted are NCHW, NHWC"),
        ({"transposed": True, "stride": (2, 1)}, GeometryError, "stride=(2, 1): must be 1 with transposed=True")],
}  # fmt: skip
#: Settings that have not the form of a Plan's, and the algorithm that each function is asked for.
FORMS = [
    ([("warmup", 2)], "write tuples in place of lists"), ({"warmup": 2}, r"write tuple\(config.items\(\)\)"),
    (3, "must be None or a tuple of"), ("warmup", "must be None or a tuple of"),
    ((["warmup", 2],), r"entry 0 is \['warmup', 2\], pass a pair"),
    ((("warmup",),), r"entry 0 is \('warmup',\), pass a pair"), ((("warmup", 2, 3),), "entry 0 is"),
    (((1, 2),), "entry 0 is"), (("warmup", 2), "entry 0 is 'warmup'"),
    ((("warmup", [2]),), "must be hashable; write tuples"),
]  # fmt: skip
ALGORITHMS = {
    "conv1d": "implicit_gemm", "conv2d": "implicit_gemm", "conv3d": "stacked", "conv_transpose2d": "weight_stationary",
    "conv2d_weight": "blocks", "depthwise_conv1d": "banded", "depthwise_conv1d_weight": "banded",
}  # fmt: skip
#: Arguments that a type of arrays is no array of; one axis has no number an axis; a number is no dtype.
ARRAYS = ("x", "w", "gy", "bias", "residual", "x_scale")
CASES = [
    *((name, *row) for name, rows in REFUSED.items() for row in rows),
    *((name, {array: np.float64}, DtypeError, f"{array}: must be a NumPy array, not type")
      for name, good in GOOD.items() for array in ARRAYS[:3] if array in good),
    *(("depthwise_conv1d", TOKENS | {array: np.float64}, DtypeError, f"{array}: must be a NumPy array, not type")
      for array in ARRAYS[:2]),
    *(("depthwise_conv1d", TOKENS | {name: value}, UnsupportedError, f"layout='NWC', {name}={value}: must be")
      for name, value in {"stride": True, "dilation": 1.0, "flipped": 0, "strict_nonfinite": 0}.items()),
    *((name, {"x": good["x"][:0].astype(np.float64)}, DtypeError, "x.dtype=float64")
      for name, good in GOOD.items() if "x" in good),
    ("conv2d", {"residual": zeros(2, 4, 7, 10), "beta": 10**400}, UnsupportedError, "must be a finite int or float"),
    *(("conv2d", {array: np.float64}, DtypeError, f"{array}: must be a NumPy array, not type") for array in ARRAYS[3:]),
    ("conv2d_weight", {"accumulate_into": np.float64}, GeometryError, "accumulate_into: must be float32"),
    *((name, {"padding": (1,)}, GeometryError, "padding=(1,): must be an int,")
      for name in ("conv1d", "conv_transpose1d", "conv1d_weight", "conv1d_input", "depthwise_conv1d")),
    *((name, {array: change(GOOD[name][array])}, DtypeError, words)
      for name, array in (("conv1d", "w"), ("conv2d", "x"), ("depthwise_conv1d", "x"), ("pack_filter", "w"))
      for change, words in ((np.ma.array, f"{array}: is a masked array, and a kernel has no mask; pass {array}.filled"),
                            (lambda one: nkiconv.spec(one.shape, "fp32"), f"{array}: is ArraySpec"))),
    *(("conv2d", {"batch_group_count": one}, GeometryError, f"batch_group_count={one}: must be an int of at least 1")
      for one in (True, 1.0, 0)),
    *((name, {"out_dtype": np.float32(2)}, DtypeError, "out_dtype=np.float32(2.0)")
      for name in ("conv2d", "conv2d_weight")),
    *((name, {"algorithm": one, "config": config}, UnsupportedError, words) for name, one in ALGORITHMS.items()
      for config, words in (FORMS if name == "conv2d" else FORMS[:1])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changed", "kind", "message"), CASES, ids=[f"{one[0]}-{one[3][:40]}" for one in CASES]
)
def test_functions(monkeypatch, name, changed, kind, message):
    monkeypatch.setattr("nkiconv.api.calls.simulator.execute", None)
    with pytest.raises(NkiconvError) as caught:
        getattr(nkiconv, name)(**GOOD[name] | changed)
    assert message in str(caught.value) or re.search(message, str(caught.value))
    assert type(caught.value) is kind
    assert isinstance(caught.value, (ValueError, TypeError))


XK, WK = np.ones((2, 5, 1, 40), np.float32), np.ones((5, 1, 1, 4), np.float32)
STATE, CAUSAL = zeros(2, 5, 3), {"padding": ((0, 0), (3, 0))}
# arguments of the kernel of rows, message; of a rule of the simulator, its name
KERNEL = [
    ({"img_ref": np.repeat(XK, 2, axis=2)}, "img_ref H=2: must be 1"),
    ({"filter_ref": np.repeat(WK, 2, axis=2)}, r"must be after kern_perm \[C, 1, 1, S\]"),
    ({"rhs_dilation": (2, 1)}, r"rhs_dilation=\(2, 1\): H is 1"),
    ({"padding": ((1, 0), (0, 0))}, r"padding\[0\]=\(1, 0\): H is 1"),
    ({"img_ref": XK.astype(ml_dtypes.float8_e5m2), "filter_ref": WK.astype(ml_dtypes.float8_e5m2)},
     "img_ref.dtype=float8_e5m2"),
    ({"rhs_dilation": (1, 20)}, "Q=-20: output width must be at least 1"),
    ({"algorithm": "banded", "config": (("nonsense", 1),)}, r"config=.*: banded has no setting nonsense; it has \("),
    ({"residual": zeros(2, 5, 1, 37), "out_perm": (0, 2, 3, 1)}, r"must be y's, as stored, \(2, 1, 37, 5\)"),
    *((asked | CAUSAL | changed, message) for asked in ({"initial_state": STATE}, {"return_final_state": True})
      for changed, message in (
          ({"stride": (1, 2)}, "stride=2, lhs_dilation=1: a state needs 1 and 1"),
          ({"lhs_dilation": (1, 3)}, "stride=1, lhs_dilation=3: a state needs 1 and 1"),
          ({"padding": ((0, 0), (2, 0))}, "padding left=2: a state stands in .* = 3; pass "),
          ({"padding": ((0, 0), (4, 0))}, r"padding left=4: .* = 3; pass \(left, right\) = \(3, right"),
          ({"padding": ((0, 0), (0, 0))}, "padding left=0: a state stands in"))),
    ({"filter_ref": WK[..., :1], "return_final_state": True}, "S=1: one tap needs no state; leave out initial_state"),
    *((CAUSAL | {"initial_state": zeros(*shape)}, r"initial_state\.shape=.*: must be \[N, C, .*\] = \(2, 5, 3\)")
      for shape in ((2, 5, 2), (5, 3), (2, 5, 1, 3), (2, 3, 5))),
]  # fmt: skip


def rows(lnc=2, **changed):
    return nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[lnc])(**{"img_ref": XK, "filter_ref": WK} | changed)


def test_groups_order_and_tensors_of_the_kernel():
    """One group is read as C; arguments follow each other as in nki-library; torch's tensors give torch's."""
    rng = np.random.default_rng(1)
    x, w = rng.integers(-3, 4, XK.shape).astype(np.float32), rng.integers(-3, 4, WK.shape).astype(np.float32)
    plain = rows(img_ref=x, filter_ref=w)
    for more in (arguments(depthwise_problem(x[:, :, 0], w[:, 0, 0])), {"feature_group_count": 1}):
        np.testing.assert_array_equal(rows(img_ref=x, filter_ref=w, **more), plain)
    kernel = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[2])
    y = kernel(x, w, ((0, 0), (3, 0)), (1, 2), (1, 1), (1, 1), 5, 1, None, None, None)
    wanted = nkiconv.depthwise_conv1d(x[:, :, 0], w[:, 0, 0], padding=(3, 0), stride=2)
    np.testing.assert_array_equal(y[:, :, 0], wanted)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        y = kernel(*(torch.tensor(one).to(dtype) for one in (x, w)))
        assert isinstance(y, torch.Tensor)
        assert y.dtype == dtype


ROWS, IMAGES, VOLUMES = (zeros(1, 2, *axes) for axes in ((1, 8), (8, 8), (4, 8, 8)))
ROW_TAPS, SQUARES, CUBES = zeros(2, 1, 1, 3), zeros(2, 2, 3, 3), zeros(2, 2, 3, 3, 3)
#: Kernels, and arguments that they run with.
KERNELS = {
    "depthwise_conv1d_implicit_gemm": {"img_ref": ROWS, "filter_ref": ROW_TAPS},
    "depthwise_conv1d_weight_gradient": {"img_ref": ROWS, "grad_ref": ROWS[..., 2:], "filter_shape": ROW_TAPS.shape},
    "conv2d_implicit_gemm": {"img_ref": IMAGES, "filter_ref": SQUARES},
    "conv3d_implicit_gemm": {"img_ref": VOLUMES, "filter_ref": CUBES},
    "conv_transpose2d_implicit_gemm": {"img_ref": IMAGES, "filter_ref": SQUARES},
    "conv_transpose3d_implicit_gemm": {"img_ref": VOLUMES, "filter_ref": CUBES},
    "conv_weight_gradient": {"img_ref": IMAGES, "grad_ref": IMAGES[..., 2:, 2:], "filter_shape": SQUARES.shape},
    "channel_statistics": {"img_ref": IMAGES},
    "norm_scale_and_shift": {"stats": (np.ones((1, 1, 2, 3), np.float32),), "norm": "batch"},
    "pointwise_mlp_fused": {"x_ref": IMAGES, "w1_ref": SQUARES[..., 0, 0], "w2_ref": SQUARES[..., 0, 0]},
    "b2b_causal_conv1d_fused": {"x_ref": zeros(1, 6, 8), "proj_ref": zeros(6, 3), "mixer_ref": zeros(2, 3)},
    "causal_conv1d_split_heads": {"x_ref": ROWS[:, :, 0], "w_ref": ROW_TAPS[:, 0, 0], "splits": ((1, 2, False),)},
    "causal_conv1d_split_step": {"x_ref": ROWS[:, :, 0, :1], "state_ref": ROWS[:, :, 0, :2], "w_ref": ROW_TAPS[:, 0, 0],
                                 "splits": ((1, 2, False),)},
}  # fmt: skip


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


NHWC_FP8 = {name: zeros(*shape, dtype=ml_dtypes.float8_e4m3)
            for name, shape in (("img_ref", (1, 8, 8, 64)), ("filter_ref", (64, 64, 1, 1)))}  # fmt: skip
NHWC_FP8 |= {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1), "y_norm": "rms"}
SPREAD = {"img_ref": VOLUMES, "grad_ref": VOLUMES, "filter_shape": CUBES.shape}
OF_ROWS, OF_VOLUMES = {"img_ref": XK, "filter_ref": WK}, {"img_ref": VOLUME, "filter_ref": FILTER}
KERNEL_CALLS = [
    *(("depthwise_conv1d_implicit_gemm", OF_ROWS | changed, message) for changed, message in KERNEL),
    ("conv3d_implicit_gemm", OF_VOLUMES | {"kern_perm": (0, 1, 3, 2, 4)},
     "kern_perm=.*: rows of taps must follow each other from plane to plane"),
    ("conv3d_implicit_gemm", OF_VOLUMES | {"initial_frames": VOLUME, "in_perm": (0, 1, 4, 2, 3)},
     "in_perm=.*: planes of x and initial_frames must lie outside"),
    ("conv3d_implicit_gemm", OF_VOLUMES | {"filter_ref": FILTER[:, :, :1], "return_final_frames": True},
     "a window of one plane needs none"),
    ("conv3d_implicit_gemm", OF_VOLUMES | {"packed": True}, "filter_ref.shape=.*: a packed filter of volumes is"),
    *((name, KERNELS[name] | {tensor: zeros(*shape)}, f"{tensor}.shape=.*must have .* axes")
      for name, tensor, shape in (
          ("b2b_causal_conv1d_fused", "x_ref", (6, 64)), ("b2b_causal_conv1d_fused", "proj_ref", (6,)),
          ("b2b_causal_conv1d_fused", "mixer_ref", (2, 3, 7)), ("pointwise_mlp_fused", "x_ref", (2,)))),
    ("conv_weight_gradient", SPREAD, "stride=.*one for each axis"),
    ("conv2d_implicit_gemm", NHWC_FP8, "store y as NCHW"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), KERNEL_CALLS, ids=[f"{r[0]}-{r[2][:40]}" for r in KERNEL_CALLS])
def test_kernels(name, given, message):
    with pytest.raises(KernelAssertionError, match=message):
        nkiconv.simulate(getattr(nkiconv, name)[2])(**given)
