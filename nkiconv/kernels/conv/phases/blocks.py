"""Outputs of an axis by phases: blocks of neighbours, of which the p-th of each block meets the same taps.

Output q = origin + step * m + phase is of block m. A tap that meets it sees element m * apart + e of x, e the same for
all blocks. Compile-time code.
"""

import math
from dataclasses import dataclass

from ...._nki import nl
from ....schedules.tiles import cut_at, div_ceil, some_of


@dataclass
class PhaseAxis(nl.NKIObject):
    """A `geometry.Axis` by phases; size, out and blocks are of one of its images.

    step, apart: outputs, and elements of x, from one block to the next. origin: first output of block 0, which is 0 or
    does not exist. taps: by phase (tap, e) of those that meet its outputs, forwards. low, high: least and most e.
    """

    images: int
    size: int
    out: int
    step: int
    apart: int
    origin: int
    blocks: int
    taps: list
    low: int
    high: int


@dataclass
class Part(nl.NKIObject):
    """Neighbouring blocks of an axis, of one of several images: first and how many of blocks, of their outputs, of the
    elements of x that those see, and of places for outputs in a tile of results."""

    axis: PhaseAxis
    image: int
    b0: int
    bn: int
    q0: int
    qn: int
    x0: int
    xn: int
    y0: int
    yn: int


def num_steps(axis):
    """Phases of an axis."""
    return axis.lhs_dilation // math.gcd(axis.stride, axis.lhs_dilation)


def phase_axis(axis):
    """The PhaseAxis of an Axis: with stride 1 the last taps of all phases meet the same element."""
    step, ahead, out = num_steps(axis), axis.before + 1, axis.out // axis.images
    first = (ahead + step * (ahead if ahead >= 0 else -ahead)) % step
    origin = first - step if first > 0 else 0
    taps, elements = [], []
    for phase in range(step):
        of_phase = taps_met(axis, origin + phase)
        taps.append(of_phase)
        for tap in of_phase:
            elements.append(tap[1])
    elements = elements if len(elements) > 0 else [0]
    low, high = elements[0], elements[0]
    for e in elements:
        low, high = min(low, e), max(high, e)
    return PhaseAxis(
        images=axis.images,
        size=axis.size // axis.images,
        out=out,
        step=step,
        apart=axis.stride * step // axis.lhs_dilation,
        origin=origin,
        blocks=div_ceil(out - origin, step),
        taps=taps,
        low=low,
        high=high,
    )


def taps_met(axis, output):
    """(tap, element of x that it meets, perhaps one outside) of the taps that meet no gap at an output, forwards."""
    found, size = [], axis.lhs_dilation
    for tap in range(axis.taps):
        place = output * axis.stride + tap * axis.dilation - axis.before
        far = place if place >= 0 else -place
        if far % size == 0:
            found.append((tap, far // size if place >= 0 else -(far // size)))
    return found


def part_lists(axis, blocks, whole, segments):
    """Lists of so many neighbouring Parts of an image, fewer in its last, each of so many blocks.

    whole: with elements outside x, and places for outputs that do not exist, so that all are alike.
    """
    found = []
    for image in range(axis.images):
        parts = []
        for part in cut_at(axis.blocks, blocks):
            parts.append(part_of(axis, image, part[0], blocks if whole else part[1], whole))
        for some in cut_at(len(parts), segments):
            found.append(some_of(parts, some))
    return found


def part_of(axis, image, b0, bn, whole):
    """A Part of an image; whole: as of `part_lists`."""
    y0, yn = axis.origin + b0 * axis.step, bn * axis.step
    q0, end = max(0, y0), min(axis.out, y0 + yn)
    x0, x1 = b0 * axis.apart + axis.low, (b0 + bn - 1) * axis.apart + axis.high + 1
    if not whole:
        x0, x1, y0, yn = max(0, x0), min(axis.size, x1), q0, end - q0
    return Part(axis=axis, image=image, b0=b0, bn=bn, q0=q0, qn=end - q0, x0=x0, xn=max(0, x1 - x0), y0=y0, yn=yn)


def blocks_of_phase(part, phase):
    """(first block, how many) of a Part that have a place for an output of a phase."""
    step, first = part.axis.step, part.axis.origin + phase
    low = div_ceil(max(0, part.y0 - first), step)
    return low, max(0, div_ceil(max(0, part.y0 + part.yn - first), step) - low)


def existing(part, places):
    """(first place, first output of all images, how many) of the outputs that exist at (first, how many) places of a
    Part."""
    low = max(part.q0, part.y0 + places[0])
    end = min(part.q0 + part.qn, part.y0 + places[0] + places[1])
    return low - part.y0, part.image * part.axis.out + low, max(0, end - low)


def elements_inside(part):
    """(first place, first element of all images, how many) of a Part's elements that x has."""
    low, end = max(0, part.x0), min(part.axis.size, part.x0 + part.xn)
    return low - part.x0, part.image * part.axis.size + low, max(0, end - low)


def seen_by_blocks(part, e, blocks):
    """What `geometry.met` returns, of (first, how many) blocks and the elements that a Part has: (first block, 1, how
    many, first element, step)."""
    apart, m0, end = part.axis.apart, blocks[0], blocks[0] + blocks[1]
    first = max(m0, div_ceil(max(0, part.x0 - e), apart))
    last = min(end, div_ceil(max(0, part.x0 + part.xn - e), apart))
    return first, 1, max(0, last - first), first * apart + e, apart
