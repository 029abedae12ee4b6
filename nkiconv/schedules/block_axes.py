"""Axes of outputs in blocks of neighbours, and the valid ranges of their taps.

Output origin + step * m + f is number f of block m; a tap at it reads element m * apart + e of x, with one e for all
blocks. `beside` outputs of a block are packed along the columns of a stationary, the others are in further sweeps: f =
u * sweeps + v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from .geometry import Axis, num_phases
from .tiles import div_ceil


@dataclass(frozen=True)
class BlockAxis:
    """An axis of a Geometry in blocks; size, out and blocks are of one of its images.

    origin: first output of block 0, 0 or negative (outside y). taps: for each output of a block (tap, e) of its taps,
    in order. low, high: least and largest e.
    """

    images: int
    size: int
    out: int
    beside: int
    sweeps: int
    apart: int
    origin: int
    blocks: int
    taps: tuple[tuple[tuple[int, int], ...], ...]
    low: int
    high: int

    @property
    def step(self) -> int:
        """Outputs of a block."""
        return self.beside * self.sweeps

    @property
    def window(self) -> int:
        """Elements of x that a block spans."""
        return self.high - self.low + 1

    def outputs(self, v: int) -> range:
        """The outputs of a block that are packed in sweep v."""
        return range(v, self.step, self.sweeps)

    def places_met(self, f: int, first: int, count: int, start: int) -> tuple[slice, slice] | None:
        """(slice of taps first .. first+count-1, counted from the first, that output f of a block reads; slice of their
        elements, counted from the window's first plus `start`), or None if it reads none."""
        met = [(tap - first, start + e - self.low) for tap, e in self.taps[f] if first <= tap < first + count]
        if not met:
            return None
        (tap, e), (last, end), (other, step) = met[0], met[-1], met[min(1, len(met) - 1)]
        return slice(tap, last + 1, max(1, other - tap)), slice(e, end + 1, max(1, step - e))

    def elements(self, v: int) -> list[int]:
        """All e of the outputs of sweep v, ascending."""
        return sorted({e for f in self.outputs(v) for _, e in self.taps[f]})


@dataclass(frozen=True)
class Part:
    """Neighbouring blocks of an axis, in one of several images: first and count of blocks, of their outputs, of the
    elements of x that they read, and of places for outputs in a tile of results."""

    axis: BlockAxis
    image: int
    b0: int
    bn: int
    q0: int
    qn: int
    x0: int
    xn: int
    y0: int
    yn: int

    def blocks_of(self, f: int, in_y: bool = False) -> tuple[int, int]:
        """(first block, count) of blocks with a place for output f, or whose output f is in y."""
        start, count = (self.q0, self.qn) if in_y else (self.y0, self.yn)
        step, first = self.axis.step, self.axis.origin + f
        low = div_ceil(max(0, start - first), step)
        return low, max(0, div_ceil(max(0, start + count - first), step) - low)

    def existing(self, places: tuple[int, int]) -> tuple[int, int, int]:
        """(first place, first output of all images, count) of the outputs inside y at (first, count) places."""
        low = max(self.q0, self.y0 + places[0])
        end = min(self.q0 + self.qn, self.y0 + places[0] + places[1])
        return low - self.y0, self.image * self.axis.out + low, max(0, end - low)

    def inside(self) -> tuple[int, int, int]:
        """(first place, first element of all images, count) of the elements inside x."""
        low, end = max(0, self.x0), min(self.axis.size, self.x0 + self.xn)
        return low - self.x0, self.image * self.axis.size + low, max(0, end - low)

    def valid_range(self, e: int, blocks: tuple[int, int]) -> tuple[int, int, int, int, int]:
        """The valid range of element e in blocks (first, count), as `geometry.valid_range` gives it for outputs."""
        apart, m0, end = self.axis.apart, blocks[0], blocks[0] + blocks[1]
        first = max(m0, div_ceil(max(0, self.x0 - e), apart))
        last = min(end, div_ceil(max(0, self.x0 + self.xn - e), apart))
        return first, 1, max(0, last - first), first * apart + e, apart

    def places(self, blocks: tuple[int, int]) -> tuple[int, int]:
        """(first, count) of places for the outputs of blocks, counted from the first."""
        start = self.axis.origin + (self.b0 + blocks[0]) * self.axis.step - self.y0
        low, end = max(0, start), min(self.yn, start + blocks[1] * self.axis.step)
        return low, max(0, end - low)


@dataclass(frozen=True)
class ShiftedPart(Part):
    """Whole rows in place of blocks, with sums over elements of x, not outputs: an accumulator of several columns of
    taps, whose sums are shifted and added when they are evacuated.

    Element e is a group of columns of taps, each `shift` elements of x after the one before; sums of the first begin at
    column `pad`. tiles: (first output, count, first sum, count) of parts of a row.
    """

    shift: int
    pad: int
    tiles: tuple[tuple[int, int, int, int], ...]

    def blocks_of(self, f: int, in_y: bool = False) -> tuple[int, int]:
        return 0, self.bn

    def valid_range(self, e: int, blocks: tuple[int, int]) -> tuple[int, int, int, int, int]:
        behind = self.pad - e * self.shift
        low, end = max(blocks[0], behind), min(blocks[0] + blocks[1], behind + self.xn)
        return low, 1, max(0, end - low), self.x0 + low - behind, 1

    def places(self, blocks: tuple[int, int]) -> tuple[int, int]:
        return next((q0, qn) for q0, qn, low, _ in self.tiles if low == blocks[0])


@lru_cache(maxsize=256)
def block_axis(axis: Axis, beside: int, aligned: bool = False) -> BlockAxis:
    """An Axis in blocks of `beside` packed outputs, times the number of sweeps. aligned: block 0 begins with output
    0."""
    steps, size, out = num_phases(axis), axis.size // axis.images, axis.out // axis.images
    step = math.lcm(steps, beside)
    # with stride 1 the last taps of all phases read the same element
    origin = 0 if aligned else (axis.before + 1) % steps
    origin = origin - steps if origin > 0 else 0
    taps = []  # (tap, its element of x, perhaps outside) of each output's taps that read no gap
    for f in range(origin, origin + step):
        places = ((tap, f * axis.stride + tap * axis.dilation - axis.before) for tap in range(axis.taps))
        taps.append(tuple((tap, at // axis.lhs_dilation) for tap, at in places if at % axis.lhs_dilation == 0))
    elements = [e for one in taps for _, e in one] or [0]
    return BlockAxis(
        images=axis.images,
        size=size,
        out=out,
        beside=beside,
        sweeps=step // beside,
        apart=axis.stride * step // axis.lhs_dilation,
        origin=origin,
        blocks=div_ceil(out - origin, step),
        taps=tuple(taps),
        low=min(elements),
        high=max(elements),
    )


def plain_axis(size: int, out: int, apart: int = 1, images: int = 1, sweeps: int = 1) -> BlockAxis:
    """An axis of blocks of `sweeps` outputs, one in each sweep; neighbouring blocks' first elements are `apart`."""
    return BlockAxis(images, size, out, 1, sweeps, apart, 0, out // sweeps, (((0, 0),),), 0, 0)


def planes_of(part: Part) -> tuple[int, int]:
    """(first of all images, count) of a Part's outputs."""
    return part.image * part.axis.out + part.q0, part.qn


def plane_span(part: Part) -> tuple[int, int]:
    """(first of all images, count) of a Part's elements of x."""
    return part.image * part.axis.size + part.x0, part.xn


def part_at(axis: BlockAxis, b0: int, bn: int, x0: int, xn: int, image: int = 0) -> Part:
    """A Part of an axis whose blocks begin with output 0, with these elements."""
    q0, qn = b0 * axis.step, bn * axis.step
    return Part(axis=axis, image=image, b0=b0, bn=bn, q0=q0, qn=qn, x0=x0, xn=xn, y0=q0, yn=qn)


def part_of(axis: BlockAxis, image: int, b0: int, bn: int, *, padded: bool = False, whole: bool = False) -> Part:
    """A Part of an image. padded: includes elements outside x; whole: includes places for outputs outside y."""
    y0, yn = axis.origin + b0 * axis.step, bn * axis.step
    q0, end = max(0, y0), min(axis.out, y0 + yn)
    x0, x1 = b0 * axis.apart + axis.low, (b0 + bn - 1) * axis.apart + axis.high + 1
    if not padded:
        x0, x1 = max(0, x0), min(axis.size, x1)
    if not whole:
        y0, yn = q0, end - q0
    return Part(axis=axis, image=image, b0=b0, bn=bn, q0=q0, qn=end - q0, x0=x0, xn=max(0, x1 - x0), y0=y0, yn=yn)


def home_element(axis: BlockAxis, v: int) -> int | None:
    """The last element of a sweep that is in x for all blocks, or None."""
    whole = part_of(axis, 0, 0, axis.blocks)
    valid_range = [e for e in axis.elements(v) if whole.valid_range(e, (0, axis.blocks))[2] == axis.blocks]
    return valid_range[-1] if valid_range else None
