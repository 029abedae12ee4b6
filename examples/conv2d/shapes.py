"""Shapes and checks of the kernels in this folder."""

import nki.language as nl

#: Bytes per partition of x of one band, and of all filters.
BAND_BYTES, FILTER_BYTES = 49152, 98304


def check(x, w, channels, stride, padding, groups):
    """Raise AssertionError, naming argument and value, for what no kernel here takes. channels: C of x, of w."""
    assert groups == 1, f"groups={groups} is not supported; call the kernel once per group, or use nkiconv.conv2d"
    assert channels[0] == channels[1], f"w has {channels[1]} input channels, x has {channels[0]}; they must be equal"
    assert x.dtype == w.dtype, f"w is {w.dtype}, x is {x.dtype}; they must be of one dtype"
    assert min(stride[0], stride[1]) >= 1, f"stride={stride}; must be at least 1"
    assert min(padding[0], padding[1]) >= 0, f"padding={padding}; must be at least 0"
    size = div_ceil(channels[0], 128) * itemsize(w)
    for extent in w.shape:
        size = size * extent
    size = size // channels[1]
    assert size <= FILTER_BYTES, f"w takes {size} bytes per partition of SBUF, more than {FILTER_BYTES}; split K"


def out_size(size, taps, stride, padding):
    """Outputs of a convolution along an axis. Raises AssertionError if there are none."""
    padded = size + 2 * padding
    assert taps <= padded, f"{taps} taps exceed {padded} padded elements; y would be empty"
    return (padded - taps) // stride + 1


def band_rows(N, P, stride, R, row_elements, x):
    """Output rows of a band: its rows of x, of row_elements per partition each, fit BAND_BYTES; cores share evenly."""
    bands = div_ceil(P, max(1, (BAND_BYTES // (row_elements * itemsize(x)) - R) // stride + 1))
    if N % nl.num_programs() != 0:
        bands = min(P, div_ceil(bands, nl.num_programs()) * nl.num_programs())
    return div_ceil(P, bands)


def itemsize(tensor):
    """Bytes of an element: 4 of fp32, 2 of bf16 and fp16."""
    return 4 if tensor.dtype == nl.float32 else 2


def div_ceil(a, b):
    """a / b, rounded up."""
    return (a + b - 1) // b
