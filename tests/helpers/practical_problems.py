"""Convolutions with the channels, sizes and filters that models have, drawn at random, bf16."""

import random
from collections.abc import Callable
from typing import Any

from random_problems import sampled

from nkiconv import ConvProblem

CHANNELS = (
    *(16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 192, 240, 256, 288, 320, 384, 480, 512),
    *(576, 640, 672, 768, 960, 1024, 1152, 1280, 1536, 2048),
)
SIZES = (
    *(7, 8, 10, 13, 14, 16, 19, 20, 24, 26, 28, 32, 38, 40, 48, 52, 56, 64, 80, 96, 104, 112),
    *(128, 160, 168, 192, 208, 224, 256),
)
#: Flops of a problem, and bytes that it moves, at most: those of more take long to model.
FLOPS, BYTES = 60e9, 4e8


def square(size: int, taps: int, stride: int = 1, dilation: int = 1, side: int | None = None) -> dict[str, Any]:
    """Fields of images of so many rows and columns; side: of padding, by default what keeps the size."""
    side = (taps - 1) * dilation // 2 if side is None else side
    fields = {"H": size, "W": size, "R": taps, "S": taps, "stride": (stride,) * 2, "rhs_dilation": (dilation,) * 2}
    return {**fields, "padding": ((side, side),) * 2}


def row(rng: random.Random) -> dict[str, Any]:
    """Of conv1d."""
    taps, dilation, width = rng.choice((1, 3, 5, 7, 11)), rng.choice((1, 1, 1, 3)), (100, 250, 500, 1000, 1500, 2000)
    side, stride = (taps - 1) * dilation // 2, rng.choice((1, 1, 2))
    found = {"W": rng.choice((*width, 3000, 4096, 8192, 16000)), "S": taps, "padding": ((0, 0), (side, side))}
    return {**found, "stride": (1, stride), "rhs_dilation": (1, dilation)}


def image(rng: random.Random) -> dict[str, Any]:
    """Of conv2d."""
    taps, stride = rng.choice((1, 3, 3, 3, 5, 7)), rng.choice((1, 1, 2))
    return square(rng.choice(SIZES), taps, stride, rng.choice((1, 1, 1, 1, 2)) if stride == 1 else 1)


def few_in(rng: random.Random) -> dict[str, Any]:
    """Of few input channels, some of them patches."""
    found = image(rng) | {"C": rng.choice((1, 3, 4, 6, 8))}
    patch = rng.choice((4, 8, 14, 16))
    size = max(1, found["H"] // patch) * patch * 2
    return found | square(size, patch, patch, side=0) if rng.random() < 0.3 else found


def few_out(rng: random.Random) -> dict[str, Any]:
    """Of few output channels."""
    return image(rng) | {"K": rng.choice((1, 2, 3, 4, 8, 16))}


def volume(rng: random.Random) -> dict[str, Any]:
    """Of conv3d."""
    found = square(rng.choice((8, 14, 16, 28, 32, 48, 56, 64, 112)), rng.choice((1, 3, 3, 3)), rng.choice((1, 1, 2)))
    planes, taps = rng.choice((4, 6, 8, 9, 16)), rng.choice((1, 3, 3))
    found |= {"N": rng.choice((1, 1, 2)), "D": planes, "T": taps, "padding": ((taps // 2,) * 2, *found["padding"])}
    return found | {name: (1, *found[name]) for name in ("stride", "rhs_dilation")}


def upsampled(rng: random.Random) -> dict[str, Any]:
    """Of a transposed conv2d."""
    taps, stride = rng.choice(((2, 2), (3, 2), (4, 2), (4, 4)))
    found = square(rng.choice(SIZES), taps, side=taps - 1 - (taps - stride) // 2)
    return found | {"lhs_dilation": (stride, stride), "transposed": True}


def upsampled_row(rng: random.Random) -> dict[str, Any]:
    """Of a transposed conv1d."""
    taps, stride = rng.choice(((4, 2), (8, 4), (16, 8), (10, 5)))
    side = taps - 1 - (taps - stride) // 2
    found = {"W": rng.choice((100, 250, 500, 1000, 2000, 4096)), "S": taps, "padding": ((0, 0), (side, side))}
    return {**found, "lhs_dilation": (1, stride), "transposed": True}


def depthwise_row(rng: random.Random) -> dict[str, Any]:
    """Of depthwise conv1d, causal or not."""
    taps, C = rng.choice((3, 4, 4, 5, 7, 15, 31, 64)), rng.choice(CHANNELS)
    sides = rng.choice(((taps - 1, 0), (taps // 2, taps - 1 - taps // 2)))
    width = rng.choice((128, 256, 512, 1000, 2048, 4096, 8192))
    return {"C": C, "K": C, "groups": C, "W": width, "S": taps, "padding": ((0, 0), sides)}


def depthwise(rng: random.Random) -> dict[str, Any]:
    """Of depthwise conv2d, few with a multiplier."""
    C = rng.choice(CHANNELS)
    found = square(rng.choice(SIZES), rng.choice((3, 3, 5, 7)), rng.choice((1, 1, 2)))
    return found | {"C": C, "K": C * rng.choice((1,) * 7 + (2,)), "groups": C}


def grouped(rng: random.Random) -> dict[str, Any]:
    """Of 2 to 32 groups."""
    groups = rng.choice((2, 4, 8, 16, 32))
    C = max(1, rng.choice(CHANNELS) // groups) * groups
    found = square(rng.choice(SIZES), rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2)))
    return found | {"C": C, "K": C * rng.choice((1, 1, 2)), "groups": groups}


#: What draws a problem of each kind; conv2d, and depthwise ones, are drawn twice as often.
KINDS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "conv1d": row, "conv2d": image, "conv3d": volume, "few inputs": few_in, "few outputs": few_out,
    "transposed conv1d": upsampled_row, "transposed conv2d": upsampled, "grouped": grouped,
    "depthwise rows": depthwise_row, "depthwise": depthwise,
}  # fmt: skip
OFTEN = ("conv2d", "depthwise")


def drawn(rng: random.Random) -> tuple[str, ConvProblem]:
    """(Kind, problem)."""
    kind, C = rng.choice((*KINDS, *OFTEN)), rng.choice(CHANNELS)
    fields = {"N": rng.choice((1, 1, 2, 4, 8, 16)), "C": C, "K": rng.choice((C, rng.choice(CHANNELS)))}
    return kind, ConvProblem(**(fields | KINDS[kind](rng)))


def problems(count: int, seed: int) -> list[tuple[str, ConvProblem]]:
    """(Kind, problem) of so many."""
    return sampled(count, seed, drawn, lambda one: one[1].flops <= FLOPS and sum(one[1].moved) <= BYTES)
