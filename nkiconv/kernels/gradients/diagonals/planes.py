"""x and gy with the pixels of a plane side by side, so that a partition loads whole planes: copies of NHWC in HBM."""

from ...conv.geometry import copy_of
from ...conv.relayout import dense, instructions_of_copies, rows_copy, to_rows, x_to_rows


def takes_planes(geometry):
    """Whether channels of x or gy lie side by side, and there are several."""
    return is_of_pixels(geometry.x_strides, geometry.C) or is_of_pixels(geometry.y_strides, geometry.K)


def is_of_pixels(strides, channels):
    """Whether channels of a tensor are side by side, where there are several."""
    return channels > 1 and strides[0] == 1


def planes_of_pixels(geometry):
    """The Geometry of the copies."""
    found = copy_of(geometry)
    if is_of_pixels(geometry.x_strides, geometry.C):
        found.x_strides = dense(geometry.C, geometry.rows.size, geometry.columns.size)
    if is_of_pixels(geometry.y_strides, geometry.K):
        found.y_strides = dense(geometry.K, geometry.rows.out, geometry.columns.out)
    return found


def gy_to_planes(geometry):
    """What is copied of gy."""
    shape = (geometry.K, geometry.planes.out, geometry.rows.out, geometry.columns.out)
    planes = geometry.planes
    return [to_rows(shape, geometry.hbm_itemsize, geometry.y_strides, planes.images, planes.out, 0)]


def copy_planes(operands, geometry):
    """Have operands.x and operands.w, which is gy, be copies; the cores share them, and wait for each other."""
    if is_of_pixels(geometry.x_strides, geometry.C):
        operands.x = rows_copy([operands.x], x_to_rows(geometry))
    if is_of_pixels(geometry.y_strides, geometry.K):
        operands.w = rows_copy([operands.w], gy_to_planes(geometry))


def planes_instructions(geometry):
    """Instructions of both cores for the copies, at most."""
    return instructions_of_copies(x_to_rows(geometry) + gy_to_planes(geometry))
