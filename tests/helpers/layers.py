"""Layers that do more than convolve, and the same by torch's functions alone, in the dtype of what they take."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F
from torch_exact import activation_of, torchs

from nkiconv import pytorch
from nkiconv.pytorch.computers.statistics import Norm, moments

SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}
#: One mean and one variance of each image and channel.
EACH = Norm("instance", None, 0.0)
IN_TORCH = {False: {"padding": 1}, True: {"stride": 2, "padding": 1, "output_padding": 1}}


@dataclass(frozen=True)
class Form:
    """What the calls of one kind have; their results are y, and with `stats` mean and variance of it."""

    transposed: bool = False
    stats: bool = False
    x_upsample: int = 1

    @property
    def ranks(self):
        return (1, 2, 3) if self.x_upsample == 1 else (2,)

    def groups(self, x, w):
        return 4 // w.shape[1] if self.transposed else x.shape[1 - w.ndim] // w.shape[1]

    def tensors(self, rank, form="image", residual=True, groups=2, channels=6):
        """x, w, bias, residual, x_scale, x_shift of a convolution with 3 taps and padding 1."""
        of_x = (channels,) if form == "channel" else (2, channels)
        of_y = (2, 4, *((2 if self.transposed else self.x_upsample) * size for size in SIZES[rank]))
        of_w = (channels, 4 // groups) if self.transposed else (4, channels // groups)
        found = randoms((2, channels, *SIZES[rank]), (*of_w, *[3] * rank), (4,), of_y, of_x, of_x, seed=rank)
        return found if residual else [*found[:3], None, *found[4:]]

    def call(self, x, w, bias, residual, scale, shift, act="silu", **more):
        """What nkiconv's function returns."""
        function = getattr(pytorch, f"conv{'_transpose' * self.transposed}{w.dim() - 2}d")
        more |= IN_TORCH[self.transposed] | {"groups": self.groups(x, w), "residual": residual}
        more |= {"x_upsample": self.x_upsample} if self.x_upsample > 1 else {}
        more |= {"return_stats": "channel"} if self.stats else {}
        return function(x, w, bias, x_scale=scale, x_shift=shift, x_activation=act, **more)

    def ours(self, *given, **more):
        return self.moments(self.call(*given, **more))

    def moments(self, found):
        return (found[0], *moments(found[1], EACH)) if self.stats else found

    def torchs(
        self, x, w, bias, residual, scale, shift, act="silu", activation=None, residual_position="pre_activation"
    ):
        """By torch's functions alone, in the dtype of what they take."""
        rank = w.dim() - 2
        h = x if scale is None else x * scale.reshape(*scale.shape, *[1] * rank)
        h = activation_of(act)(h if shift is None else h + shift.reshape(*shift.shape, *[1] * rank))
        for axis in range(2, 2 + rank):
            h = h.repeat_interleave(self.x_upsample, axis)
        convolve = getattr(F, f"conv{'_transpose' * self.transposed}{rank}d")
        y = convolve(h, w, bias, groups=self.groups(x, w), **IN_TORCH[self.transposed])
        if residual is not None and residual_position == "pre_activation":
            y = y + residual
        y = activation_of(activation)(y)
        if residual is not None and residual_position == "post_activation":
            y = y + residual
        return (y, y.flatten(2).mean(2), y.flatten(2).var(2, correction=0)) if self.stats else y


FORMS = {
    "prologue": Form(),
    "upsampled": Form(x_upsample=2),
    "statistics": Form(stats=True),
    "statistics of upsampled": Form(stats=True, x_upsample=2),
    "transposed": Form(transposed=True),
    "statistics of transposed": Form(transposed=True, stats=True),
}


def randoms(*shapes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(one, generator=generator).to(dtype) for one in shapes]


def norm_act(x, w, bias, gamma, beta, *numbers, names=(), norm="group", act="silu", **more):
    more |= {"norm": norm, "norm_weight": gamma, "norm_bias": beta, "x_activation": act, "padding": 1}
    more |= {"num_groups": 3} if norm == "group" else {}
    return getattr(pytorch, f"norm_act_conv{w.dim() - 2}d")(
        x, w, bias, **more, **dict(zip(names, numbers, strict=True))
    )


def normed(x, gamma, beta, norm, eps=1e-5):
    """torch's norm of groups; of its others the tangent has a wrong gradient."""
    if norm == "group":
        return F.group_norm(x, 3, gamma, beta, eps)
    axes, each = [0] * (norm == "batch") + [*range(2, x.dim())], [-1, *[1] * (x.dim() - 2)]
    x = x - x.mean(axes, keepdim=True)
    x = x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return x * gamma.reshape(each) + beta.reshape(each)


def norm_act_in_torch(x, w, bias, gamma, beta, *numbers, names=(), norm="group", act="silu"):
    """What is normed is x + offset; what is activated is the norm times scale, plus shift."""
    rank = w.dim() - 2
    of = {name: one.reshape(-1, 6, *[1] * rank) for name, one in zip(names, numbers, strict=True)}
    z = normed(x + of.get("offset", 0), gamma, beta, norm) * of.get("scale", 1) + of.get("shift", 0)
    return getattr(F, f"conv{rank}d")(activation_of(act)(z), w, bias, padding=1)


def of_norm_act(rank, *numbers):
    """x, w, bias, the norm's weight and bias, and what else has these shapes."""
    return randoms((2, 6, *SIZES[rank]), (4, 6, *[3] * rank), (4,), (6,), (6,), *numbers)


def rows_norm(rows, kind, weight, bias):
    """A norm over the last axis; of torch's layer_norm the tangent has a wrong gradient."""
    rows = rows - rows.mean(-1, keepdim=True) if kind == "layer" else rows
    rows = F.rms_norm(rows, rows.shape[-1:], weight, eps=1e-6)
    return rows if bias is None else rows + bias


def y_norm(x, w, bias, residual, gamma, beta, frames=None, kind="rms", position="pre_activation", **more):
    """y and what its norm reads, of padding that keeps sizes, in front in time."""
    padding = ((0, 0) if frames is not None else (2, 0), (1, 1), (1, 1)) if w.dim() == 5 else 1
    named = {"residual": residual, "y_norm": kind, "y_norm_weight": gamma, "y_norm_bias": beta, "padding": padding}
    named |= {} if frames is None else {"initial_frames": frames}
    call = pytorch.conv3d if w.dim() == 5 else pytorch.conv2d
    given = {"activation": "silu", "residual_position": position, "return_before_norm": True}
    return call(x, w, bias, **(given | named | more))


def y_norm_in_torch(x, w, bias, residual, gamma, beta, frames=None, kind="rms", position="pre_activation"):
    rank, before = w.dim() - 2, position == "pre_activation"
    if rank == 3:
        x = F.pad(x, (0, 0, 0, 0, 2, 0)) if frames is None else torch.cat([frames, x], 2)
    u = getattr(F, f"conv{rank}d")(x, w, bias, padding=(0, 1, 1)[-rank:]) + (residual if before else 0)
    y = F.silu(rows_norm(u.movedim(1, -1), kind, gamma, beta).movedim(-1, 1))
    return (y if before else y + residual), u


def of_y_norm(rank, frames):
    """x, w, bias, residual, the norm's weight and bias, and frames."""
    sizes = SIZES[rank]
    shapes = (2, 3, *sizes), (4, 3, *[3] * rank), (4,), (2, 4, *sizes), (4,), (4,), (2, 3, 2, *sizes[1:])
    return randoms(*shapes[: 6 + frames], seed=rank)


def short_conv(bcx, w, bias=None, states=None, order="BCx"):
    """y and final states of LFM2's stage by torch alone."""
    parts = dict(zip(order, bcx.chunk(3, 1), strict=True))
    product, size = parts["B"] * parts["x"], w.shape[-1] - 1
    before = product.new_zeros(*product.shape[:2], size) if states is None else states
    rows = torch.cat([before, product], 2)
    return parts["C"] * F.conv1d(rows, w.reshape(-1, 1, size + 1), bias, groups=w.shape[0]), rows[..., -size:]


def short_conv_of_tokens(bcx, *given):
    """The same of token-major rows."""
    y, states = short_conv(bcx.transpose(1, 2), *given)
    return y.transpose(1, 2), states


def glu(x, w, bias, padding="same"):
    half, gate = x.chunk(2, 1)
    x = half * gate.sigmoid()  # F.glu's tangents have no derivatives
    rows = F.pad(x, (2, 0)) if padding == "causal" else x
    return F.silu(F.conv1d(rows, w[:, None], bias, padding=0 if padding == "causal" else padding, groups=len(w)))


SPLITS = ((2, 8, True), (1, 16, True), (3, 5, False))


def of_split(N=2, L=11, layout="NCW", dtype=torch.float32, rows=None):
    """x, weight, bias, initial states."""
    return randoms((N, 47, L) if layout == "NCW" else (N, L, 47), (47, 4), (47,), (rows or N, 47, 3), dtype=dtype)


def split_in_torch(x, w, bias=None, state=None, layout="NCW", offsets=None, eps=1e-6):
    """Parts, and final states."""
    rows = x if layout == "NCW" else x.transpose(1, 2)
    state = rows.new_zeros(len(x), 47, 3) if state is None else state
    pieces = [
        torch.cat([state if offsets is None else state[k : k + 1], rows[:, :, first:end]], 2)
        for k, (first, end) in enumerate(itertools.pairwise(offsets or (0, rows.shape[2])))
    ]
    sums = [F.conv1d(one, w[:, None], bias, groups=47) for one in pieces if one.shape[2] > 3]
    z, found, first = F.silu(torch.cat(sums, 2)), [], 0
    for heads, dim, normalised in SPLITS:
        part = z[:, first : first + heads * dim].transpose(1, 2).reshape(len(z), -1, heads, dim)
        found.append(part / (part.square().sum(-1, keepdim=True) + eps).sqrt() if normalised else part)
        first += heads * dim
    return *found, torch.cat([one[..., -3:] for one in pieces])


def held_after(rows, state, positions, starts):
    """The last three inputs of each position's sequence, its initial state in front: [N, positions, C, 3]."""
    found = []
    for position in positions:
        k = max(k for k, start in enumerate(starts) if start < position)
        before = state if len(starts) == 1 else state[k : k + 1]
        found.append(torch.cat([before, rows[:, :, starts[k] : position]], 2)[:, :, -3:])
    return torch.stack(found, 1)


ENDS = (0, 2, 2, 9, 11)


def split(x, w, bias=None, state=None, **more):
    parts, *states = pytorch.causal_conv1d_split(
        x, w, bias, splits=SPLITS, initial_states=state, return_final_states=True, **more
    )
    return *parts, *states


def mlp(x, w1, w2, bias1=None, bias2=None, residual=None, *norm, kind=None):
    named = dict(zip(("x_norm_weight", "x_norm_bias"), norm, strict=False))
    return pytorch.pointwise_mlp(x, w1, w2, bias1=bias1, bias2=bias2, residual=residual, x_norm=kind, **named)


def mlp_in_torch(x, w1, w2, bias1=None, bias2=None, residual=0.0, gamma=None, beta=None, kind=None):
    rows = x.movedim(1, -1)
    rows = rows if kind is None else rows_norm(rows, kind, gamma, beta)
    return F.linear(F.gelu(F.linear(rows, w1, bias1)), w2, bias2).movedim(-1, 1) + residual


def of_mlp(kind=None, pixels=(4, 3)):
    """x, filters, biases, residual, and the norm's weight and bias."""
    shapes = (2, 5, *pixels), (12, 5), (7, 12), (12,), (7,), (2, 7, *pixels), (5,), (5,)
    x, *others = randoms(*shapes[: 6 if kind is None else 8])
    return [x, *(one / 4 for one in others)]


def frames(x, w, bias, residual, before):
    more = {"padding": (0, 1, 1), "activation": "relu", "return_final_frames": 4}
    return pytorch.conv3d(x, w, bias, residual=residual, initial_frames=before, **more)


def frames_in_torch(x, w, bias, residual, before):
    both = torch.cat([before, x], 2)
    return F.relu(F.conv3d(both, w, bias, padding=(0, 1, 1)) + residual), both[:, :, -4:]


def by_phases(x, w, bias=None, padding=(1, 2), groups=2):
    """Filters of transposed convolutions that are convolutions of each row and column twice."""
    sides = tuple(taps - 1 - side for taps, side in zip(w.shape[2:], padding, strict=True))
    return pytorch.conv_transpose2d(x, pytorch.polyphase_filter(w, groups), bias, 2, sides, groups=groups)


def grown_in_torch(x, w, bias=None, padding=(1, 2), groups=2):
    return F.conv2d(x.repeat_interleave(2, 2).repeat_interleave(2, 3), w, bias, padding=padding, groups=groups)


def causal(x, w, bias, states, **more):
    more |= {"initial_states": states, "return_final_states": True, "activation": "silu"}
    return pytorch.causal_conv1d_fn(x, w, bias, **more)


def causal_in_torch(x, w, bias, states):
    rows = torch.cat([states, x], 2)
    return F.silu(F.conv1d(rows, w[:, None], bias, groups=len(w))), rows[..., x.shape[2] :]


def sequences_in_torch(x, w, bias, states):
    """Of one row, each on its own."""
    each = zip(x.split((2, 3), 2), states.split(1), strict=True)
    found = [causal_in_torch(one, w, bias, before) for one, before in each]
    return torch.cat([one for one, _ in found], 2), torch.cat([one for _, one in found])


def numbered_in_torch(x, w, bias, states):
    """The same of rows that go on with the last number."""
    zeros = torch.zeros_like(states)
    found = [sequences_in_torch(x[n : n + 1], w, bias, torch.stack([states[n], zeros[n]])) for n in range(len(x))]
    return torch.cat([one for one, _ in found]), torch.cat([one[1:] for _, one in found])


class Layer(NamedTuple):
    """A layer's function, the same by torch, arguments of both, which of these have images, and what kernels refuse, or
    with "torch" torch too."""

    ours: Callable
    torchs: Callable
    given: list
    images: tuple[int, ...] = (0,)
    refuses: tuple[str, ...] = ()
    wide: tuple[int, ...] = ()  # arguments in fp32 whatever x is


#: Functions that convolve, and arguments of torch's and ours.
FUNCTIONS = {
    "conv1d": {"stride": 2, "padding": 1, "groups": 2},
    "conv2d": {"stride": (2, 1), "dilation": (1, 2), "padding": 1, "groups": 2},
    "conv3d": {"dilation": (2, 1, 1), "padding": (2, 0, 1), "groups": 2},
    "depthwise_conv1d": {"padding": 1, "dilation": 2}, "depthwise_conv2d": {"stride": 2, "padding": 1},
    "conv_transpose1d": {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    "conv_transpose2d": {"stride": (2, 1), "padding": 1, "dilation": (1, 2), "groups": 2},
    "conv_transpose3d": {"padding": 1, "groups": 2},
}  # fmt: skip


def function(name, x, w, bias, residual, activation=None, position="pre_activation"):
    more = {"activation": activation, "residual": residual, "residual_position": position}
    return getattr(pytorch, name)(x, w, bias, **more, **FUNCTIONS[name])


def function_in_torch(name, x, w, bias, residual, activation=None, position="pre_activation"):
    z = torchs(name, x, w, bias, **FUNCTIONS[name])
    z = z + residual if position == "pre_activation" else z
    y = activation_of(activation)(z)
    return y + residual if position == "post_activation" else y


def of_function(name):
    """x, w, bias, residual."""
    rank = int(name[-2])
    x, w, bias = randoms((2, 4, *[6 - rank] * rank), (4, 1 if "depth" in name else 2, *[3] * rank), (4,))
    return [x, w, bias, *randoms(torchs(name, x, w, bias, **FUNCTIONS[name]).shape, seed=1)]


def pair_of(name, **more):
    """nkiconv's and torch's."""
    return functools.partial(function, name, **more), functools.partial(function_in_torch, name, **more)


#: Norms before convolutions: kind, rank, numbers of channels, whether each image has its own.
_NORMS = (
    ("group", 1, (), 0), ("batch", 1, (), 0), ("instance", 1, (), 0), ("group", 2, ("offset",), 1),
    ("group", 3, ("offset", "shift"), 0), ("batch", 2, ("offset",), 1), ("batch", 3, ("scale", "shift"), 0),
    ("instance", 2, ("scale",), 1),
)  # fmt: skip


def b2b_in_torch(x, proj, mixer, skip):
    """y, and the states, as cuDNN's documentation has them."""
    rows = F.conv1d(F.pad(x, (proj.shape[1] - 1, 0)), proj[:, None], groups=len(proj))
    x2, x1, v = rows.chunk(3, 1)
    u, w = x1 * v, mixer.repeat_interleave(len(skip) // len(mixer), 0)
    y = x2 * (F.conv1d(F.pad(u, (w.shape[1] - 1, 0)), w[:, None], groups=len(w)) + skip[:, None] * u)
    return y, x[..., 1 - proj.shape[1] :], u[..., 1 - w.shape[1] :]


def b2b(x, proj, mixer, skip):
    y, states = pytorch.b2b_causal_conv1d(x, proj, mixer, skip, interleaved=False, return_final_states=True)
    return y, *states


_GATED = randoms((2, 12, 9), (4, 3), (4,), (2, 4, 2))
_FRAMES = randoms((2, 4, 3, 5, 6), (6, 4, 3, 3, 3), (6,), (2, 6, 3, 5, 6), (2, 4, 2, 5, 6))
LAYERS = {
    **{name: Layer(*pair_of(name), of_function(name), (0, 3)) for name in FUNCTIONS},
    "conv1d, silu": Layer(*pair_of("conv1d", activation="silu"), of_function("conv1d"), (0, 3)),
    "conv2d, gelu, then a sum": Layer(
        *pair_of("conv2d", activation="gelu", position="post_activation"), of_function("conv2d"), (0, 3)),
    **{name: Layer(one.ours, one.torchs, one.tensors(one.ranks[0]), (0, 3, 4, 5), (), (4, 5))
       for name, one in FORMS.items()},
    "prologue of channels": Layer(
        FORMS["prologue"].ours, FORMS["prologue"].torchs, FORMS["prologue"].tensors(2, "channel"), (0, 3), (), (4, 5)),
    "statistics, far mean": Layer(FORMS["statistics"].ours, FORMS["statistics"].torchs,
        [one + 30 * (i == 2) for i, one in enumerate(FORMS["statistics"].tensors(1))], (0, 3, 4, 5), (), (4, 5)),
    **{f"{kind} norm, {rank}d, {' '.join(names)}": Layer(functools.partial(norm_act, norm=kind, names=names),
        functools.partial(norm_act_in_torch, norm=kind, names=names),
        of_norm_act(rank, *[(2, 6) if each else (6,)] * len(names)), () if kind == "batch" else (0, 5)[: 1 + each],
    ) for kind, rank, names, each in _NORMS},
    **{f"{kind} of pixels, {rank}d, {position}{', frames' * given}": Layer(
        functools.partial(y_norm, kind=kind, position=position),
        functools.partial(y_norm_in_torch, kind=kind, position=position), of_y_norm(rank, given),
        (0, 3, 6)[: 2 + given], ("tangents",),
    ) for kind, rank, given, position in (
        ("rms", 2, False, "post_activation"), ("layer", 2, False, "pre_activation"),
        ("rms", 3, False, "pre_activation"), ("layer", 3, True, "post_activation"))},
    **{f"short conv, {order}": Layer(functools.partial(pytorch.gated_short_conv, order=order, return_final_states=True),
        functools.partial(short_conv, order=order), _GATED, (0, 3), ("tangents",),
    ) for order in ("BCx", "xCB")},
    "short conv, tokens": Layer(
        functools.partial(pytorch.gated_short_conv, layout="NWC", return_final_states=True), short_conv_of_tokens,
        [_GATED[0].transpose(1, 2).contiguous(), *_GATED[1:]], (0, 3), ("tangents",)),
    **{f"glu, {padding}": Layer(
        functools.partial(pytorch.glu_conv1d, padding=padding), functools.partial(glu, padding=padding),
        [_GATED[0][:, :8], *_GATED[1:3]], (0,), ("tangents",),
    ) for padding in ("same", "causal", 2)},
    **{f"split, {layout}": Layer(
        functools.partial(split, layout=layout), functools.partial(split_in_torch, layout=layout),
        of_split(layout=layout), (0, 3), ("tangents",),
    ) for layout in ("NCW", "NWC")},
    "split of a projection": Layer(functools.partial(split, layout="NWC", first_channel=2),
        lambda x, *given: split_in_torch(x[..., 2:49], *given, layout="NWC"),
        [*randoms((2, 11, 52)), *of_split()[1:]], (0, 3), ("tangents",)),
    "b2b": Layer(b2b, b2b_in_torch, randoms((2, 18, 11), (18, 3), (2, 7), (6,)), (0,), ("tangents",)),
    # four sequences, one of which is empty, with states after positions
    "split, packed": Layer(functools.partial(split, cu_seqlens=torch.tensor(ENDS), state_positions=(2, 6, 11)),
        lambda *given: (*split_in_torch(*given, offsets=ENDS), held_after(given[0], given[3], (2, 6, 11), ENDS[:-1])),
        of_split(1, rows=4), (), ("tangents", "vmap")),
    **{f"mlp, {kind}": Layer(
        functools.partial(mlp, kind=kind), functools.partial(mlp_in_torch, kind=kind), of_mlp(kind, pixels), (0, 5),
        ("tangents",),
    ) for kind, pixels in ((None, (4, 3)), ("rms", (9,)), ("layer", (2, 3, 2)))},
    "mlp, filters alone": Layer(functools.partial(mlp, kind="layer"), functools.partial(mlp_in_torch, kind="layer"),
        [9 * one if i == 0 else one for i, one in enumerate(of_mlp()[:3])], (0,), ("tangents",)),
    "polyphase": Layer(by_phases, grown_in_torch, randoms((2, 6, 4, 5), (4, 3, 3, 4), (4,)), (0,)),
    "frames": Layer(frames, frames_in_torch, _FRAMES, (0, 3, 4)),
    "causal, packed": Layer(functools.partial(causal, cu_seqlens=torch.tensor([0, 2, 5])), sequences_in_torch,
        randoms((1, 3, 5), (3, 4), (3,), (2, 3, 3)), (), ("tangents", "vmap", "torch")),
    "causal, numbered": Layer(functools.partial(causal, seq_idx=torch.tensor([[0, 0, 1, 1, 1]] * 2)), numbered_in_torch,
        randoms((2, 3, 5), (3, 4), (3,), (2, 3, 3)), (), ("tangents", "vmap", "torch")),
    "causal": Layer(causal, causal_in_torch, randoms((2, 3, 5), (3, 4), (3,), (2, 3, 3)), (0, 3)),
}  # fmt: skip
