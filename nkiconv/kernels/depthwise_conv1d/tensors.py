"""Tensors of rows in HBM, with their loads and stores by the algorithms."""

from dataclasses import dataclass, replace
from typing import Any

from ..._nki import nisa, nl
from ...schedules.channels import full_rows, row_runs
from ...schedules.depthwise import chunk_start, gate_of, residual_places
from .._dma import copy, load
from .._prologue import gates_of

#: A number of any dtype whose sigmoid is 1.
ONE_BY_SIGMOID = 10000.0


@dataclass
class Rows:
    """Rows of a tensor in HBM: elements low .. high-1 of each image and channel, counted as elements of x.

    steps: HBM elements between images, channels and elements; start: HBM elements before element `low` of the first
    row; outside: the value in a tile outside low .. high-1.
    """

    hbm: Any
    steps: tuple
    low: int
    high: int
    start: int = 0
    outside: float = 0.0

    @property
    def dtype(self):
        """The tensor's dtype."""
        return self.hbm.dtype

    @property
    def size(self):
        """Elements of a row."""
        return self.high - self.low

    def by(self, c_step):
        """The same rows with c_step elements between channels."""
        return replace(self, steps=(self.steps[0], c_step, self.steps[2]))

    def offset(self, n, c, element):
        """The offset in HBM of an element of (image, channel)."""
        return self.start + n * self.steps[0] + c * self.steps[1] + (element - self.low) * self.steps[2]

    @property
    def by_channel(self):
        """Whether neighbouring channels are closer in HBM than neighbouring elements."""
        return self.size > 1 and self.steps[1] < self.steps[2]

    def tile(self, lead):
        """A tile [*lead, elements] in SBUF whose last two axes, channels and elements, are stored in HBM's order."""
        if not self.by_channel:
            return nl.ndarray((*lead, self.size), dtype=self.dtype, buffer=nl.sbuf)
        *outer, channels = lead
        return in_order(nl.ndarray((*outer, self.size, channels), dtype=self.dtype, buffer=nl.sbuf))

    def region(self, pattern, n, c, element):
        """An access pattern from (image, channel, element) on."""
        return self.hbm.ap(pattern=pattern, offset=self.offset(n, c, element))

    def load(self, dst, pattern, n, c, element):
        """Load a region into a view of SBUF."""
        load(dst, self.hbm, pattern, self.offset(n, c, element))

    def store(self, src, pattern, n, c, element):
        """Store a view of SBUF to a region."""
        copy(self.region(pattern, n, c, element), src)

    def move(self, tile, pattern, n, c, element, is_store):
        """Store or load a view of SBUF."""
        (self.store if is_store else self.load)(tile, pattern, n, c, element)

    def move_tile(self, view, pattern, n, c, element, is_store=False):
        """Store or load a view [.., channels, elements] of a tile in HBM's order."""
        if self.by_channel:
            view, pattern = in_order(view), [*pattern[:-2], *pattern[:-3:-1]]
        self.move(view, pattern, n, c, element, is_store)


@dataclass
class RowTensors:
    """The tensors of a convolution, each None without one.

    residual: or y's factor; gate: x's factor; sums: [C] fp32, results: the sums of each filter's taps; prologue:
    PrologueOperands; is_sigmoid: whether x is multiplied by the gate's sigmoid.
    """

    x: Rows
    state: Rows = None
    w: Rows = None
    y: Rows = None
    bias: Rows = None
    residual: Rows = None
    gate: Rows = None
    sums: Rows = None
    prologue: Any = None
    is_sigmoid: bool = False

    @property
    def sources(self):
        """The tensors of the convolution's input: x, and its factor if it has one."""
        return [self.x] if self.gate is None else [self.x, self.gate]

    def numbers(self):
        """Rows of the scale and shift of x's prologue, each None without one; [] without a prologue."""
        every = [] if self.prologue is None else [self.prologue.scale, self.prologue.shift]
        steps = (None if hbm is None else (0, *hbm.shape[1:])[-1] for hbm in every)
        return [None if hbm is None else Rows(hbm, (n, 1, 1), 0, 1) for hbm, n in zip(every, steps, strict=True)]

    def gates(self, tiles):
        """The pending products of tiles of the sources; [] for x alone."""
        return gates_of(tiles, self.is_sigmoid)


def in_order(view):
    """The view with its last two axes exchanged."""
    *outer, before, last = range(len(view.shape))
    return view.permute((*outer, last, before))


def tensors_of(geometry, x, w, y, bias=None, residual=None, state=None, sums=None, prologue=None):
    """The RowTensors of tensors in HBM; chunks of x become its gate and residual."""
    left, gate, places = geometry.pad_left, gate_of(geometry), residual_places(geometry)

    def rows(hbm, steps, low, high, *more):
        return None if hbm is None else Rows(hbm, steps, low, high, *more)

    def of_x(chunk, outside):
        start = chunk_start(geometry, chunk)
        return Rows(x, (geometry.x_n, geometry.x_c, geometry.x_w), 0, geometry.W, start, outside)

    return RowTensors(
        x=of_x("x", 0.0),
        state=rows(state, (geometry.C * left, left, 1), -left, 0),
        w=rows(w, (0, geometry.w_c, geometry.w_s), 0, geometry.S),
        y=rows(y, (geometry.y_n, geometry.y_c, geometry.y_q), 0, geometry.Q),
        bias=rows(bias, (0, 1, 1), 0, 1),
        residual=rows(x if "C" in geometry.chunks else residual, places[:3], 0, geometry.Q, places[3]),
        gate=of_x(gate, ONE_BY_SIGMOID if gate == "G" else 1.0) if gate else None,
        sums=rows(sums, (0, 1, 1), 0, 1),
        prologue=prologue,
        is_sigmoid=gate == "G",
    )


def move_free(tile_sbuf, rows, block, r0, n=0, is_store=False):
    """[rows, channels from r0 on, columns] of a ChannelBlock of an image from HBM to SBUF, with zeros for channels that
    do not exist; or the existing channels back."""
    if not is_store and full_rows(block)[0] < tile_sbuf.shape[0]:
        nisa.memset(dst=tile_sbuf, value=0.0)
    move_block(tile_sbuf, rows, block, (r0, tile_sbuf.shape[1]), (n, 0), is_store)


def move_block(tile_sbuf, rows, block, some, place, is_store=False):
    """Load or store the existing channels of `some` (first, count) of each row of a block from place (image, element)
    on: [rows, channels, columns], or [(row, channel), columns]."""
    (_, c_step, step), (first, width), columns = rows.steps, some, tile_sbuf.shape[-1]
    for row, count, channels in row_runs(block, first, width):
        pattern = [[block.length * c_step, count], [c_step, channels], [step, columns]]
        if len(tile_sbuf.shape) == 3:
            here = tile_sbuf[row : row + count, 0:channels, 0:columns]
        else:
            here = tile_sbuf[row * width : row * width + count * channels]
        rows.move(here, pattern, place[0], block.c0 + row * block.length + first, place[1], is_store)
