"""1x1 filters of NCHW: DMA transposes planes of x and gy as they come.

Without windows any pixels are units: a plane is lines of up to 128, and a partition a column of several lines.
"""

from dataclasses import replace

from ..._nki import nisa, nl
from ...schedules.geometry import Axis, num_taps
from ...schedules.settings import setting
from ..conv.boxes import offset_at

#: What a config calls that (see its `pixels`), and x and gy that are turned on the array.
LINES, TURNED = 1, 2
#: Pixels of a line, at least, unless it is a whole plane: a run of HBM. Our choice: what short ones cost is not known.
LINE_LEAST = 32


def takes_lines(geometry, config):
    """Whether x and gy come as lines, as a config says."""
    return setting(config, "pixels", 0) == LINES and has_lines(geometry)


def turns_pixels(geometry, config):
    """Whether x and gy are turned on the array, as a config says; not where channels of both are side by side."""
    return (geometry.x_strides[0] != 1 or geometry.y_strides[0] != 1) and setting(config, "pixels", 0) == TURNED


def has_lines(geometry):
    """Whether there are lines: one tap that meets each pixel, 16 bits, planes without gaps that lines cut evenly."""
    whole = num_taps(geometry) == 1 and geometry.hbm_itemsize == 2
    whole = whole and width_of(geometry.rows.size * geometry.columns.size) > 0
    for axis in (geometry.planes, geometry.rows, geometry.columns):
        whole = whole and axis.before == 0 and axis.size == axis.out
        whole = whole and (axis.out == 1 or axis.stride == axis.lhs_dilation)
    for strides in (geometry.x_strides, geometry.y_strides):
        whole = whole and strides[0] != 1 and strides[3] == 1 and strides[2] == geometry.columns.size
    return whole


def lines_of(geometry):
    """(Geometry of lines whose channels lie side by side, as DMA leaves them, that of lines as they lie)."""
    size, planes = geometry.rows.size * geometry.columns.size, geometry.planes
    width = width_of(size)
    count = size // width
    x_strides = (*geometry.x_strides[0:2], width, 1, *geometry.x_strides[4:])
    y_strides = (*geometry.y_strides[0:2], width, 1, *geometry.y_strides[4:])
    if count == 1 and len(geometry.x_strides) == 4 and len(geometry.y_strides) == 4:
        count = planes.size
        x_strides = (geometry.x_strides[0], 0, geometry.x_strides[1], 1)
        y_strides = (geometry.y_strides[0], 0, geometry.y_strides[1], 1)
        planes = Axis(size=1, taps=1, out=1)
    rows, columns = Axis(size=count, taps=1, out=count), Axis(size=width, taps=1, out=width)
    source = replace(geometry, planes=planes, rows=rows, columns=columns, x_strides=x_strides, y_strides=y_strides)
    dense = dense_pixels(geometry.C, count, width), dense_pixels(geometry.K, count, width)
    return replace(source, x_strides=dense[0], y_strides=dense[1]), source


def width_of(size):
    """Pixels of a line, LINE_LEAST and more, or all, that cut so many evenly and leave fewest partitions idle; or 0."""
    best, most, P_MAX = 0, 0, nl.tile_size.pmax
    for width in range(min(size, LINE_LEAST), min(size, P_MAX) + 1):
        units = P_MAX // width * width
        if size % width == 0 and units >= most:
            best, most = width, units
    return best


def units_of_tile(geometry, lines):
    """Units of a tile, at most; of lines whole ones."""
    P_MAX, width = nl.tile_size.pmax, geometry.columns.out
    return P_MAX // width * width if lines else P_MAX


def dense_pixels(channels, height, width):
    """Strides along channels, planes, rows and columns of planes of pixels."""
    return (1, channels * height * width, channels * width, channels)


def load_lines(hbm, strides, channels, tile, tile_sbuf):
    """Channels (first, how many) of lines of a tile's units. strides: as lines lie."""
    for box in tile:
        lines, extent = box.counts[1], box.rows.extent
        for block in range(box.counts[0] * lines):
            plane, p = box.z + block // lines, box.p + block % lines * box.rows.apart
            part, pixels = box.part + block * box.counts[2], box.counts[2]
            pattern = [[strides[0], channels[1]], [strides[2], extent], [1, pixels]]
            nisa.dma_transpose(
                dst=tile_sbuf[part : part + pixels, 0:extent, 0, 0 : channels[1]],
                src=hbm.ap(pattern=pattern, offset=offset_at(strides, (channels[0], plane, p, box.q))),
                axes=(2, 1, 0),
            )
