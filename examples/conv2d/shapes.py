"""Shapes, checks and the order of work of the kernels in this folder."""

import nki.language as nl

#: Bytes per partition of x of one band, and of all filters.
BAND_BYTES, FILTER_BYTES = 49152, 98304


def check(x, w, channels, stride, padding, groups):
    """Raise AssertionError, naming argument and value, for what no kernel here takes. channels: C of x, of w."""
    assert groups == 1, f"groups={groups} is not supported; call the kernel once per group, or use nkiconv.conv2d"
    assert channels[0] == channels[1], f"w has {channels[1]} input channels, x has {channels[0]}; they must be equal"
    assert x.dtype == w.dtype, f"w is {w.dtype}, x is {x.dtype}; they must be of one dtype"
    assert min(stride) >= 1, f"stride={stride}; must be at least 1"
    assert min(padding) >= 0, f"padding={padding}; must be at least 0"
    size = div_ceil(channels[0], 128) * itemsize(w)
    for extent in w.shape:
        size *= extent
    size //= channels[1]
    assert size <= FILTER_BYTES, f"w takes {size} bytes per partition of SBUF, more than {FILTER_BYTES}; split K"


def out_size(size, taps, stride, padding):
    """Outputs of a convolution along an axis. Raises AssertionError if there are none."""
    padded = size + 2 * padding
    assert taps <= padded, f"{taps} taps exceed {padded} padded elements; y would be empty"
    return (padded - taps) // stride + 1


def bands_of_core(N, P, stride, R, row_elements, x):
    """(n, first output row, output rows) of this core's bands.

    The rows of x of a band, of row_elements per partition each, fit BAND_BYTES. Cores take alternate bands.
    """
    count = div_ceil(P, max(1, (BAND_BYTES // (row_elements * itemsize(x)) - R) // stride + 1))
    if N % nl.num_programs() != 0:
        count = min(P, div_ceil(count, nl.num_programs()) * nl.num_programs())
    bands = [(n, p0, pn) for n in range(N) for p0, pn in tiles(P, div_ceil(P, count))]
    return bands[nl.program_id(0) :: nl.num_programs()]


def prefetched(bands, load):
    """(band, load(band)) of each band; the next band loads while the caller is at work on this one."""
    ahead = [load(band) for band in bands[:1]]
    for index, band in enumerate(bands):
        ahead += [load(later) for later in bands[index + 1 : index + 2]]
        yield band, ahead.pop(0)


def tiles(size, most):
    """(first, number) of each tile of at most `most` elements."""
    for first in range(0, size, most):
        yield first, min(most, size - first)


def itemsize(tensor):
    """Bytes of an element: 4 of fp32, 2 of bf16 and fp16."""
    return 4 if tensor.dtype == nl.float32 else 2


def div_ceil(a, b):
    """a / b, rounded up."""
    return -(-a // b)
