"""Loads of x into SBUF, as access patterns of HBM or transposed by DMA, and the fused prologue after them.

A tile holds x in one of these orders, its first letters on the partitions:

    | order | partitions       | free axes              | for                                           |
    |-------|------------------|------------------------|-----------------------------------------------|
    | cnhw  | channels         | planes, rows, columns  | all other kernels                             |
    | nchw  | planes, channels | rows, columns          | Toeplitz blocks of NCHW, which are transposed |
    | whnc  | columns          | rows, planes, channels | Toeplitz blocks of NHWC                       |

Padding is not loaded: places of a view outside of x keep the zeros that the kernel stored. Each DMA fills elements of x
only, so that a fused prologue follows it here (docs/architecture.md):

    x' = act(x * scale + shift)    scale, shift: a value for each channel, or for each channel of each image

One instruction for all images, or for each if their values differ; in fp32, rounded once to the dtype of the matmuls.
If x changes its dtype, this instruction is the cast. If each row and column of x becomes two, x is loaded into another
tile, which four instructions read, one for each place.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import rules
from .._nki import nisa, nl
from ..schedules.cuts import places_inside
from ..schedules.depthwise import GATED_ELEMENTS
from ..schedules.geometry import is_transposed
from ..schedules.options import NUMBER_BYTES, NUMBERS_BYTES, Prologue
from ..schedules.regions import regions_of_x
from ..schedules.tiles import QUADRANT, cut, div_ceil, engine_parts, parts_of_images, size_of
from ._arguments import refuse
from ._dma import load, load_region, load_transposed, spot
from ._engines import SCALAR_WORK, START_WORK, is_16bit, pick_sum
from ._epilogue import FUNCTIONS


@dataclass
class PrologueOperands(nl.NKIObject):
    """A prologue: its form, scale and shift in HBM or None, planes of x in an image, and values in SBUF by their
    channels and image."""

    asked: Prologue
    scale: Any
    shift: Any
    image_planes: int
    kept: dict = field(default_factory=dict)

    def numbers(self, name, row, c0, cn, image, copies=1):
        """Scale or shift (`name`) of channels c0 .. c0+cn-1, [.., 1] fp32 in SBUF from partition `row` on, in `copies`
        copies; of `image` if images have their own; None without it. Loads the next K tiles' and images' too."""
        form, hbm = getattr(self.asked, name), getattr(self, name)
        first = image if form == "image" else 0
        key = (name, row, c0, cn, first)
        if form != "" and key not in self.kept:
            channels, images = hbm.shape[-1], hbm.shape[0] - first if form == "image" else 1
            images = min(images, max(1, QUADRANT // ((channels - c0) // cn)))
            k_tiles = min((channels - c0) // cn, QUADRANT // images)
            tile_sbuf = nl.ndarray((row + copies * cn, k_tiles * images), dtype=nl.float32, buffer=nl.sbuf)
            pattern = [[cn, k_tiles], [channels, images], [1, cn]]
            load_numbers(tile_sbuf, row, hbm, pattern, first * channels + c0, copies)
            for k_tile in range(k_tiles):
                for place in range(images):
                    self.keep((name, row, c0 + k_tile * cn, cn, first + place), tile_sbuf, k_tile * images + place)
        return self.kept.get(key)

    def keep(self, key, tile_sbuf, column):
        """Keep the values of a tile's column, and drop those kept longest if there are too many."""
        while len(self.kept) >= NUMBERS_BYTES // NUMBER_BYTES:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = tile_sbuf[:, column : column + 1]

    def apply(self, dst, src, row, c0, first, ledger):
        """dst = act(src * scale + shift) of [c, planes, rows, columns] in SBUF, from partition `row`, a multiple of 32,
        channel c0 and (plane, row, column) `first` on; with each row and column `upsample` times."""
        for into, out_of in places_of_pixels(dst, src, first[1:], self.asked.upsample):
            self.apply_once(into, out_of, row, c0, first[0], ledger)

    def apply_once(self, dst, src, row, c0, d0, ledger, copies=1):
        """As `apply` without upsampling; the partitions hold `copies` copies of the channels in sequence."""
        (cn, dn), each = dst.shape[:2], self.image_planes
        parts = parts_of_images(d0, dn, each) if self.asked.by_image else [(d0 // each, 0, dn)]
        for image, first, planes in parts:
            numbers = [self.numbers(name, row, c0, cn // copies, image, copies) for name in ("scale", "shift")]
            for at, count in engine_parts(row, cn):
                own = slice(at - row, at - row + count), slice(first, first + planes)
                scale, shift = (None if one is None else one[at : at + count] for one in numbers)
                self.issue(dst[own], src[own], scale, shift, ledger)

    def issue(self, dst, src, scale, shift, ledger):
        """Issue the instruction; scale, shift: [c, 1], or None. Scalar runs it: it waits for a load and delays Scalar's
        later instructions, so that the ledger leaves evacuations to Vector."""
        if ledger is not None:
            ledger.scalar = ledger.scalar + START_WORK + size_of(dst.shape[1:]) * SCALAR_WORK
        op = FUNCTIONS[self.asked.activation] if self.asked.activation != "" else nl.copy
        nisa.activation(dst=dst, op=op, data=src, scale=1.0 if scale is None else scale, bias=shift)


def read_prologue(arguments, upsample, img_ref, N, C):
    """Check (x_scale, x_shift, x_activation), each of which may be None, and return a Prologue."""
    x_scale, x_shift, x_activation = arguments
    refuse(rules.activation(x_activation, "x_activation", "x"))
    forms = []
    for name, numbers in (("x_scale", x_scale), ("x_shift", x_shift)):
        if numbers is not None:
            refuse(rules.of_channels(name, numbers.shape, N, C), rules.array_dtype(name, numbers.dtype, ("fp32",)))
        forms.append("" if numbers is None else "channel" if len(numbers.shape) == 1 else "image")
    found = Prologue(forms[0], forms[1], "" if x_activation is None else x_activation, upsample)
    refuse(rules.prologue_fits(img_ref.dtype, "img_ref") if found.asked else "")
    return found


def load_numbers(numbers_sbuf, row, hbm, pattern, offset, copies=1):
    """Load values from HBM, [K tiles, images, channels], to partitions from `row` on of [.., (K tile, image)] in SBUF,
    in `copies` copies of all channels.

    They are loaded in runs of channels, which Vector transposes by squares: a DMA engine takes longer for a single
    value than for a run.
    """
    (_, k_tiles), (by_image, images), (_, cn) = pattern
    for begin in range(0, images, QUADRANT):
        count = min(QUADRANT, images - begin)
        runs_sbuf = nl.ndarray((k_tiles * count, cn), dtype=nl.float32, buffer=nl.sbuf)
        load(runs_sbuf, hbm, [pattern[0], [by_image, count], pattern[2]], offset + begin * by_image)
        if copies > 1:
            once, shape = runs_sbuf.expand_dim(1).broadcast(1, copies), (k_tiles * count, copies, cn)
            runs_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=runs_sbuf, src=once, engine=nisa.engine.vector)
            runs_sbuf = runs_sbuf.reshape((k_tiles * count, copies * cn))
        for c in range(0, copies * cn, QUADRANT):
            some = min(QUADRANT, copies * cn - c)
            square_sbuf = numbers_sbuf[row + c : row + c + some, begin : begin + k_tiles * count]
            nisa.nc_transpose(
                dst=square_sbuf, data=runs_sbuf[0 : k_tiles * count, c : c + some], engine=nisa.engine.vector
            )


def places_of_pixels(dst, src, first, upsample):
    """(part of dst, part of src) for each place of a src pixel in dst [c, planes, rows, columns]; dst begins at
    upsampled (row, column) `first`, src at the pixel of that place."""
    if upsample == 1:
        return [(dst, src)]
    (cn, dn, hn, wn), found = dst.shape, []
    for h in range(min(upsample, hn)):
        for w in range(min(upsample, wn)):
            counts = div_ceil(hn - h, upsample), div_ceil(wn - w, upsample)
            top, left = ((at + first[i]) // upsample - first[i] // upsample for i, at in enumerate((h, w)))
            out_of = src[0:cn, 0:dn, top : top + counts[0], left : left + counts[1]]
            found.append((dst[:, :, h:hn:upsample, w:wn:upsample], out_of))
    return found


def load_x(
    dst,
    operands,
    geometry,
    first,
    counts=None,
    order="cnhw",
    row_step=1,
    ledger=None,
    transposes=True,
    row=0,
):
    """Load the elements of x from (channel, plane, row, column) `first` on into a view of SBUF; padding is skipped.

    counts: of channels, planes, rows and columns; None: dst's. Rows and columns may begin before x and end after it.
    order: dst's axes, as above; row_step: the distance in x of dst's rows. ledger: as in `load_transposed`, which
    brings channels that are neighbours in HBM to partitions. transposes: False for kernels that read copies of
    NHWC: single pixels, whose channels are neighbours too, are then loaded plainly. row: dst's first partition.
    """
    (c0, d0, h0, w0), (cn, dn, hn, wn) = first, counts or dst.shape
    top, bottom = places_inside(h0, row_step, hn, geometry.rows.size)
    left, right = places_inside(w0, 1, wn, geometry.columns.size)
    if bottom <= top or right <= left:
        return
    start, extents, upsample = (h0 + top * row_step, w0 + left), (bottom - top, right - left), geometry.upsample
    # rows and columns in HBM
    ends = [(first + count - 1) // upsample + 1 for first, count in zip(start, extents)]
    held = [first // upsample for first in start]
    extents = [end - first for first, end in zip(held, ends)]
    for place, pattern, offset, framed in regions_of_x(geometry, (c0, cn), (d0, dn), held, extents):
        *channels, planes, (by_row, _), columns = pattern
        axes = {"c": channels, "n": [planes], "h": [[by_row * row_step, extents[0]]], "w": [columns]}
        at, pattern = {"c": place[0], "n": place[1], "h": top, "w": left}, [one for axis in order for one in axes[axis]]
        into = [at[axis] for axis in order[-len(dst.shape) :]]
        x_hbm, prologue = operands.frames if framed else operands.x, operands.prologue
        come, where, shape = dst, into, spot(dst, into, pattern).shape
        if prologue is not None and (dst.dtype != x_hbm.dtype or upsample > 1):
            come, where = nl.ndarray(shape, dtype=x_hbm.dtype, buffer=nl.sbuf), [0] * len(into)
        if order == "cnhw" and transposes and is_transposed(geometry):
            strides = [step for step, _ in pattern]
            load_transposed(spot(come, where, pattern), x_hbm, strides, offset, ledger)
        else:
            load_region_of_x(come, operands, where, pattern, offset, framed)
        if prologue is not None:
            there, target = spot(come, where, pattern), spot(dst, into, pattern)
            if upsample > 1:
                c, n = into[:2]
                target = dst[c : c + shape[0], n : n + shape[1], top:bottom, left:right]
            begin = (d0 + place[1], *start)
            prologue.apply(target, there, row + place[0], c0 + place[0], begin, ledger)


def load_region_of_x(tile, operands, first, pattern, offset, framed):
    """Load a region of x, or of the halo frames, into a tile at `first`: all loads that do not transpose."""
    load_region(tile, operands.frames if framed else operands.x, first, pattern, offset, operands.moved)


def multiply_gate(x_sbuf, factor, is_sigmoid, ledger):
    """x_sbuf *= factor or its sigmoid, views of SBUF of one shape from partition 0 on, rounded once to x's dtype: by
    Vector or GpSimd as the ledger chooses, by Vector without a ledger. Scalar computes a sigmoid in fp32."""
    elements = size_of(x_sbuf.shape[1:])
    if is_sigmoid:
        sigmoid_sbuf = nl.ndarray(x_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=sigmoid_sbuf, op=nl.sigmoid, data=factor)
        factor = sigmoid_sbuf
    engine = nisa.engine.vector
    if ledger is not None:
        engine = pick_sum(ledger, elements, is_16bit(factor.dtype))
        if is_sigmoid:
            ledger.scalar = ledger.scalar + START_WORK + elements * SCALAR_WORK
    nisa.tensor_tensor(dst=x_sbuf, data1=x_sbuf, data2=factor, op=nl.multiply, engine=engine)


def gates_of(tiles, is_sigmoid):
    """Deferred products of two tiles, x and its factor, in pieces, functions of a ledger; none for one tile."""
    gates = []
    if len(tiles) > 1:
        *lead, width = tiles[0].shape
        for first, count in cut(width, max(1, GATED_ELEMENTS // size_of(lead[1:]))):
            span = (*(slice(0, size) for size in lead), slice(first, first + count))
            gates.append(partial(multiply_gate, tiles[0][span], tiles[1][span], is_sigmoid))
    return gates


def finish_gates(gates, ledger, left=0):
    """Compute x's deferred products or prologues, all but the last `left`."""
    while len(gates) > left:
        gates.pop(0)(ledger)
