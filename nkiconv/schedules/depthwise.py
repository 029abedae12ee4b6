"""The problem of all depthwise conv1d algorithms: `RowGeometry`, `Options`, the two parts of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..axis import Axis
from .options import NO_PROLOGUE, NUMBERS_BYTES, PROLOGUE_ARGUMENTS, Epilogue, Prologue
from .settings import SHARDS
from .tiles import PARTS, div_ceil, share

if TYPE_CHECKING:
    from ..simulator.timing.target import Target
    from .split import SplitGeometry

#: Elements a partition of one product of x and its gate.
GATED_ELEMENTS = 1024
#: Most bytes of an element for which a DMA engine takes many times longer (trn2.toml, dma.tiny_element_bytes).
TINY_BYTES = 4
#: Least columns of an image that two cores share.
COLUMNS_TO_SHARE = 64


@dataclass(frozen=True)
class RowGeometry:
    """One depthwise conv1d: y[n, c, q] = sum over s of w[c, s] * xp[n, c, q * stride + s * dilation - pad_left].

    xp is x with lhs_dilation - 1 zeros between neighbours, and zeros outside. Strides are in elements of the HBM
    tensors as stored, or of their copies (`row_copies`).
    """

    N: int
    C: int
    W: int
    S: int
    Q: int
    stride: int
    #: 1 if there is one tap
    dilation: int
    lhs_dilation: int
    pad_left: int
    pad_right: int
    #: elements between neighbours in x along n, c, w; in w along c, s; in y along n, c, q
    x_n: int
    x_c: int
    x_w: int
    w_c: int
    w_s: int
    y_n: int
    y_c: int
    y_q: int
    itemsize: int
    #: whether taps are in reverse order: y is the sum over s of w[c, S - 1 - s] * ...
    flipped: bool = False
    #: the chunks of x's channels by their letters in `rules.CHUNKS`, C channels each; "x" is the input alone
    chunks: str = "x"
    #: applied to each element of x as it arrives
    prologue: Prologue = NO_PROLOGUE
    #: the planned problem's work over this geometry's: the whole problem's bound is so many times longer
    times: int = 1

    @property
    def fast(self) -> bool:
        """Whether the Tensor Engine multiplies at its full rate, in 16 bits."""
        return self.itemsize == 2

    @property
    def axis(self) -> Axis:
        """The axis of x."""
        places = self.pad_left, self.pad_right, self.dilation, self.lhs_dilation
        return Axis(self.W, self.S, self.stride, *places)


@dataclass(frozen=True)
class Options:
    """The arguments besides the geometry that change an algorithm's work."""

    epilogue: Epilogue
    #: whether the left padding holds an initial state instead of zeros
    state: bool
    #: whether NaN and Inf must stay in their channel
    strict_nonfinite: bool


def chunk_start(geometry: RowGeometry | SplitGeometry, chunk: str) -> int:
    """Elements of x as stored before a chunk of its channels."""
    return geometry.chunks.index(chunk) * geometry.C * geometry.x_c


def gate_of(geometry: RowGeometry | SplitGeometry) -> str:
    """The chunk that the input is multiplied by as it arrives, "B" or "G"; "" without one."""
    return next((chunk for chunk in geometry.chunks if chunk in "BG"), "") if geometry.chunks else ""


def inputs_of(geometry: RowGeometry) -> int:
    """Elements of x as stored that arrive for one element of the input."""
    return 2 if gate_of(geometry) else 1


def gate_bytes(geometry: RowGeometry, loaded: int) -> int:
    """Bytes a partition besides x as loaded: the factor, and two sigmoids, or the numbers of a prologue."""
    gate = gate_of(geometry)
    numbers = NUMBERS_BYTES if geometry.prologue.asked else 0
    return (loaded if gate else 0) + (2 * 4 * GATED_ELEMENTS if gate == "G" else 0) + numbers


def gate_ns(geometry: RowGeometry, target: Target) -> float:
    """ns of Vector an element of a partition for the product with a gate."""
    fast = geometry.itemsize == 2 and gate_of(geometry) == "B"
    return (target.vector_16bit_ns if fast else target.vector_ns) if gate_of(geometry) else 0.0


def arrival_ns(geometry: RowGeometry, target: Target) -> float:
    """ns of Scalar an element of a partition for the sigmoid or a prologue."""
    return target.scalar_ns if gate_of(geometry) == "G" or geometry.prologue.asked else 0.0


def input_unsupported(geometry: RowGeometry, name: str) -> str:
    """Why an algorithm without prologue, reversed taps and lhs_dilation does not run this; "" if it does."""
    if geometry.prologue.asked:
        return f"{PROLOGUE_ARGUMENTS}: {name} takes none; use mixed, vector or banded"
    if geometry.flipped:
        return f"flipped=True: {name} reads taps in order; use mixed, vector or banded"
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: {name} takes 1; use mixed or vector"
    return ""


def residual_places(geometry: RowGeometry) -> tuple[int, int, int, int]:
    """(elements between images, between channels, between columns, first element) of the residual, which is stored as
    y, or of y's factor, a chunk of x."""
    if "C" in geometry.chunks:
        return geometry.x_n, geometry.x_c, geometry.x_w, chunk_start(geometry, "C")
    return geometry.y_n, geometry.y_c, geometry.y_q, 0


def part_span(count: int, is_shared: bool, part: int) -> tuple[int, int]:
    """(first, how many) of an axis in one of the PARTS: its share if the axis is shared, else all.

    One core computes both parts one after the other, two cores one each: each output comes from the same instructions,
    and has the same bits, on 1 and on 2 cores.
    """
    return share(count, PARTS, part) if is_shared else (0, count)


def part_most(count: int, is_shared: bool) -> int:
    """The largest share of an axis in one of the PARTS."""
    return div_ceil(count, PARTS) if is_shared else count


def shards_of(geometry: RowGeometry, first: str | None = None) -> list[str]:
    """Axes that two cores can share with work for both, `first` before the others."""
    works = {"channels": geometry.C >= 2, "columns": geometry.Q >= COLUMNS_TO_SHARE, "batch": geometry.N >= 2}
    return sorted((name for name in SHARDS if works[name] or name == first), key=lambda name: name != first)


def place_of_tap(geometry: RowGeometry, s: int, taps: int) -> int:
    """The index of tap s among the first `taps`, counted from their last if taps are in reverse order."""
    return taps - 1 - s if geometry.flipped else s
