"""x and gy with their channels side by side, for blocks of them come in long runs then: copies of NCHW in HBM."""

from ..._nki import nl
from .._settings import setting
from .._tiles import size_of
from ..conv.geometry import copy_of
from ..conv.relayout import FEW, Transposed, copy_transposed, instructions_of_copies, meet
from .config import TURNED


def copies_pixels(strides, channels):
    """Whether channels of a tensor are not side by side, though there are several."""
    return strides[0] != 1 and channels > 1


def takes_pixels(geometry, config):
    """Whether x and gy are copied, as a config says; there is nothing to copy where channels are side by side."""
    several = copies_pixels(geometry.x_strides, geometry.C) or copies_pixels(geometry.y_strides, geometry.K)
    return several and setting(config, "pixels", 0) == 1


def turns_pixels(geometry, config):
    """Whether x and gy are turned on the array, as a config says; not where channels of both are side by side."""
    return (geometry.x_strides[0] != 1 or geometry.y_strides[0] != 1) and setting(config, "pixels", 0) == TURNED


def pixels_of(geometry):
    """The Geometry of the copies."""
    found = copy_of(geometry)
    if copies_pixels(geometry.x_strides, geometry.C):
        found.x_strides = dense_pixels(geometry.C, geometry.rows.size, geometry.columns.size)
    if copies_pixels(geometry.y_strides, geometry.K):
        found.y_strides = dense_pixels(geometry.K, geometry.rows.out, geometry.columns.out)
    return found


def dense_pixels(channels, height, width):
    """Strides along channels, planes, rows and columns of planes of pixels."""
    return (1, channels * height * width, channels * width, channels)


def copy_pixels(operands, geometry):
    """Have operands.x and operands.w, which is gy, be copies; the cores share them, and wait for each other."""
    if copies_pixels(geometry.x_strides, geometry.C):
        operands.x = pixels_copy(operands.x, x_to_pixels(geometry))
    if copies_pixels(geometry.y_strides, geometry.K):
        operands.w = pixels_copy(operands.w, gy_to_pixels(geometry))


def x_to_pixels(geometry):
    """What is copied of x."""
    sizes = (geometry.rows.size, geometry.columns.size)
    return parts_of_copy(geometry, geometry.x_strides, geometry.C, geometry.planes.size, sizes)


def gy_to_pixels(geometry):
    """What is copied of gy."""
    sizes = (geometry.rows.out, geometry.columns.out)
    return parts_of_copy(geometry, geometry.y_strides, geometry.K, geometry.planes.out, sizes)


def copy_instructions(geometry):
    """Instructions of both cores for copies of x and gy, at most."""
    return instructions_of_copies(x_to_pixels(geometry) + gy_to_pixels(geometry))


def pixels_copy(source_hbm, parts):
    """A copy of these parts."""
    pixels_hbm = nl.ndarray((size_of(source_hbm.shape),), dtype=source_hbm.dtype, buffer=nl.shared_hbm)
    for part in parts:
        copy_transposed(pixels_hbm, source_hbm, part)
    meet(pixels_hbm)
    return pixels_hbm


def parts_of_copy(geometry, strides, channels, planes, sizes):
    """What is copied of a tensor, as rows, or as lines of 128 pixels and one of the rest."""
    H, W = sizes
    is_sorted, each, lines, line_step = channels <= min(FEW, W), W, [(0, H, W)], strides[2]
    if not is_sorted and strides[2] == W * strides[3]:
        each = nl.tile_size.pmax
        whole = H * W // each
        lines, line_step = [(0, whole, each), (whole * each, 1, H * W % each)], each * strides[3]
    found = []
    for line in lines:
        first, count, columns = line
        if count * columns > 0:
            found.append(
                Transposed(
                    shape=(columns, planes, count, channels),
                    item=geometry.hbm_itemsize,
                    source=(strides[3], strides[1], line_step, strides[0]) + tuple(strides[4:]),
                    target=(channels, channels * H * W, each * channels, 1),
                    source_first=first * strides[3],
                    target_first=first * channels,
                    is_sorted=is_sorted,
                    volumes=geometry.planes.images,
                )
            )
    return found
