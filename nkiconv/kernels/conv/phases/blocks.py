"""Outputs of an axis by phases: blocks of neighbours, of which the p-th of each block meets the same taps.

Output q = origin + step * m + phase is of block m. A tap that meets it sees element m * apart + e of x, e the same for
all blocks. Compile-time code on `geometry.Axis` of one image or volume, in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._axis import greatest_common_divisor
from ..._tiles import div_ceil


@dataclass
class Part(nl.NKIObject):
    """Neighbouring blocks of an axis, of one of several images: first and how many of blocks, of their outputs, of the
    elements of x that those see, and of places for outputs in a tile of results."""

    image: int
    b0: int
    bn: int
    q0: int
    qn: int
    x0: int
    xn: int
    y0: int
    yn: int


def phase_step(axis):
    """Outputs of a block: phases that there are."""
    return axis.lhs_dilation // greatest_common_divisor(axis.stride, axis.lhs_dilation)


def element_step(axis):
    """Elements of x from one block to the next."""
    return axis.stride // greatest_common_divisor(axis.stride, axis.lhs_dilation)


def origin_of(axis):
    """First output of block 0, which is 0 or does not exist: with stride 1 the last taps of all phases meet the same
    element then."""
    step = phase_step(axis)
    ahead = axis.before + 1
    first = (ahead + step * (ahead if ahead >= 0 else -ahead)) % step
    return first - step if first > 0 else 0


def blocks_of_axis(axis):
    """Blocks that any output is in, of one image."""
    return div_ceil(axis.out // axis.images - origin_of(axis), phase_step(axis))


def taps_of_phase(axis, phase):
    """(tap, e) of the taps that meet outputs of a phase, forwards."""
    found, size = [], axis.lhs_dilation
    for tap in range(axis.taps):
        place = (origin_of(axis) + phase) * axis.stride + tap * axis.dilation - axis.before
        far = place if place >= 0 else -place
        if far % size == 0:
            found.append((tap, far // size if place >= 0 else -(far // size)))
    return found


def element_range(axis):
    """(least e, most e) of all phases; (0, 0) where no tap meets any."""
    low, high, first = 0, 0, True
    for phase in range(phase_step(axis)):
        for tap in taps_of_phase(axis, phase):
            low = tap[1] if first else min(low, tap[1])
            high = tap[1] if first else max(high, tap[1])
            first = False
    return low, high


def part_of(axis, image, b0, bn, whole):
    """A Part of an image; whole: with elements outside x, and places for outputs that do not exist, so that Parts of as
    many blocks are alike."""
    step, origin, apart = phase_step(axis), origin_of(axis), element_step(axis)
    q0 = max(0, origin + b0 * step)
    end = min(axis.out // axis.images, origin + (b0 + bn) * step)
    low, high = element_range(axis)
    x0, x1 = b0 * apart + low, (b0 + bn - 1) * apart + high + 1
    if not whole:
        x0, x1 = max(0, x0), min(axis.size // axis.images, x1)
    y0, yn = (origin + b0 * step, bn * step) if whole else (q0, end - q0)
    return Part(image=image, b0=b0, bn=bn, q0=q0, qn=end - q0, x0=x0, xn=max(0, x1 - x0), y0=y0, yn=yn)


def parts_of_axis(axis, blocks, whole):
    """All Parts of at most so many blocks, of equal size but for the last of an image."""
    found = []
    for image in range(axis.images):
        for b0 in range(0, blocks_of_axis(axis), blocks):
            found.append(part_of(axis, image, b0, blocks if whole else min(blocks, blocks_of_axis(axis) - b0), whole))
    return found


def blocks_of_phase(axis, part, phase):
    """(first block, how many) of a Part that have a place for an output of a phase."""
    step, first = phase_step(axis), origin_of(axis) + phase
    low = div_ceil(max(0, part.y0 - first), step)
    end = part.y0 + part.yn
    high = div_ceil(end - first, step) if end > first else 0
    return low, max(0, high - low)


def existing(axis, part, first, count):
    """(first place, first output of all images, how many) of the outputs that exist at `count` places of a Part."""
    low = max(part.q0, part.y0 + first)
    end = min(part.q0 + part.qn, part.y0 + first + count)
    return low - part.y0, part.image * (axis.out // axis.images) + low, max(0, end - low)


def elements_inside(axis, part):
    """(first place, first element of all images, how many) of a Part's elements that x has."""
    size = axis.size // axis.images
    low, end = max(0, part.x0), min(size, part.x0 + part.xn)
    return low - part.x0, part.image * size + low, max(0, end - low)


def seen_by_blocks(axis, part, e, m0, mn):
    """What `geometry.met` returns, of blocks m0 .. m0+mn-1 and the elements that a Part has: (first block, 1, how many,
    first element, step)."""
    apart = element_step(axis)
    low, end = part.x0 - e, part.x0 + part.xn - e
    first = max(m0, div_ceil(low, apart)) if low > 0 else m0
    last = min(m0 + mn, div_ceil(end, apart)) if end > 0 else m0
    return first, 1, max(0, last - first), first * apart + e, apart
