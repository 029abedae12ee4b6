"""Wrong arguments are refused by name, with errors of the kinds that torch has for them, and change nothing."""

import functools

import pytest
import torch
from causal import integers
from chained import hooked
from layers import FORMS

from nkiconv import pytorch
from nkiconv.errors import DtypeError, GeometryError, LayoutError, UnsupportedError
from nkiconv.pytorch import conv2d, conv3d, conv_transpose2d, fla, nn, norm_act_conv1d, pack_filter, serving
from nkiconv.pytorch.causal import package
from nkiconv.pytorch.errors import KindError

ROWS = []


def refused(function, given, rows):
    """Rows (what changes of what is given, the error, its words)."""
    ROWS.extend((functools.partial(function, **(given | changed)), error, words) for changed, error, words in rows)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


X, W, B = integers(2, 6, 9, 11), integers(4, 6, 3, 2), integers(4)
NESTED = torch.nested.nested_tensor
refused(conv2d, {"input": X, "weight": W, "bias": B}, [
    ({"input": X.double(), "bias": None}, DtypeError, "weight.dtype=torch.float32: must be torch.float64 exactly when"),
    ({"input": X.long(), "weight": W.long()}, DtypeError, "input.dtype=torch.int64: .* kernels have no integer sums"),
    ({"input": X.to(torch.float8_e4m3fn)}, DtypeError, "input.dtype=torch.float8_e4m3fn: .* above 240"),
    ({"input": X.to_sparse()}, LayoutError, "input.layout=torch.sparse_coo: accepted is torch.strided"),
    ({"input": X.to(torch.complex64)}, DtypeError, "input.dtype=torch.complex64: complex tensors are not supported"),
    ({"input": NESTED([X[0], X[1, :, 1:]])}, LayoutError, "input: nested tensors are not supported; "),
    ({"input": torch.quantize_per_tensor(X, 1, 0, torch.qint8)}, DtypeError,
     "input.dtype=torch.qint8: quantized tensors are not supported"),
    ({"weight": W[:, :5]}, GeometryError, r"weight.shape=\(4, 5, 3, 2\): has 5 input channels per group"),
    ({"stride": (1, 2, 3)}, GeometryError, r"stride=\(1, 2, 3\): must be an int, or 2 of them"),
    ({"padding": ((1, 0), (1, 1))}, GeometryError, r"padding=\(\(1, 0\), \(1, 1\)\): pairs are conv3d's; pad input"),
    ({"input": X[0, :3]}, GeometryError, r"input.shape=\(3, 9, 11\) is read as \[C, H, W\] of one image, C=3; .* C=6"),
    ({"padding": "reflect"}, GeometryError, "padding='reflect': accepted are same, valid; use one, or ints"),
    ({"padding": "same", "stride": 2}, GeometryError, "padding='same', stride="),
    ({"dilation": 9}, GeometryError, r"padded by \(\(0, 0\), \(0, 0\)\) it is smaller than the window"),
    ({"bias": B.double(), "activation": "x"}, DtypeError,
     r"conv2d cannot run this call; 2 reasons\n.*bias.dtype.*\n.*activation='x'"),
    ({"groups": 0, "layer": "encoder.stem"}, GeometryError, "^encoder.stem: groups=0: must be at least 1"),
    *(({name: X}, ValueError, rf"{name}=Tensor \(2, 6, 9, 11\) torch.float32: ")
        for name in ("stride", "padding", "dilation", "groups", "activation", "residual_position", "strict_nonfinite",
                     "x_activation", "x_upsample", "return_stats")),
    *(  # comparing one to a word raises
        ({name: X.numpy()}, ValueError, rf"{name}=ndarray \(2, 6, 9, 11\) float32: ")
        for name in ("stride", "padding", "dilation", "groups", "activation", "residual_position", "strict_nonfinite",
                     "x_activation", "x_upsample", "return_stats")),
])  # fmt: skip
X2, W2 = integers(2, 6, 5, 4), integers(6, 4, 3, 2)
refused(conv_transpose2d, {"input": X2, "weight": W2}, [
    ({"input": X2[0, 0]}, LayoutError, r"input.shape=.*: must have 4 axes"),
    ({"groups": 4}, GeometryError, "groups=4: must divide C=6 and K=16"),
    ({"output_padding": 2, "stride": 2}, GeometryError, r"output_padding=\(2, 2\): must be below stride=\(2, 2\)"),
    ({"output_padding": X}, ValueError, r"output_padding=Tensor \(2, 6, 9, 11\) torch.float32: "),
])  # fmt: skip
NO_ROWS = NESTED([torch.zeros(4, 3), torch.zeros(4, 2)])
refused(
    pytorch.conv1d,
    {"input": torch.zeros(2, 6, 9), "weight": NO_ROWS},
    [({}, LayoutError, "weight: nested tensors are not supported; ")],
)
refused(
    conv3d,
    {"input": torch.zeros(1, 6, 3, 4, 4), "weight": torch.zeros(4, 6, 3, 3, 3)},
    [({"initial_frames": NO_ROWS}, LayoutError, "initial_frames: nested tensors are not supported; ")],
)
for function in (pytorch.causal_conv1d_fn, pytorch.pointwise_mlp, pytorch.b2b_causal_conv1d):
    refused(function, {}, [({"layer": ["a"]}, UnsupportedError, r"layer=\['a'\]: must be None or a name for messages")])
refused(pytorch.depthwise_conv1d, {"input": torch.zeros(2, 6, 9)}, [
    ({"input": torch.zeros(9), "weight": torch.zeros(6, 1, 4)}, LayoutError, "input.shape=.*: must have 3 axes, or 2"),
    ({"weight": torch.zeros(12, 1, 4)}, GeometryError,
     r"weight.shape=\(12, 1, 4\): must be \[C, 1, S\] for C=6 channels"),
])  # fmt: skip
X = torch.zeros(1, 70, 5, 5)
refused(conv2d, {"input": X, "weight": torch.zeros(128, 70, 3, 3), "packed": torch.zeros(1, 70, 3, 3, 128)}, [
    ({"packed": torch.zeros(1, 70, 3, 3, 64)}, GeometryError, r"packed.shape=.*: must be pack_filter\(weight\)'s, "),
    ({"packed": torch.zeros(1, 70, 3, 3, 128).bfloat16()}, DtypeError, "packed.dtype=torch.bfloat16: must be weight's"),
    ({"input": torch.zeros(1, 140, 5, 5), "groups": 2}, UnsupportedError, "packed: groups=2"),
    ({"packed": "packed"}, DtypeError, "packed: must be a torch.Tensor, not str"),
])  # fmt: skip
refused(pack_filter, {}, [
    ({"weight": torch.zeros(131, 70, 3, 3)}, UnsupportedError, "weight.shape=.131, 70, 3, 3.: K has no divisor"),
    ({"weight": torch.zeros(128, 70)}, LayoutError, "weight.shape=.128, 70.: must have 3 to 5 axes"),
    ({"weight": torch.zeros(2, 4, 0, 6)}, GeometryError, "every extent must be at least 1"),
])  # fmt: skip
FREEZING = (
    ("in training mode", nn.Conv2d(70, 128, 3)), ("groups=2", nn.Conv2d(140, 128, 3, groups=2).eval()),
    ("out_channels=131 has no divisor", nn.Conv2d(70, 131, 3).eval()),
    ("its weight is torch.float64", nn.Conv2d(70, 128, 3).double().eval()),
    ("transposed", nn.ConvTranspose2d(70, 128, 3).eval()),
    ("no plain Parameter", torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(70, 128, 3)).eval()),
)  # fmt: skip
ROWS += [(one.pack_filter, UnsupportedError, f"its filter cannot be frozen: .*{words}") for words, one in FREEZING]
refused(pytorch.polyphase_filter, {"weight": torch.ones(2, 2, 3, 3)}, [
    ({"weight": 2.0}, DtypeError, "weight: must be a torch.Tensor, not float"),
    ({"weight": torch.ones(2, 2, 3)}, LayoutError, "weight.shape"),
    ({"groups": 3}, GeometryError, "groups=3: must divide K=2"),
    ({"groups": "2"}, KindError, "groups='2'"),
])  # fmt: skip
X, W = torch.zeros(1, 4, 3, 5, 6), torch.zeros(6, 4, 3, 3, 3)
refused(conv3d, {"input": X, "weight": W}, [
    ({"initial_frames": X[:, :3]}, GeometryError, r"initial_frames.shape=\(1, 3, 3, 5, 6\): must be input's but for"),
    ({"initial_frames": X[0]}, GeometryError, "has other axes"),
    ({"initial_frames": X[:, :3, :0]}, GeometryError, r"shape=\(1, 3, 0, 5, 6\): must be input's but for"),
    ({"initial_frames": X[0, :, :0]}, GeometryError, "has other axes"),
    *(({"y_norm_eps": one}, UnsupportedError, "y_norm_eps=.*: must be a number from") for one in (True, "x", -1.0)),
    ({"return_final_frames": "all"}, TypeError, "return_final_frames='all': must be True, False or an int"),
    ({"return_final_frames": 4}, GeometryError, "return_final_frames=4: initial_frames and x have 3 planes"),
])  # fmt: skip
refused(lambda **more: nn.CausalConv3d(4, 6, 3, **more)(torch.zeros(1, 4, 3, 5, 6), 3), {}, [
    ({"time_padding": "mirror"}, UnsupportedError, "time_padding='mirror': accepted are zeros, replicate"),
    ({"padding": "same"}, TypeError, r"padding='same': must be an int, \(height, width\) or \(depth, height, width\)"),
    ({"padding": (-1, 0)}, GeometryError, "must be at least 0"),
    ({"padding": (True, 1)}, TypeError, r"padding=\(True, 1\): must be an int"),
    ({}, LayoutError, "cache_x: must be a tensor"),
])  # fmt: skip
ROWS += [(lambda: nn.CausalConv3d(4, 6, 3, time_padding="replicate")(None), LayoutError, "input: must be a tensor")]

# Norms and activations before convolutions, and norms after them.
X, W, B = integers(2, 6, 5, 6), integers(4, 6, 3, 3), integers(4)
refused(pytorch.norm_act_conv2d, {"input": X, "weight": W, "bias": B, "padding": 1, "norm": "group", "num_groups": 3}, [
    ({"norm": "layer", "num_groups": None}, UnsupportedError, "norm='layer': accepted are group, batch, instance"),
    ({"norm_bias": 1.0}, DtypeError, "norm_bias: must be a torch.Tensor, not float"),
    ({"running_mean": torch.ones(6), "running_var": torch.ones(6)}, UnsupportedError, "norm='group' has none"),
    ({"training": True}, UnsupportedError, "training=True: norm='group' is the same in both modes"),
    ({"training": torch.ones(2)}, UnsupportedError, "training=Tensor"),
    ({"momentum": torch.ones(2)}, UnsupportedError, "momentum=Tensor"),
    ({"norm": "batch", "num_groups": None, "running_mean": torch.ones(6)}, UnsupportedError, "one of them is None"),
    ({"stats": torch.ones(2, 6, 3)}, LayoutError, r"stats.shape=\(2, 6, 3\)"),
    ({"stats": torch.ones(1, 2, 6, 3).half()}, DtypeError, "stats.dtype=torch.float16: must be torch.float32"),
    ({"x_activation": "absent"}, UnsupportedError, "x_activation='absent': accepted are"),
    ({"input": X[:, :, 0, 0]}, LayoutError, r"input.shape=\(2, 6\)"),
    ({"shift": torch.ones(6, device="meta")}, UnsupportedError, "shift.device=meta: must be input's, cpu"),
])  # fmt: skip
U, V, *_ = FORMS["prologue"].tensors(2)
VOLUME, TAPS, *_ = FORMS["prologue"].tensors(3)
conv = functools.partial(conv2d, U, V, groups=2)
frames = functools.partial(conv3d, VOLUME, TAPS, groups=2, initial_frames=VOLUME[:, :, :1])
ROWS += [
    (lambda: conv(x_scale=torch.ones(6).double()), DtypeError, "x_scale.dtype=torch.float64: "),
    (lambda: conv(x_upsample=2, y_norm="rms"), UnsupportedError, "x_activation, x_upsample; apply these before"),
    (lambda: frames(x_activation="silu"), UnsupportedError,
     "x_scale, x_shift, x_activation: are not taken with initial_frames"),
    (lambda: frames(return_stats="channel"), UnsupportedError,
     "return_stats: is not taken with initial_frames; use channel_stats of y"),
    (lambda: conv_transpose2d(U, U, groups=2, x_scale=torch.ones(5)), GeometryError, r"x_scale.shape=\(5,\): must be"),
    (lambda: norm_act_conv1d(U[0], V[0], x_upsample=2), UnsupportedError,
     "x_upsample=2: accepted are 1; upsample what the norm gives"),
    (lambda: nn.Conv3d(4, 4, 3, x_upsample=2), UnsupportedError,
     "x_upsample=2: accepted are 1; use one of them, or upsample the input"),
    (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", x_upsample=2), UnsupportedError,
     "must be 'zeros' with x_upsample"),
    (lambda: torch.ops.nkiconv.conv_transpose2d_with_prologue(
        U, U, *[None] * 4, [1, 1], [1] * 4, [1, 1], [1, 1], 2, None, "pre_activation", None, x_upsample=2),
     UnsupportedError, "x_upsample=2: conv2d alone takes it; upsample input before"),
]  # fmt: skip
ROUND = {"input": torch.ones(2, 3, 5, 6), "weight": torch.ones(4, 3, 3, 3), "bias": torch.ones(4), "padding": 1}
refused(conv2d, ROUND | {"y_norm": "rms", "y_norm_weight": torch.ones(4), "y_norm_bias": torch.ones(4)}, [
    ({"y_norm": "batch"}, UnsupportedError, "y_norm='batch': accepted are None, rms, layer"),
    ({"y_norm": None}, UnsupportedError, "y_norm_weight: there is no norm that it belongs to"),
    ({"y_norm_eps": 0}, UnsupportedError, "y_norm_eps=0"),
    ({"return_before_norm": torch.ones(2)}, UnsupportedError, r"return_before_norm=Tensor"),
    ({"x_activation": "relu"}, UnsupportedError, "y_norm='rms': is not taken with x_scale, x_shift"),
    ({"weight": torch.ones(6, 1, 3, 3), "groups": 3, **dict.fromkeys(["bias", "y_norm_weight", "y_norm_bias"])},
     UnsupportedError, "y_norm='rms', groups=3: kernels"),
])  # fmt: skip
C, M, K = 5, 12, 7
MLP = {"input": torch.ones(2, C, 4, 3), "weight1": torch.ones(M, C), "weight2": torch.ones(K, M)}
refused(pytorch.pointwise_mlp, MLP, [
    ({"input": torch.ones(C, 4)}, LayoutError, "input.shape"),
    ({"weight1": torch.ones(M, C + 1)}, GeometryError, "weight1.shape"),
    ({"residual": torch.ones(2, C, 4, 3)}, GeometryError, "residual.shape"),
    ({"input": torch.ones(2, C, 0)}, GeometryError, "every extent but N"),
    ({"x_norm": "rms", "x_norm_weight": torch.ones(M)}, GeometryError, "x_norm_weight.shape"),
    ({"x_norm": "rms", "x_norm_bias": torch.ones(C).double()}, DtypeError, "x_norm_bias.dtype"),
    ({"activation": "absent"}, UnsupportedError, "activation='absent'"),
])  # fmt: skip

# Modules.
stats = pytorch.channel_stats
refused(lambda kind, **more: kind(4, 4, 3, **more), {"kind": nn.Conv1d}, [
    ({"padding_mode": "mirror"}, UnsupportedError, "padding_mode='mirror': accepted are zeros, reflect, replicate"),
    ({"kind": nn.CausalConv1d, "residual_position": "after"}, UnsupportedError, "residual_position='after': accepted"),
])  # fmt: skip
SCRIPTED = nn.Conv1d(4, 4, 3), pytorch.convert(torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3))).model, stats
NO_SCRIPT = UnsupportedError, "^torch.jit.script: cannot compile nkiconv's functions"
ROWS += [(functools.partial(torch.jit.script, one), *NO_SCRIPT) for one in SCRIPTED]
ROWS.append((
    functools.partial(nn.Conv1d(4, 4, 3, padding=3, padding_mode="reflect"), integers(2, 4, 2)), GeometryError,
    r"input.shape=\(2, 4, 2\): cannot be padded by .3, 3. with padding_mode='reflect'",
))  # fmt: skip


def of_parts(norm, activation="silu", kind=torch.nn.Conv2d, **more):
    return nn.NormActConv2d.of(norm, activation, kind(6, 4, 3, padding=1, **more))


refused(of_parts, {"norm": torch.nn.GroupNorm(3, 6)}, [
    ({"norm": type("Own", (torch.nn.GroupNorm,), {})(3, 6)}, UnsupportedError, "norm=Own: accepted are torch.nn's Gro"),
    ({"norm": torch.nn.InstanceNorm2d(6, track_running_stats=True)}, UnsupportedError, "track_running_stats=True"),
    ({"norm": hooked(torch.nn.GroupNorm(3, 6))}, UnsupportedError, "norm: has hooks"),
    ({"norm": torch.nn.GroupNorm(3, 9)}, GeometryError, "norm: has 9 channels, conv takes 6"),
    ({"padding_mode": "reflect"}, UnsupportedError, "conv.padding_mode='reflect': "),
    ({"kind": torch.nn.Conv1d}, UnsupportedError, "conv=Conv1d: accepted are Conv2d"),
])  # fmt: skip
refused(functools.partial(nn.NormActConv2d, 6, 4, 3), {}, [({}, GeometryError, "num_groups=32: must divide C=6")])
X = integers(2, 6, 5, 6).float()
ROWS += [
    (lambda: nn.NormActConv1d(6, 4, 1, norm="batch")(torch.ones(1, 6, 1)), GeometryError, "one value for each mean"),
    (functools.partial(stats, X[:, :, 0, 0]), LayoutError, r"input.shape=\(2, 6\): must have 3 to 5 axes"),
    (functools.partial(stats, X[..., :0]), GeometryError, "every extent but N and C must be at least 1"),
    (functools.partial(pytorch.norm_scale_shift, []), GeometryError, r"stats=\(\): must have at least one tensor"),
    (functools.partial(pytorch.norm_scale_shift, [stats(X), stats(X[:, :5])]), GeometryError, r"stats\[1\].shape=\("),
]  # fmt: skip

# What is no bool.
X, W = torch.ones(1, 2, 5), torch.ones(2, 2, 3)
STRICT = {
    pytorch.conv1d: (X, W), pytorch.conv_transpose1d: (X, W), pytorch.causal_conv1d_fn: (X, W[:, 0]),
    pytorch.causal_conv1d_update: (X[..., 0], X[..., :2].clone(), W[:, 0]), nn.Conv1d: (2, 2, 3),
    nn.ConvTranspose1d: (2, 2, 3), pytorch.convert: (torch.nn.Conv1d(2, 2, 3),), pytorch.intercept: (),
}  # fmt: skip
for function, given in STRICT.items():
    row = {"strict_nonfinite": "yes"}, KindError, "strict_nonfinite='yes'"
    refused(functools.partial(function, *given), {}, [row])
ROWS += [
    (functools.partial(pytorch.set_strict_nonfinite, value), KindError, f"strict_nonfinite={value}")
    for value in (1, None)
]

# Rows of sequences.
X, W, B, S = integers(2, 4, 6), integers(4, 3, seed=1), integers(4, seed=2), integers(2, 4, 2, seed=3)
ONE, CU = X[:1], torch.tensor([0, 2, 6])
IDX = torch.tensor([[0, 0, 1, 1, 1, 2]] * 2)
refused(pytorch.causal_conv1d_fn, {"x": X, "weight": W, "bias": B}, [
    ({"x": X.double(), "bias": None}, DtypeError, "weight.dtype=torch.float32: must be torch.float64 exactly when x's"),
    ({"x": X.numpy()}, DtypeError, "x: must be a torch.Tensor, not ndarray"),
    ({"x": X[..., :0]}, GeometryError, r"x.shape=\(2, 4, 0\): C and L must be at least 1"),
    ({"weight": W[:, None]}, LayoutError, r"weight.shape=\(4, 1, 3\): must have 2 axes, .* call .squeeze\(1\)"),
    ({"weight": W[:, :0]}, GeometryError, r"weight.shape=\(4, 0\): width must be at least 1"),
    ({"seq_idx": IDX.tolist()}, DtypeError, "seq_idx: must be a torch.Tensor, not list"),
    ({"seq_idx": IDX.flip(1)}, GeometryError, r"seq_idx\[0\]=\[2, 1, 1, 1, 0, 0\]: must not fall along a row"),
    ({"seq_idx": IDX - 1, "initial_states": S}, GeometryError, r"seq_idx.0.=.-1, -1, 0, 0, 0, 1.: with init"),
    ({"seq_idx": IDX, "cu_seqlens": CU}, UnsupportedError, "seq_idx: given together with cu_seqlens"),
    ({"cu_seqlens": CU}, GeometryError, r"x.shape=\(2, 4, 6\): with cu_seqlens all sequences are in one row"),
    ({"x": ONE, "cu_seqlens": CU[None]}, GeometryError, r"cu_seqlens.shape=\(1, 3\): must be \[sequences \+ 1\]"),
    ({"x": ONE, "cu_seqlens": CU + 1}, GeometryError, r"cu_seqlens=\[1, 3, 7\]: must begin with 0"),
    ({"x": ONE, "cu_seqlens": CU[:2]}, GeometryError, r"cu_seqlens=\[0, 2\]: .* end with x's 6 tokens"),
    ({"x": ONE, "cu_seqlens": CU, "initial_states": S[:1]}, GeometryError,
     r"\[sequences, C, width - 1\] = \(2, 4, 2\)"),
    ({"layout": "NLC"}, LayoutError, "layout='NLC': accepted are NCW, NWC"),
    ({"activation": "relu"}, UnsupportedError, "activation='relu': causal_conv1d_fn accepts None, 'silu' and 'swish'"),
    ({"final_states_out": S}, UnsupportedError, "final_states_out: is written with return_final_states=True only"),
    ({"final_states_out": S[:1], "return_final_states": True}, GeometryError,
     r"final_states_out.shape=\(1, 4, 2\): must be \[N, C, width - 1\] = \(2, 4, 2\)"),
    ({"bias": B.double(), "seq_idx": IDX.float(), "layer": "block.0"}, DtypeError,
     r"block.0 cannot run this call; 2 reasons\n.*bias.dtype.*\n.*seq_idx.dtype"),
    ({"x": ONE, "cu_seqlens": torch.arange(20).flip(0)}, GeometryError,
     r"cu_seqlens=\[19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, \.\.\.\]: "),
])  # fmt: skip
refused(package.causal_conv1d_varlen_states, {"x": X[0].T, "cu_seqlens": CU, "state_len": 1}, [
    ({"x": torch.ones(2)}, LayoutError, r"x.shape=\(2,\): must have 2 axes"),
    ({"cu_seqlens": CU[None]}, GeometryError, r"cu_seqlens.shape=\(1, 3\): must be \[sequences"),
    ({"cu_seqlens": CU.double()}, DtypeError, "cu_seqlens.dtype=torch.float64: must be torch.int32"),
    ({"state_len": -1}, GeometryError, "state_len=-1: must be an int of at least 0"),
    ({"x": 1}, DtypeError, "x: must be a torch.Tensor, not int"),
])  # fmt: skip
X, STATE, W = integers(2, 4), integers(2, 4, 3, seed=2), integers(4, 3, seed=1)
refused(pytorch.causal_conv1d_update, {"x": X, "conv_state": STATE, "weight": W}, [
    ({"conv_state": STATE[0]}, LayoutError, r"conv_state.shape=\(4, 3\): must have 3 axes, \[N, C, state_len\]"),
    ({"conv_state": STATE[:, :3]}, GeometryError, r"conv_state.shape=\(2, 3, 3\): must be"),
    ({"conv_state": STATE[..., :1]}, GeometryError, r"conv_state.shape=\(2, 4, 1\): .* at least width - 1 = 2"),
    ({"conv_state": STATE.to("meta")}, UnsupportedError, "conv_state.device=meta: must be that of x, cpu"),
    ({"conv_state": STATE.clone().requires_grad_()}, UnsupportedError, "conv_state.requires_grad=True: it is over"),
    ({"bias": W}, GeometryError, r"bias.shape=\(4, 3\): must be \[C\] = \(4,\)"),
    ({"activation": "gelu"}, UnsupportedError, "activation='gelu': causal_conv1d_update accepts None, 'silu'"),
    ({"conv_state_indices": torch.tensor([0, 2])}, GeometryError, r"indices=\[0, 2\]: must be below .* 2 rows"),
    ({"conv_state_indices": torch.tensor([1, 1])}, GeometryError, r"conv_state_indices=\[1, 1\]: must name each row"),
])  # fmt: skip
SPLITS = ((2, 8, True), (1, 16, True), (3, 5, False))
X, W = torch.ones(1, 47, 5), torch.ones(47, 4)
refused(pytorch.causal_conv1d_split, {"x": X, "weight": W, "splits": SPLITS}, [
    ({"x": X[0]}, LayoutError, "x.shape"),
    ({"x": X.numpy()}, DtypeError, "torch.Tensor"),
    ({"weight": W[1:]}, GeometryError, "weight.shape"),
    ({"weight": W.bfloat16()}, DtypeError, "bfloat16"),
    ({"weight": torch.ones(47, 17)}, UnsupportedError, "S=17"),
    ({"activation": "swish"}, UnsupportedError, "activation='swish'"),
    ({"cu_seqlens": (0, 4)}, GeometryError, "5 tokens"),
    ({"first_channel": 1}, GeometryError, "first_channel=1: must be an int"),
    ({"first_channel": 0, "weight": W[:, 0]}, LayoutError, "weight.shape"),
    ({"weight": W[:, :1], "return_final_states": True}, GeometryError, "one tap"),
    ({"state_positions": [6]}, GeometryError, r"state_positions=\(6,\).*x's 5 tokens"),
    ({"state_positions": torch.ones(2)}, GeometryError, r"state_positions=Tensor \(2,\) torch.float32"),
    ({"cu_seqlens": CU.to("meta")}, GeometryError, r"cu_seqlens=Tensor \(3,\) torch.int"),
    ({"cu_seqlens": CU.to_sparse()}, GeometryError, r"cu_seqlens=Tensor \(3,\) torch.int"),
])  # fmt: skip
STEP = {"x": X[:, :, 0], "conv_state": torch.ones(1, 47, 3), "weight": W, "splits": SPLITS}
refused(pytorch.causal_conv1d_split_update, STEP, [
    ({"weight": W[:, :1]}, GeometryError, "one tap"),
    ({"conv_state_indices": torch.tensor([3])}, GeometryError, "conv_state_indices"),
])  # fmt: skip
refused(nn.GatedDeltaConv, {"splits": SPLITS, "kernel_size": 4}, [
    ({"splits": (2, 3)}, GeometryError, "must be a tuple of"),
    ({"kernel_size": 0}, GeometryError, "kernel_size"),
])  # fmt: skip
PREFILL = {
    "x": integers(2, 6), "weight": integers(2, 4), "bias": None, "conv_states": integers(4, 2, 3),
    "query_start_loc": tensor([0, 4, 6]), "cache_indices": tensor([3, 1]),
}  # fmt: skip
refused(serving.causal_conv1d_fn, PREFILL, [
    ({"x": integers(1, 2, 6)}, LayoutError, "x.shape"),
    ({"weight": integers(3, 4)}, GeometryError, "weight.shape"),
    ({"conv_states": integers(4, 2, 2)}, GeometryError, "conv_states.shape"),
    ({"conv_states": integers(4, 2, 3).requires_grad_()}, UnsupportedError, "conv_states.requires_grad"),
    ({"query_start_loc": None}, DtypeError, "query_start_loc=None"),
    ({"query_start_loc": tensor([0, 4, 5])}, GeometryError, "query_start_loc="),
    ({"cache_indices": tensor([1, 1])}, GeometryError, "cache_indices="),
    ({"cache_indices": tensor([0, 4])}, GeometryError, "cache_indices=.0, 4"),
    ({"has_initial_state": torch.ones(2)}, DtypeError, "has_initial_state"),
    ({"activation": "relu"}, UnsupportedError, "activation="),
    ({"pad_slot_id": "none"}, GeometryError, "pad_slot_id="),
    ({"num_computed_tokens": tensor([0, 0])}, UnsupportedError, "num_computed_tokens"),
    ({"query_start_loc": tensor([6])}, GeometryError, "query_start_loc.shape=.1,.: must be .sequences . 1., 2 or more"),
    ({"conv_states": integers(2, 3)}, LayoutError, "conv_states.shape=.2, 3.: must have 3 axes, .slots, C, state_len."),
    ({"conv_states": integers(4, 3, 3)}, GeometryError, "conv_states.shape=.*: must be .slots, C, state_len. for C=2"),
    ({"conv_states": integers(1, 2, 3), "cache_indices": None}, GeometryError, "cache_indices=None: 2 sequences"),
])  # fmt: skip
STEP = {"x": integers(2, 2, 2), "conv_state": integers(4, 2, 5), "weight": integers(2, 4)}
refused(serving.causal_conv1d_update, STEP | {"conv_state_indices": tensor([3, 1])}, [
    ({"x": integers(2)}, LayoutError, "x.shape"),
    ({"num_accepted_tokens": tensor([1, 1]), "conv_state": integers(4, 2, 3)}, GeometryError, "conv_state.shape"),
    ({"num_accepted_tokens": tensor([1, 9])}, GeometryError, "num_accepted_tokens=.1, 9"),
    ({"x": integers(6, 2), "query_start_loc": tensor([0, 4, 6]), "max_query_len": 3}, GeometryError, "max_query_len="),
    ({"x": integers(6, 2), "query_start_loc": tensor([0, 4, 7])}, GeometryError, "query_start_loc="),
    ({"initial_state_idx": tensor([0, 0])}, UnsupportedError, "initial_state_idx"),
    ({"max_query_len": 2.0}, KindError, "max_query_len=2.0: must be an int; pass the longest sequence's tokens, or -1"),
])  # fmt: skip
BLOCKS = dict.fromkeys(("block_idx_last_scheduled_token", "initial_state_idx"), tensor([0, 0]))
refused(serving.causal_conv1d_update, STEP | BLOCKS, [
    ({"conv_state_indices": None}, UnsupportedError, "conv_state_indices=None: blocks of a sequence"),
    ({"conv_state_indices": tensor([3, 1])}, GeometryError, "conv_state_indices.shape=.2,.: must be .sequ"),
    ({"conv_state_indices": tensor([[3], [1]]), "initial_state_idx": tensor([0, 1])}, GeometryError,
     "conv_state_indices: blocks .0, 1. are not all among its 1"),
])  # fmt: skip
X, W = integers(2, 5, 3), integers(3, 4)
refused(fla.causal_conv1d, {"x": X, "weight": W}, [
    ({"x": X[0]}, LayoutError, "x.shape"),
    ({"weight": None}, DtypeError, "weight: must be"),
    ({"weight": W[:2]}, GeometryError, "weight.shape"),
    ({"residual": X[:1]}, GeometryError, "residual.shape=.1, 5, 3.: must be x"),
    ({"initial_state": integers(2, 3, 3)}, GeometryError, r"initial_state.shape=.*: must be .N, C, width. = .2, 3, 4."),
    ({"initial_state": integers(2, 2, 4)}, GeometryError, r"initial_state.shape=.2, 2, 4.: must be .N, C, width."),
    ({"residual": X.double()}, DtypeError, "residual.dtype=torch.float64: must be x's, torch.float32"),
    ({"output_final_state": "no"}, UnsupportedError, "output_final_state='no': must be True or False"),
])  # fmt: skip
refused(fla.causal_conv1d_update, {"x": X, "cache": integers(2, 3, 4), "residual": None, "weight": W}, [
    ({}, LayoutError, "x.shape=.2, 5, 3."),
    ({"x": X[:, 0], "cache": integers(3, 3, 4)}, GeometryError, "conv_state.shape"),
])  # fmt: skip
X, W = torch.zeros(1, 2, 5), torch.zeros(2, 2, 3)
refused(pytorch.conv1d_chunk, {"input": X, "state": None, "weight": W}, [
    ({"stride": 4}, GeometryError, "stride=4: must be from 1 to the window, 3"),
    ({"state": torch.zeros(1, 3, 2)}, GeometryError, r"state.shape=\(1, 3, 2\)"),
    ({"input": None}, DtypeError, "input: must be a torch.Tensor"),
    ({"input": X[..., :0]}, GeometryError, r"input.shape=\(1, 2, 0\)"),
])  # fmt: skip
refused(
    pytorch.conv_transpose1d_chunk, {"input": X, "state": X, "weight": W}, [({}, GeometryError, "must have 2 inputs")]
)
refused(functools.partial(pytorch.StreamingConv1d, 2, 2, 3), {}, [
    ({"front": -1}, GeometryError, "front=-1"),
    ({"stride": 4}, GeometryError, "stride=4"),
    ({"padding_mode": "reflect"}, UnsupportedError, "accepted are zeros, replicate"),
])  # fmt: skip
X, W = torch.ones(2, 12, 9), torch.ones(4, 3)
refused(pytorch.gated_short_conv, {"input": X, "weight": W}, [
    ({"layout": "NWC"}, GeometryError, r"\(2, 12, 9\): must be \[N, W, chunks \* D\] .* = \(2, 12, 12\)"),
    ({"input": X[0], "layout": "NWC"}, LayoutError, "N, W, C"),
    ({"order": torch.nested.nested_tensor([X[0]])}, LayoutError, r"order=Tensor \(\) torch.float32"),
    ({"input": X[:, :11]}, LayoutError, "no multiple of 3"),
    ({"weight": W[:3]}, GeometryError, r"input.shape=\(2, 12, 9\): must be .* = \(2, 9, 9\)"),
    ({"initial_states": X[:, :4, :3]}, GeometryError, "initial_states"),
    ({"weight": W.half()}, DtypeError, "weight"),
    ({"initial_states": X[:, :4, :2].half()}, DtypeError, "initial_states"),
    ({"initial_states": X[:, :4, :2].to("meta")}, UnsupportedError, "initial_states.device=meta: must be input's, cpu"),
    ({"return_final_states": X}, UnsupportedError, "return_final_states=Tensor"),
])  # fmt: skip
refused(pytorch.glu_conv1d, {"input": X[:, :8], "weight": W}, [
    ({"padding": "top"}, GeometryError, "padding"),
    ({"activation": "absent"}, UnsupportedError, "activation"),
    ({"return_final_states": True}, GeometryError, "use 'causal'"),
])  # fmt: skip
ROWS += [
    (lambda: pytorch.install_causal_conv1d(replace="no"), UnsupportedError, "replace='no': must be True or False"),
    (lambda: nn.GatedShortConv.from_module(torch.nn.Conv1d(4, 4, 3)), UnsupportedError, "filter a channel"),
    (lambda: nn.ConformerConv.from_modules(torch.nn.Conv1d(4, 4, 3, groups=4), torch.nn.BatchNorm1d(4)),
     UnsupportedError, "eval mode"),
]  # fmt: skip
refused(pytorch.conv_transpose1d_chunk, {"input": torch.ones(2, 4, 9), "state": None, "weight": torch.ones(4, 6, 3)}, [
    ({"dilation": 2**70}, GeometryError, "dilation=1180591620717411303424: must be at most"),
    ({"stride": 0, "dilation": 0}, GeometryError, "2 reasons"),
])  # fmt: skip
X, W = torch.ones(1, 4, 9), torch.ones(4, 3)
refused(pytorch.causal_conv1d_fn, {"x": X, "weight": W}, [
    ({"return_final_states": "same"}, UnsupportedError, "return_final_states='same': must be True or False"),
    ({"seq_idx": tensor([[0] * 9]).to_sparse()}, LayoutError, "seq_idx.layout=torch.sparse_coo"),
])  # fmt: skip
refused(pytorch.causal_conv1d_split, {"x": X, "weight": W, "splits": ((1, 4, False),)}, [
    ({"cu_seqlens": 3, "initial_states": X[..., :2]}, GeometryError, "cu_seqlens=3: must be a tuple of ints"),
])  # fmt: skip


def kept(value):
    """A copy of a tensor that has numbers to compare."""
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested
    plain = plain and not value.is_quantized
    return value.detach().clone() if plain and value.device.type == "cpu" else None


@pytest.mark.parametrize(("call", "error", "words"), ROWS, ids=[row[2][:40] for row in ROWS])
def test_refused(call, error, words):
    given = getattr(call, "keywords", {})
    before = {name: kept(one) for name, one in given.items()}
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, (ValueError, TypeError))
    assert isinstance(caught.value, RuntimeError)  # as torch's are
    assert len(str(caught.value)) < 500
    assert all(one is None or torch.equal(given[name].detach(), one) for name, one in before.items())
