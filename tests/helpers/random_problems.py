"""Random problems that are short enough to time, with extents spread over their orders of magnitude."""

import contextlib
import dataclasses
import functools
import math
import random
from collections.abc import Callable
from typing import Any

from nkiconv import ConvProblem, GeometryError

KINDS = ("dense", "dense", "dense", "few_in", "few_out", "depthwise", "grouped", "row", "patch")
#: Elements of x, and of w, of depthwise problems.
ELEMS, FILTER_ELEMS = (2**8, 2**21), 2**20
#: Flops of conv2d problems.
FLOPS = 4e9


def spread(rng: random.Random, low: float, high: float) -> int:
    """An extent, spread over its orders of magnitude."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def sampled(count: int, seed: int, draw: Callable[[random.Random], Any], fits: Callable[[Any], bool]) -> list[Any]:
    """So many of what is drawn that fit; what would be no problem is drawn again."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        with contextlib.suppress(GeometryError):
            one = draw(rng)
            found += [one] if fits(one) else []
    return found


def depthwise(rng: random.Random) -> ConvProblem:
    """Rows of 1 to 16,384 elements, filters of 1 to 4,096 taps, with strides, dilations and paddings."""
    S, W, C, N = (spread(rng, 1, most) for most in (4096, 16384, 8192, 64))
    dilation = rng.choice([1] * 8 + [2, 3])
    window = (S - 1) * dilation
    same = (window // 2, window - window // 2)
    pad = rng.choice([(0, 0), (window, 0), same, same, (rng.randint(-5, 40), rng.randint(-5, 40))])
    stride, dtype = rng.choice([1] * 8 + [2, 4]), rng.choice(["bf16", "bf16", "bf16", "fp16", "fp32"])
    return ConvProblem(
        N=N, C=C, W=W, S=S, groups=C, padding=((0, 0), pad), stride=(1, stride), rhs_dilation=(1, dilation), dtype=dtype
    )


def conv2d(rng: random.Random) -> ConvProblem:
    """Dense, grouped, depthwise and other kinds."""
    kind, H = rng.choice(KINDS), spread(rng, 6, 256)
    W = max(4, round(H * rng.choice([1, 1, 1.5, 0.6])))
    R = rng.choice([1, 3, 3, 3, 5, 7])
    S, stride, dilation = rng.choice([R, R, R, 1, 3]), rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 1, 1, 2])
    C, K, groups = spread(rng, 16, 1024), spread(rng, 16, 1024), 1
    if kind == "few_in":
        C = rng.choice([1, 3, 3, 4, 8, 16, 32])
    elif kind == "few_out":
        K = rng.choice([1, 2, 3, 4, 8, 16])
    elif kind == "depthwise":
        K = groups = C
    elif kind == "grouped":
        groups = spread(rng, 2, 64)
        C = rng.choice([2, 4, 8, 16, 32]) * groups
        K = C * rng.choice([1, 1, 2])
    elif kind == "row":
        H, W, R, S = 1, spread(rng, 16, 6000), 1, rng.choice([3, 5, 7, 9])
    elif kind == "patch":
        R = S = stride = rng.choice([2, 4, 8, 16])
        C, dilation = rng.choice([3, 3, 4, 64]), 1
        H, W = H // R * R + R, W // R * R + R
    sides = [0 if kind == "patch" else (taps - 1) * dilation // 2 for taps in (R, S)]
    along = (1, stride) if kind == "row" else (stride, stride)
    return ConvProblem(
        N=rng.choice([1, 1, 2, 4, 8, 16]), C=C, H=H, W=W, K=K, R=R, S=S, stride=along,
        rhs_dilation=(1, dilation) if kind == "row" else (dilation, dilation),
        padding=tuple((side, side) for side in sides), groups=groups,
        dtype=rng.choice(["bf16", "bf16", "fp16", "fp32"]),
    )  # fmt: skip


def conv3d(rng: random.Random) -> ConvProblem:
    """Volumes: clips of video, scans, and depthwise ones, some causal."""
    C, K, groups = spread(rng, 8, 512), spread(rng, 8, 512), 1
    kind = rng.choice(["dense"] * 5 + ["few_in", "few_out", "depthwise"])
    if kind == "few_in":
        C = rng.choice([1, 3, 4, 16])
    elif kind == "few_out":
        K = rng.choice([1, 3, 4, 16])
    elif kind == "depthwise":
        K = groups = C
    T, R = rng.choice([1, 2, 3, 3, 3, 5]), rng.choice([1, 3, 3, 3, 5, 7])
    stride = rng.choice([1, 1, 1, 2])
    front = rng.choice([0, T // 2, T - 1])
    H = spread(rng, 6, 128)
    return ConvProblem(
        N=rng.choice([1, 1, 2, 4]), C=C, K=K, D=rng.choice([4, 6, 8, 16, 32]) + T, H=H,
        W=round(H * rng.choice([1, 1, 1.7])), T=T, R=R, S=R, stride=(rng.choice([1, stride]), stride, stride),
        padding=((front, front if front < T - 1 else 0), (R // 2, R // 2), (R // 2, R // 2)), groups=groups,
        dtype=rng.choice(["bf16", "bf16", "fp16", "fp32"]),
    )  # fmt: skip


def conv_transpose(rng: random.Random) -> ConvProblem:
    """Rows of vocoders, images and volumes that grow, some depthwise, with filters as long as the stride or longer."""
    kind = rng.choice(["row", "row", "image", "image", "image", "volume"])
    axes = 3 if kind == "volume" else 2
    C, K, groups = spread(rng, 4, 1024), spread(rng, 4, 512), 1
    if rng.random() < 0.2:
        K = groups = C
    steps = [rng.choice([1, 2, 2, 2, 3, 4, 8] if kind == "row" else [1, 2, 2, 2, 3]) for _ in range(axes)]
    if kind != "row" and rng.random() < 0.7:
        steps = steps[:1] * axes
    taps = [max(1, rng.choice([step, 2 * step, 2 * step, step + 1, 3])) for step in steps]
    apart = [rng.choice([1] * 8 + [2])] * axes
    fields = {"N": rng.choice([1, 1, 2, 4, 16]), "W": spread(rng, 4, 4000) if kind == "row" else spread(rng, 4, 96)}
    if kind == "row":
        steps[0], taps[0] = 1, 1
    else:
        fields["H"] = fields["W"]
    if kind == "volume":
        fields["D"] = rng.choice([2, 4, 8, 16])
    sides = [rng.choice([0, (one - step + 1) // 2]) if one > step else 0 for one, step in zip(taps, steps, strict=True)]
    return ConvProblem.transpose(
        **fields, C=C, K=K, groups=groups, taps=tuple(taps), stride=tuple(steps), dilation=tuple(apart),
        padding=tuple((side, side) for side in sides),
        output_padding=tuple(rng.choice([0, 0, step - 1]) for step in steps),
        dtype=rng.choice(["bf16", "bf16", "fp16", "fp32"]),
    )  # fmt: skip


def limited(draw: Callable[[random.Random], ConvProblem], elems: Callable[[ConvProblem], int], most: int) -> Any:
    """What samples problems of at most so many elements and `FLOPS`."""
    return functools.partial(sampled, draw=draw, fits=lambda one: one.flops <= FLOPS and elems(one) <= most)


#: What draws problems of an operation.
OF = {
    "depthwise_conv1d": functools.partial(
        sampled, draw=depthwise,
        fits=lambda one: ELEMS[0] <= one.N * one.C * one.W <= ELEMS[1] and one.C * one.S <= FILTER_ELEMS),
    "conv2d": limited(conv2d, lambda one: one.N * max(one.C, one.K) * one.H * one.W, 2**24),
    "conv3d": limited(conv3d, lambda one: max(map(math.prod, (one.input_shape, one.output_shape))), 2**24),
    "conv_transpose": limited(conv_transpose, lambda one: math.prod(one.output_shape), 2**23),
}  # fmt: skip


def text_of(problem: ConvProblem) -> str:
    """A problem's fields that are not ConvProblem's defaults."""
    plain = ConvProblem(N=1, C=1, W=1, S=1, D=problem.D)
    defaults = {field.name: field.default for field in dataclasses.fields(problem)}
    for name in ("stride", "padding", "rhs_dilation", "lhs_dilation", "layout"):
        defaults[name] = getattr(plain, name)
    given = {name: getattr(problem, name) for name, default in defaults.items() if getattr(problem, name) != default}
    return " ".join(f"{name}={value}".replace(" ", "") for name, value in given.items())
