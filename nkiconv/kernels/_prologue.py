"""Where x arrives: its loads into SBUF, as access patterns of HBM or transposed by the DMA.

A tile holds x in one of these orders, its first letters on the partitions:

    | order | partitions       | free axes              | for                                           |
    |-------|------------------|------------------------|-----------------------------------------------|
    | cnhw  | channels         | planes, rows, columns  | all kernels but those below                   |
    | nchw  | planes, channels | rows, columns          | Toeplitz blocks of NCHW, which are transposed |
    | whnc  | columns          | rows, planes, channels | Toeplitz blocks of NHWC                       |
    | cnw   | channels         | planes, rows as a run  | fp8 pairs, which GpSimd puts in place         |

Of padding nothing is loaded: what a view has beside x keeps the zeros that the kernel stored. What each DMA fills is x
alone, so that a fused prologue has its place behind it, here (docs/architecture.md):

    x' = act(x * scale + shift)    scale, shift: a number for each channel, or for each of each image

One instruction for all images or, where their numbers differ, for each; in fp32, rounded once to what the array takes.
Where x changes its dtype on the way, that instruction is the cast.
"""

from dataclasses import dataclass, field

from .. import rules
from .._nki import nisa, nl
from ..schedules.cuts import places_inside
from ..schedules.frames import is_transposed
from ..schedules.options import NUMBER_BYTES, NUMBERS_BYTES, RUN_NUMBERS, Prologue
from ..schedules.regions import regions_of_x
from ..schedules.tiles import QUADRANT, engine_parts, size_of
from ._arguments import refuse
from ._dma import load, load_region, load_transposed, spot
from ._engines import SCALAR_WORK, START_WORK, is_16bit, pick
from ._epilogue import FUNCTIONS


@dataclass
class PrologueOperands(nl.NKIObject):
    """A prologue, its numbers in HBM, None where there are none, planes of x of an image, and numbers in SBUF by what
    they are of. strict: as of `options.either_reads`."""

    asked: Prologue
    scale: object
    shift: object
    image_planes: int
    strict: bool
    kept: dict = field(default_factory=dict)
    kept_bytes: int = 0
    #: the last runs of channels, by name: (first channel, how many, images, [images, channels] in SBUF)
    last: dict = field(default_factory=dict)

    def numbers(self, name, hbm, form, row, c0, cn, first, count):
        """[row + cn, 1] or [row + cn, images] fp32 in SBUF, of channels from c0 on from partition `row` on, of images
        from `first` on; None of what is not."""
        if form == "":
            return None
        by_image = form == "image"
        key = (name, row, c0, cn) + ((first, count) if by_image else ())
        if key not in self.kept:
            images = count if by_image else 1
            self.kept_bytes += NUMBER_BYTES * images
            while self.kept_bytes > NUMBERS_BYTES and self.kept:
                self.kept_bytes -= NUMBER_BYTES * self.kept.pop(next(iter(self.kept))).shape[1]
            self.kept[key] = nl.ndarray((row + cn, images), dtype=nl.float32, buffer=nl.sbuf)
            for begin in range(0, images, QUADRANT):
                some = (first + begin, min(QUADRANT, images - begin)) if by_image else (0, 1)
                part_sbuf = self.kept[key][0 : row + cn, begin : begin + some[1]]
                transpose_numbers(part_sbuf, row, self.runs(name, hbm, c0, cn, some))
        return self.kept[key]

    def runs(self, name, hbm, c0, cn, images):
        """[images, cn] in SBUF, of some images (first, how many): in runs of channels, with those of the next K tiles,
        as each single number would take a DMA engine longer than a run does."""
        begin, held, of, runs_sbuf = self.last.get(name, (0, 0, (0, 0), None))
        if of != images or c0 < begin or c0 + cn > begin + held:
            channels = hbm.shape[-1]
            begin, held = c0, min(RUN_NUMBERS, channels - c0)
            runs_sbuf = nl.ndarray((images[1], held), dtype=nl.float32, buffer=nl.sbuf)
            load(runs_sbuf, hbm, [[channels, images[1]], [1, held]], images[0] * channels + c0)
            self.last[name] = (begin, held, images, runs_sbuf)
        return runs_sbuf[0 : images[1], c0 - begin : c0 - begin + cn]

    def apply(self, dst, src, row, c0, d0, ledger):
        """dst = act(src * scale + shift) of [c, planes, rows, columns] in SBUF, from partition `row`, a multiple of 32,
        channel c0 and plane d0 on."""
        (cn, dn), each = dst.shape[:2], self.image_planes
        first = d0 // each
        images = (d0 + dn - 1) // each - first + 1
        scale_sbuf = self.numbers("scale", self.scale, self.asked.scale, row, c0, cn, first, images)
        shift_sbuf = self.numbers("shift", self.shift, self.asked.shift, row, c0, cn, first, images)
        parts = [(max(d0, image * each), min(d0 + dn, (image + 1) * each)) for image in range(first, first + images)]
        for low, high in parts if self.asked.by_image else [(d0, d0 + dn)]:
            image, planes = low // each - first, (low - d0, high - d0)
            for part in engine_parts(row, cn):
                into, out_of = part_of(dst, row, part, planes), part_of(src, row, part, planes)
                self.issue(
                    into, out_of, numbers_of(scale_sbuf, part, image), numbers_of(shift_sbuf, part, image), ledger
                )

    def issue(self, dst, src, scale, shift, ledger):
        """The instruction, by Vector where it can and would be done first; scale, shift: [c, 1], or None."""
        elements, activation = size_of(dst.shape[1:]), self.asked.activation
        steps = [(nl.multiply, scale), (nl.add, shift), (nl.maximum, 0.0 if activation == "relu" else None)]
        steps = [one for one in steps if one[1] is not None]
        vector = activation == "" or (activation == "relu" and len(steps) < 3 and not self.strict)
        engine = nisa.engine.scalar
        if ledger is not None and vector:
            engine = pick(ledger, elements, is_16bit(src.dtype) and is_16bit(dst.dtype))
        elif ledger is not None:
            ledger.scalar = ledger.scalar + START_WORK + elements * SCALAR_WORK
        if engine == nisa.engine.vector:
            more = {} if len(steps) == 1 else {"op1": steps[1][0], "operand1": steps[1][1]}
            nisa.tensor_scalar(dst=dst, data=src, op0=steps[0][0], operand0=steps[0][1], engine=engine, **more)
        else:
            op = FUNCTIONS[activation] if activation != "" else nl.copy
            nisa.activation(dst=dst, op=op, data=src, scale=1.0 if scale is None else scale, bias=shift)


def read_prologue(arguments, img_ref, N, C):
    """Check (x_scale, x_shift, x_activation), each of which may be None, and return a Prologue."""
    x_scale, x_shift, x_activation = arguments
    refuse(rules.activation(x_activation, "x_activation", "x"))
    forms = []
    for name, numbers in (("x_scale", x_scale), ("x_shift", x_shift)):
        if numbers is not None:
            refuse(rules.of_channels(name, numbers.shape, N, C), rules.array_dtype(name, numbers.dtype, ("fp32",)))
        forms.append("" if numbers is None else "channel" if len(numbers.shape) == 1 else "image")
    found = Prologue(forms[0], forms[1], "" if x_activation is None else x_activation)
    refuse(rules.prologue_fits(img_ref.dtype, "img_ref") if found.asked else "")
    return found


def transpose_numbers(numbers_sbuf, row, runs_sbuf):
    """[images, c] of at most 32 images to partitions from `row` on of [.., images], by squares on Vector."""
    images, cn = runs_sbuf.shape
    for c in range(0, cn, QUADRANT):
        some = min(QUADRANT, cn - c)
        square_sbuf = numbers_sbuf[row + c : row + c + some, 0:images]
        nisa.nc_transpose(dst=square_sbuf, data=runs_sbuf[0:images, c : c + some], engine=nisa.engine.vector)


def part_of(view, row, part, planes):
    """Partitions (first, how many) and planes (first, end) of a view [c, planes, rows, columns] from partition `row`
    on."""
    first, count = part
    c = first - row
    return view[c : c + count, planes[0] : planes[1], 0 : view.shape[2], 0 : view.shape[3]]


def numbers_of(numbers_sbuf, part, image):
    """[c, 1] of partitions (first, how many) of an image, of numbers of all or of each; None of none."""
    if numbers_sbuf is None:
        return None
    (first, count), column = part, image if numbers_sbuf.shape[1] > 1 else 0
    return numbers_sbuf[first : first + count, column : column + 1]


def load_x(
    dst,
    operands,
    geometry,
    first,
    counts=None,
    order="cnhw",
    row_step=1,
    ledger=None,
    alone=False,
    transposes=True,
    row=0,
):
    """Load what there is of x, from (channel, plane, row, column) `first` on, into a view of SBUF.

    counts: of channels, planes, rows and columns; None: dst's. Rows and columns may begin before x and end after it.
    order: what dst's axes are, above; row_step: rows of x from one of dst to the next. ledger, alone: as of
    `load_transposed`, which takes channels that are neighbours in HBM to partitions. transposes: False of kernels that
    work on copies of NHWC: single pixels, whose channels are neighbours too, then come by plain loads. row: dst's
    first partition.
    """
    (c0, d0, h0, w0), (cn, dn, hn, wn) = first, counts or dst.shape
    top, bottom = places_inside(h0, row_step, hn, geometry.rows.size)
    left, right = places_inside(w0, 1, wn, geometry.columns.size if "h" in order else wn)
    if bottom <= top or right <= left:
        return
    start, extents = (h0 + top * row_step, w0 + left), (bottom - top, right - left)
    for place, pattern, offset, framed in regions_of_x(geometry, (c0, cn), (d0, dn), start, extents):
        *channels, planes, (by_row, _), columns = pattern
        axes = {"c": channels, "n": [planes], "h": [[by_row * row_step, extents[0]]], "w": [columns]}
        at, pattern = {"c": place[0], "n": place[1], "h": top, "w": left}, [one for axis in order for one in axes[axis]]
        into = [at[axis] for axis in order[-len(dst.shape) :]]
        x_hbm, prologue = operands.frames if framed else operands.x, operands.prologue
        come, where = dst, into
        if prologue is not None and dst.dtype != x_hbm.dtype:
            come, where = nl.ndarray(spot(dst, into, pattern).shape, dtype=x_hbm.dtype, buffer=nl.sbuf), [0] * len(into)
        if order == "cnhw" and transposes and is_transposed(geometry):
            strides = [step for step, _ in pattern]
            load_transposed(spot(come, where, pattern), x_hbm, strides, offset, alone, ledger)
        else:
            load_region_of_x(come, operands, where, pattern, offset, framed)
        if prologue is not None:
            there = spot(come, where, pattern)
            prologue.apply(spot(dst, into, pattern), there, row + place[0], c0 + place[0], d0 + place[1], ledger)


def load_region_of_x(tile, operands, first, pattern, offset, framed):
    """Load a region of x, or of the halo frames, into a tile, at `first`: every load but those that transpose."""
    load_region(tile, operands.frames if framed else operands.x, first, pattern, offset, operands.moved)


def load_rows(dst, x_hbm, pattern, offset):
    """Load an access pattern of rows [N, C, W], of x or of the state in front of it, into a view of SBUF."""
    load(dst, x_hbm, pattern, offset)
