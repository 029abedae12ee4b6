"""Chains of norm, activation, convolution, residual and statistics: one fused launch beside separate ones.

Every chain gives its launches three ways: the convolution alone, fused, and the best separate launches of nkiconv,
where a pass that no kernel of nkiconv makes is priced as a copy of its bytes, the least that it can take.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import cases
from ...b2b import CHUNKS
from ...kernels.blocks.b2b_causal_conv1d import b2b_causal_conv1d_fused
from ...kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads, causal_conv1d_split_step
from ...kernels.blocks.pointwise_mlp import pointwise_mlp_fused
from ...kernels.statistics import channel_statistics, norm_scale_and_shift
from ...planner.candidates import Candidate
from ...planner.entry import plan
from ...planner.floors import pass_us
from ...planner.request import Request
from ...planner.timing import trace
from ...problem import ConvProblem
from ...schedules.b2b import B2bGeometry
from ...schedules.b2b import pays as b2b_pays
from ...simulator import ArraySpec
from ...simulator.dtypes import canonical
from ...simulator.profiling import Advance, ignore, profile
from ...simulator.profiling.roofline import roofline
from ...simulator.timing import Rates
from .csv_rows import measured

#: Cores and dtype of a chain's launch.
LNC, DTYPE = 2, "bf16"


@dataclass(frozen=True)
class Launch:
    """One kernel of a chain, modelled us."""

    what: str
    us: float


#: The convolution alone, fused launches, and separate ones.
Launches = tuple[Launch, Sequence[Launch], Sequence[Launch]]


@dataclass(frozen=True)
class Chain:
    """One chain: a row of data/chains.csv, its bytes and flops at the least, and its launches three ways: the
    convolution alone, fused, and separate."""

    name: str
    model: str
    shape: str
    min_bytes: int
    flops: int
    launches: Callable[[], Launches]


@dataclass(frozen=True)
class Row:
    """A chain's times, modelled us, and the H200's, measured, or None."""

    chain: str
    model: str
    shape: str
    alone_us: float
    fused_us: float
    separate_us: float
    limit_us: float
    launches: str
    separate_launches: str
    h200_fraction: float | None

    @property
    def over_alone(self) -> float:
        """The fused chain over the convolution alone."""
        return self.fused_us / self.alone_us

    @property
    def gain(self) -> float:
        """The separate launches over the fused chain."""
        return self.separate_us / self.fused_us

    @property
    def fraction(self) -> float:
        """Of trn2's limit that the fused chain reaches, modelled."""
        return self.limit_us / self.fused_us

    def as_dict(self) -> dict[str, Any]:
        """The columns of the table."""
        shares = {"over_alone": self.over_alone - 1, "gain": self.gain, "fraction": self.fraction}
        ahead = None if self.h200_fraction is None else self.fraction / self.h200_fraction
        return {**dataclasses.asdict(self), **shares, "ahead": ahead}


def convolved(problem: ConvProblem, what: str, **asked: Any) -> Launch:
    """A convolution by its fastest plan, timed as a whole where the plan's time is extrapolated from parts."""
    found = plan(problem, lnc=LNC, **asked)
    if found.extrapolated_from is None:
        return Launch(what, found.modelled_us)
    request, rates = Request(problem=problem, lnc=LNC, asked=found.asked, operation=found.operation), Rates({})
    return Launch(what, trace(request, Candidate(found.algorithm, found.config), rates).timed.us)


def launched(what: str, kernel: Any, *args: Any, **kwargs: Any) -> Launch:
    """A kernel without a planner, on arrays without data."""
    return Launch(what, profile(kernel[LNC])(*args, **kwargs).modelled_us)


def passed(what: str, elements: int, reads: float = 1) -> Launch:
    """A pass that reads so many tensors of so many elements and writes one, as a copy of these bytes."""
    return Launch(what, pass_us(elements, DTYPE, LNC, reads))


def of(*shape: int) -> ArraySpec:
    """An array without data, in DTYPE."""
    name = canonical(DTYPE)
    assert name is not None
    return ArraySpec(shape, name)


def fp32(*shape: int) -> ArraySpec:
    """The same in fp32."""
    return ArraySpec(shape, "float32")


def group_norm(channels: int, size: int) -> Chain:
    """GroupNorm(32), SiLU, conv3x3, bias, residual, and the statistics for the next norm: a VAE's residual block."""
    problem = ConvProblem(N=1, C=channels, H=size, W=size, K=channels, R=3, S=3, padding=((1, 1), (1, 1)), dtype=DTYPE)
    elements = channels * size * size
    added = {"bias": True, "residual": "pre_activation"}
    prologue = {"x_scale": "image", "x_shift": "image", "x_activation": "silu"}

    def launches() -> Launches:
        affine = {"weight": of(channels), "bias": of(channels)}
        norm = launched("norm_scale_shift", norm_scale_and_shift, (fp32(LNC, 1, channels, 3),), **affine)
        fused = convolved(problem, "conv2d with prologue and statistics", **added, **prologue, **STATISTICS)
        separate = (
            launched("channel_stats", channel_statistics, of(1, channels, size, size)),
            norm,
            passed("scale, shift, SiLU", elements),
            convolved(problem, "conv2d with bias and residual", **added),
        )
        return convolved(problem, "conv2d"), (norm, fused), separate

    return Chain(
        f"group_norm_{channels}",
        "SDXL, FLUX VAE",
        f"{channels} channels, {size} x {size}, 3x3",
        3 * elements * problem.itemsize,
        problem.flops,
        launches,
    )


def gated(name: str, model: str, problem: ConvProblem, chunks: str, **asked: Any) -> Chain:
    """A depthwise convolution of rows whose input, and perhaps y, is gated by other chunks of x's channels."""
    elements, bias, activation = problem.N * problem.C * problem.W, asked.get("bias"), asked.get("activation")

    def launches() -> Launches:
        separate = [
            passed("gate of x", elements, reads=2),
            convolved(problem, "depthwise_conv1d", bias=bool(bias), activation=activation),
        ]
        if "C" in chunks:
            separate.append(passed("gate of y", elements, reads=2))
        fused = convolved(problem, f"depthwise_conv1d of chunks {chunks}", chunks=chunks, **asked)
        return convolved(problem, "depthwise_conv1d", **asked), (fused,), separate

    return Chain(
        name,
        model,
        f"{problem.N} x {problem.C} channels, {problem.W} columns, {problem.S} taps",
        (len(chunks) + 1) * elements * problem.itemsize,
        problem.flops,
        launches,
    )


def back_to_back(taps: int) -> Chain:
    """The short projection filters of 3 * 4096 channels, gate, filter of so many taps, gate: Evo 2 7B, 8192 tokens."""
    C, W, S = 4096, 8192, 3

    def rows(channels: int, taps: int) -> ConvProblem:
        left = ((0, 0), (taps - 1, 0))
        return ConvProblem(N=1, C=channels, W=W, S=taps, groups=channels, padding=left, dtype=DTYPE)

    first, second = rows(3 * C, S), rows(C, taps)

    def launches() -> Launches:
        of_x, alone = convolved(first, "depthwise_conv1d of x"), convolved(second, "depthwise_conv1d")
        separate = of_x, passed("gate of v", C * W, reads=2), alone, passed("gate of y", C * W, reads=2)
        if b2b_pays(B2bGeometry(1, C, W, S, taps, first.itemsize)):
            every = of(1, 3 * C, W), of(3 * C, S), of(C, taps)
            return alone, (launched("b2b_causal_conv1d", b2b_causal_conv1d_fused, *every),), separate
        fused = of_x, convolved(second, f"depthwise_conv1d of chunks {CHUNKS}", chunks=CHUNKS)
        return alone, fused, separate

    return Chain(
        f"evo2_{taps}",
        "Evo 2, StripedHyena 2",
        f"1 x {C} channels, {W} columns, {S} and {taps} taps",
        4 * C * W * first.itemsize,
        first.flops + second.flops,
        launches,
    )


def normed(name: str, problem: ConvProblem, residual: str | None) -> Chain:
    """A convolution whose pixels are normalised over their channels before they are written; with a residual, the
    second of a block, whose sum is written too."""
    what, plain = "RMSNorm and SiLU", {"bias": True, "residual": residual}
    asked = {**plain, "y_norm": "rms", "y_norm_weight": True, "activation": "silu"}
    asked["return_before_norm"] = residual is not None
    elements = problem.N * problem.K * math.prod(axis.out for axis in problem.axes)
    inputs = problem.N * problem.C * math.prod(axis.size for axis in problem.axes)

    def launches() -> Launches:
        alone = convolved(problem, "convolution", **plain)
        return alone, (convolved(problem, f"convolution with {what}", **asked),), (alone, passed(what, elements))

    return Chain(
        f"{name}_residual" if residual else name,
        "Wan video VAE",
        f"{problem.N} x {problem.C} to {problem.K} channels, {' x '.join(str(axis.size) for axis in problem.axes)}",
        (inputs + (3 if residual else 1) * elements) * problem.itemsize,
        problem.flops,
        launches,
    )


def layers(channels: int, size: int, norm: str | None = None) -> Launch:
    """The two 1x1 of ConvNeXt's block on 32 images in one kernel, with their GELU, the sum, and perhaps the norm."""
    x, hidden = of(32, channels, size, size), 4 * channels
    more: dict[str, Any] = {"bias1": fp32(hidden), "bias2": fp32(channels), "residual": x}
    if norm is not None:
        more |= {"x_norm": norm, "x_norm_weight": fp32(channels), "x_norm_bias": fp32(channels)}
    what = f"pointwise_mlp with {'LayerNorm and ' if norm else ''}residual"
    return launched(what, pointwise_mlp_fused, x, of(hidden, channels), of(channels, hidden), **more)


def normed_layers(channels: int, size: int) -> Chain:
    """LayerNorm and both 1x1 of ConvNeXt's block: the norm in the kernel of the layers, and apart."""
    elements = 32 * channels * size * size

    def launches() -> Launches:
        alone = layers(channels, size)
        return alone, (layers(channels, size, "layer"),), (passed("LayerNorm", elements), alone)

    return Chain(
        f"convnext_layers_{channels}",
        "ConvNeXt",
        f"32 x {channels} channels, {size} x {size}, LayerNorm and two 1x1",
        3 * of(elements).num_bytes,
        2 * 2 * elements * 4 * channels,
        launches,
    )


def convnext(channels: int, size: int) -> Chain:
    """ConvNeXt's block on 32 images: 7x7 depthwise, LayerNorm, 1x1 and GELU, 1x1, scale and sum. The scale is in the
    filter of the last."""
    whole: dict[str, Any] = {"N": 32, "H": size, "W": size, "dtype": DTYPE}
    spread = ConvProblem(**whole, C=channels, K=channels, groups=channels, R=7, S=7, padding=((3, 3), (3, 3)))
    wide = ConvProblem(**whole, C=channels, K=4 * channels, R=1, S=1)
    narrow = ConvProblem(**whole, C=4 * channels, K=channels, R=1, S=1)
    elements = spread.N * channels * size * size

    def launches() -> Launches:
        first, second, third = (
            convolved(problem, what, bias=True) for problem, what in ((spread, "7x7"), (wide, "1x1"), (narrow, "1x1"))
        )
        alone = Launch("7x7, 1x1, 1x1", first.us + second.us + third.us)
        separate = (
            first, passed("LayerNorm", elements), second, passed("GELU", 4 * elements), third,
            passed("scale and sum", elements, reads=2),
        )  # fmt: skip
        return alone, (first, layers(channels, size, "layer")), separate

    return Chain(
        f"convnext_block_{channels}",
        "ConvNeXt",
        f"32 x {channels} channels, {size} x {size}, 7x7 and two 1x1",
        2 * elements * spread.itemsize,
        sum(problem.flops for problem in (spread, wide, narrow)),
        launches,
    )


#: The argument that asks a convolution for statistics of y.
STATISTICS: dict[str, Any] = {"return_stats": "channel"}


def bottleneck(channels: int, size: int, training: bool) -> Chain:
    """ResNet-50's bottleneck on 32 images: 1x1, 3x3 and 1x1, BatchNorm and ReLU after each, the last with the sum.

    BatchNorm is folded into filters and biases, or, in training, takes the statistics of its batch: the first two are
    prologues of the next convolution, the last a separate pass with the sum.
    """
    whole: dict[str, Any] = {"N": 32, "H": size, "W": size, "dtype": DTYPE}
    first = ConvProblem(**whole, C=4 * channels, K=channels, R=1, S=1)
    second = ConvProblem(**whole, C=channels, K=channels, R=3, S=3, padding=((1, 1), (1, 1)))
    third = ConvProblem(**whole, C=channels, K=4 * channels, R=1, S=1)
    every, names = (first, second, third), ("1x1", "3x3", "1x1")
    relu: dict[str, Any] = {"bias": True, "activation": "relu"}
    numbers = {"x_scale": "channel", "x_shift": "channel", "x_activation": "relu"}

    def norm(problem: ConvProblem) -> Launch:
        K = problem.K
        stats = (fp32(LNC, problem.N, K, 3),)
        return launched("norm_scale_shift", norm_scale_and_shift, stats, weight=fp32(K), bias=fp32(K), norm="batch")

    def added(problem: ConvProblem) -> int:
        return problem.N * problem.K * size * size

    def trained() -> Iterator[Launch]:
        for problem, name, before in zip(every, names, ({}, numbers, numbers), strict=True):
            yield convolved(problem, f"{name} with {'prologue and ' * bool(before)}statistics", **before, **STATISTICS)
            yield norm(problem)
        yield passed("scale, shift, sum, ReLU", added(third), reads=2)

    def folded() -> Iterator[Launch]:
        for problem, name, residual in zip(every, names, (None, None, "pre_activation"), strict=True):
            yield convolved(problem, f"{name} with bias and ReLU", residual=residual, **relu)

    def separate() -> Iterator[Launch]:
        for problem, name in zip(every, names, strict=True):
            yield convolved(problem, name)
            if training:
                yield launched("channel_stats", channel_statistics, of(problem.N, problem.K, size, size))
                yield norm(problem)
            yield passed("scale, shift, ReLU", added(problem), reads=2 if problem is third else 1)

    def launches() -> Launches:
        alone = Launch("1x1, 3x3, 1x1", sum(convolved(problem, "").us for problem in every))
        return alone, tuple(trained() if training else folded()), tuple(separate())

    return Chain(
        f"bottleneck_{channels}{'_training' * training}",
        "ResNet-50, training" if training else "ResNet-50",
        f"32 x {4 * channels} channels, {size} x {size}, 1x1, 3x3 of {channels}, 1x1",
        2 * added(third) * first.itemsize,
        sum(problem.flops for problem in every),
        launches,
    )


#: q, k and v of Qwen3-Next: heads, dim, whether normalised.
GDN = ((16, 128, True), (16, 128, True), (32, 128, False))
GDN_CHANNELS, GDN_TAPS = sum(heads * dim for heads, dim, _ in GDN), 4


def gated_delta(tokens: int) -> Chain:
    """Causal depthwise convolution, SiLU, split into q, k and v, l2norm of q and k: Qwen3-Next."""
    C, S = GDN_CHANNELS, GDN_TAPS
    problem = ConvProblem(N=1, C=C, W=tokens, S=S, groups=C, padding=((0, 0), (S - 1, 0)), dtype=DTYPE)

    def split(what: str, taps: int, **more: Any) -> Launch:
        return launched(what, causal_conv1d_split_heads, of(1, C, tokens), of(C, taps), GDN, **more)

    def launches() -> Launches:
        alone = convolved(problem, "depthwise_conv1d", activation="silu")
        separate = Launch(f"{alone.what} with SiLU", alone.us), split("transpose, split, l2norm", 1, activation=None)
        return alone, (split("causal_conv1d_split", S),), separate

    return Chain(
        f"gdn_{tokens}",
        "Qwen3-Next, Gated DeltaNet",
        f"{C} channels, {tokens} tokens, {S} taps",
        2 * C * tokens * problem.itemsize,
        problem.flops,
        launches,
    )


def gated_delta_step(sequences: int) -> Chain:
    """The same of one token after each sequence's state, whose slot is by index."""
    C, S = GDN_CHANNELS, GDN_TAPS
    problem = ConvProblem(N=sequences, C=C, W=1, S=S, groups=C, padding=((0, 0), (S - 1, 0)), dtype=DTYPE)
    states = {"initial_state": True, "return_final_state": True, "activation": "silu"}

    def launches() -> Launches:
        alone = convolved(problem, "depthwise_conv1d", **states)
        x, state, w = of(sequences, 1, C), of(sequences, C, S - 1), of(C, S)
        indices = ArraySpec((sequences,), "int32")
        how: dict[str, Any] = {"layout": "NWC", "state_indices": indices}
        step = launched("causal_conv1d_split_step", causal_conv1d_split_step, x, state, w, GDN, **how)
        tokens, ones = of(sequences, C, 1), of(C, 1)
        split = launched("split, l2norm", causal_conv1d_split_heads, tokens, ones, GDN, activation=None)
        return alone, (step,), (Launch(f"{alone.what} with SiLU", alone.us), split)

    elements = sequences * C
    return Chain(
        f"gdn_step_{sequences}",
        "Qwen3-Next, a decode step",
        f"{C} channels, {sequences} sequences, {S} taps",
        (2 * elements * S + S * C) * problem.itemsize,
        problem.flops,
        launches,
    )


def chains() -> Iterator[Chain]:
    """All of them."""
    yield from (group_norm(*one) for one in ((512, 128), (256, 512), (128, 1024)))
    yield from (gated_delta(tokens) for tokens in (512, 2048, 4096))
    yield from (gated_delta_step(sequences) for sequences in (1, 32))
    lfm2 = ConvProblem(N=1, C=2048, W=4096, S=3, groups=2048, padding=((0, 0), (2, 0)), dtype=DTYPE)
    yield gated("lfm2", "LFM2, gated short convolution", lfm2, "BCx")
    yield from (back_to_back(taps) for taps in (7, 128))
    conformer = cases.get("conformer").problem
    for residual in (None, "pre_activation"):
        yield from (normed(name, cases.get(name).problem, residual) for name in ("wan_384", "wan_192", "wan_96"))
    yield gated("conformer", "Conformer, GLU and SiLU", conformer, "xG", bias=True, activation="silu")
    yield from (chain(*one) for chain in (convnext, normed_layers) for one in ((96, 56), (384, 14)))
    yield from (bottleneck(*one, training) for one in ((64, 56), (256, 14)) for training in (False, True))


@functools.cache
def h200() -> dict[str, float]:
    """chain -> share of the H200's own limit that PyTorch reaches. Measured."""
    return {row["chain"]: float(row["h200_limit_us"]) / float(row["h200_chain_us"]) for row in measured("chains.csv")}


def timed(chain: Chain) -> Row:
    """A chain's row."""
    alone, fused, separate = chain.launches()
    limit = roofline(chain.min_bytes, chain.flops, canonical(DTYPE) or "", LNC, Rates({}))
    return Row(
        chain.name,
        chain.model,
        chain.shape,
        alone.us,
        sum(one.us for one in fused),
        sum(one.us for one in separate),
        limit.us,
        _told(fused),
        _told(separate),
        h200().get(chain.name),
    )


def _told(launches: Sequence[Launch]) -> str:
    return ", ".join(f"{one.what} {one.us:,.1f}" for one in launches)


def rows(advance: Advance = ignore, only: Collection[str] = ()) -> Iterator[Row]:
    """All rows, or those of some chains."""
    every = [chain for chain in chains() if not only or chain.name in only]
    for index, chain in enumerate(every):
        advance(chain.name, index / len(every))
        yield timed(chain)
