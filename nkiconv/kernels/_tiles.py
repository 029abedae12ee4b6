"""Compile-time helpers of kernels: ceil division, refusals, row-major strides, shares."""

from .._nki import nl

#: Instructions of one core above which the compiler refuses an unrolled kernel (NCC_EBVF030, as users report it).
INSTRUCTIONS_MAX = 5_000_000
#: Parts that work is cut into first: as many as cores of an LNC2 launch, on one core too, so that bits agree.
PARTS = 2
#: Columns of fp32 sums that one bank of PSUM holds (nki.language.tile_size.psum_fmax), and its bytes per partition.
BANK_COLUMNS = 512
BANK_BYTES = 2048
#: Banks that there are (trn2.toml, memory.psum_banks).
PSUM_BANKS = 8
#: Bytes at multiples of which begins in PSUM what the array writes, and of which Vector takes as many as of one byte.
WORD_BYTES = 4
#: Engines address partitions from a multiple of this on (trn2.toml, rules NKI043).
QUADRANT = 32


def div_ceil(a, b):
    """Smallest int that is at least a / b, for a >= 0 and b > 0: NKI's documents do not say how // rounds below 0."""
    return (a + b - 1) // b


def fits_sbuf(count):
    """Whether SBUF holds so many bytes per partition."""
    return count <= nl.tile_size.total_available_sbuf_size


def slot_for(size):
    """Partitions of the smallest part of all, from which engines may address `size` of them."""
    slot = QUADRANT
    while slot < size:
        slot = 2 * slot
    return slot


def require(condition, message):
    """Refuse a kernel's arguments while it is built. The simulator turns this into KernelAssertionError."""
    assert condition, message


def share(count, parts, index):
    """(first, how many) of part `index` when `count` things are shared out evenly."""
    first = (count * index) // parts
    return first, (count * (index + 1)) // parts - first


def size_of(extents):
    """Elements of a box of these extents."""
    found = 1
    for extent in extents:
        found = found * extent
    return found


def cut(count, most):
    """(first, how many) of parts of at most `most`, as even as can be."""
    return cut_into(count, div_ceil(count, most))


def cut_into(count, parts):
    """(first, how many) of so many parts, as even as can be."""
    found = []
    for index in range(parts):
        found.append(share(count, parts, index))
    return found


def cut_at(count, most):
    """(first, how many) of parts of `most`, and of the rest."""
    found = []
    for first in range(0, count, most):
        found.append((first, min(most, count - first)))
    return found


def some_of(things, part):
    """The things of a list that a part is: (first, how many)."""
    return things[part[0] : min(part[0] + part[1], len(things))]


def filled(count, value):
    """A list with a value so many times."""
    found = []
    for _ in range(count):
        found.append(value)
    return found


def dense_strides(shape):
    """Row-major strides, in elements, of an HBM tensor."""
    found, step = (1,), 1
    for index in range(len(shape) - 1):
        step = step * shape[len(shape) - 1 - index]
        found = (step,) + found
    return found


def whole_words(count, itemsize):
    """Elements of `count` or a few more that fill whole words of four bytes: where the array writes rows to PSUM, each
    begins at one."""
    each = max(1, WORD_BYTES // itemsize)
    return div_ceil(count, each) * each


def is_pair(value):
    """Whether value is a tuple of two ints."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], int)


def is_permutation(perm, rank):
    """Whether perm is a tuple with each of 0, 1, ... rank-1 once."""
    if not isinstance(perm, tuple) or len(perm) != rank:
        return False
    for axis in range(rank):
        if axis not in perm:
            return False
    return True


def picked(values, axes):
    """Values in the order of some axes: of a canonical shape that as stored, of strides the canonical ones."""
    found = ()
    for axis in axes:
        found = found + (values[axis],)
    return found


def index_of(things, wanted):
    """Where one of some things stands, all of which differ."""
    found = 0
    for index in range(len(things)):
        if things[index] == wanted:
            found = index
    return found


def result_strides(shape, axes):
    """Canonical strides of a tensor stored with this shape and permutation."""
    stored, found = dense_strides(shape), ()
    for index in range(len(axes)):
        found = found + (stored[index_of(axes, index)],)
    return found
