"""Filter gradient of a depthwise conv1d: the public kernel, by a depthwise convolution of x with gy as its filter.

    dw[c, s] = sum over n and q of  gy[n, c, q] * x[n, c, q * stride + s * dilation - pad_left]

For one image this is a depthwise convolution of x with gy, whose stride is the dilation and whose dilation the stride.
Images become channels, N * C of them, and one of depthwise_conv1d's algorithms computes all; `fold_images` adds the
sums of several images from fp32 scratch in HBM. For filters that are short against rows `skewed` adds all positions by
matmuls.

x and gy are rows of all images and channels, which become the channels of one image, as stored or copied. fp32 sums
over images, and over the positions of a row, have an order that does not depend on the number of cores.
"""

from dataclasses import replace
from itertools import product

from ..._nki import nisa, nki, nl
from ...schedules import skewed as skewed_schedule
from ...schedules.depthwise import Options, RowGeometry
from ...schedules.depthwise_algorithms import ALGORITHMS, unsupported_reason
from ...schedules.gradient_algorithms import default_of_rows
from ...schedules.relayout import to_rows
from ...schedules.tiles import cut_at, div_ceil, lines_of, require
from .._arguments import check_choice, check_given, filter_like, result_dtype
from .._dma import copy
from .._epilogue import read_epilogue
from ..conv.call import part_of_core
from ..conv.relayout import meet, rows_copy
from ..depthwise_conv1d import run_algorithm
from ..depthwise_conv1d.geometry import read_geometry
from ..depthwise_conv1d.tensors import Rows, tensors_of
from .skewed import skewed


def flat_rows(geometry, is_x):
    """(elements between images, rows and elements, parts of the copy that makes such rows, or []) of x of a
    convolution, or of its gy."""
    N, C, size = geometry.N, geometry.C, geometry.W if is_x else geometry.Q
    x_steps, gy_steps = (geometry.x_n, geometry.x_c, geometry.x_w), (geometry.y_n, geometry.y_c, geometry.y_q)
    n_step, c_step, step = x_steps if is_x else gy_steps
    if (step == 1 or size == 1) and (N == 1 or C == 1 or n_step == C * c_step):
        row = n_step if C == 1 else c_step
        return (C * row, row, step), []
    part = to_rows((C, N, 1, size), geometry.itemsize, (c_step, n_step, 0, step), 1, N, 0)
    # a copy that an engine does not sort is transposed by DMA, whose channels must be neighbours
    return (C * size, size, 1), [replace(part, is_sorted=part.is_sorted or c_step != 1)]


def gradient_geometry(forward):
    """The RowGeometry of the convolution of x with gy, whose images become channels: y is each image's gradient, in
    fp32 if there are several."""
    several, C = forward.N > 1, forward.N * forward.C
    (_, x_row, x_step), (_, gy_row, gy_step) = (flat_rows(forward, is_x)[0] for is_x in (True, False))
    stride, dilation = forward.dilation, forward.stride if forward.Q > 1 else 1
    reach = (forward.S - 1) * stride + (forward.Q - 1) * dilation - (forward.W - 1) * forward.lhs_dilation
    return RowGeometry(
        *(1, C, forward.W, forward.Q, forward.S),
        *(stride, dilation, forward.lhs_dilation, forward.pad_left, reach - forward.pad_left),
        *(C * x_row, x_row, x_step, gy_row, gy_step),
        *(C * forward.S, forward.S if several else forward.w_c, 1 if several else forward.w_s),
        itemsize=forward.itemsize,
        times=forward.times,
    )


#: Most bytes a partition of a tile of sums of several images, and of a tile of rows; most columns of a piece of sums;
#: least tiles of rows.
FOLD_BYTES, ROWS_BYTES, FOLD_COLUMNS, ROWS_TILES = 32_768, 16_384, 512, 8


def fold_images(sums_hbm, images, lines, into_hbm, added_hbm):
    """This core's part of fp32 sums [images, lines, elements] over images, plus added_hbm or None, into a tensor in
    HBM. lines: (lines, their length, HBM elements between lines of that tensor, and between elements of a line)."""
    count, length, line_step, step = lines
    columns = cut_at(length, max(1, min(FOLD_COLUMNS, FOLD_BYTES // (4 * images))))
    pieces = list(product(cut_at(count, nl.tile_size.pmax), columns))
    for (line, n), (column, m) in part_of_core(pieces):
        pattern, offset = [[line_step, n], [step, m]], line * line_step + column * step
        region = [[length, n], [count * length, images], [1, m]]
        found_sbuf = summed(sums_hbm, region, line * length + column, 1)
        if added_hbm != None:
            added_sbuf = nl.ndarray((n, m), dtype=nl.float32, buffer=nl.sbuf)
            copy(added_sbuf, added_hbm.ap(pattern=pattern, offset=offset))
            nisa.tensor_tensor(dst=found_sbuf, data1=found_sbuf, data2=added_sbuf, op=nl.add)
        if into_hbm.dtype != nl.float32:
            rounded_sbuf = nl.ndarray((n, m), dtype=into_hbm.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=rounded_sbuf, src=found_sbuf)
            found_sbuf = rounded_sbuf
        copy(into_hbm.ap(pattern=pattern, offset=offset), found_sbuf)


def summed(hbm, pattern, offset, axis):
    """Sums of a region [lines, ., .] in HBM over its axis 1 or 2, in parts that fit: fp32 [lines, columns] in SBUF."""
    (_, lines), (_, columns), (step, count) = pattern[0], pattern[3 - axis], pattern[axis]
    parts = cut_at(count, max(1, FOLD_BYTES // (4 * columns)))
    sums_sbuf = nl.ndarray((lines, columns, len(parts)), dtype=nl.float32, buffer=nl.sbuf)
    for part, (first, some) in enumerate(parts):
        of_part = [*pattern[:axis], [step, some], *pattern[axis + 1 :]]
        part_sbuf = nl.ndarray([extent for _, extent in of_part], dtype=hbm.dtype, buffer=nl.sbuf)
        copy(part_sbuf, hbm.ap(pattern=of_part, offset=offset + first * step))
        data = part_sbuf if axis == 2 else part_sbuf.permute((0, 2, 1))
        nisa.tensor_reduce(dst=sums_sbuf[0:lines, 0:columns, part : part + 1], op=nl.add, data=data, axis=2)
    if len(parts) > 1:
        whole_sbuf = nl.ndarray((lines, columns, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=whole_sbuf, op=nl.add, data=sums_sbuf, axis=2)
        sums_sbuf = whole_sbuf
    return sums_sbuf.reshape((lines, columns))


def sum_positions(gy_hbm, geometry, images, db_hbm):
    """This core's part of db: sums of gy's rows, the filters of a RowGeometry, over positions and images."""
    rows, sums_hbm = geometry.C, db_hbm
    if images > 1:
        sums_hbm = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    # as many neighbouring rows a partition as fit, at most as many as leave ROWS_TILES tiles of all partitions
    each = ROWS_BYTES // (geometry.itemsize * min(geometry.S, ROWS_BYTES // geometry.itemsize))
    each = min(each, div_ceil(rows, ROWS_TILES * nl.tile_size.pmax))
    tiles = lines_of(rows, each)
    for first, lines, some in part_of_core(tiles):
        pattern = [[some * geometry.w_c, lines], [geometry.w_c, some], [geometry.w_s, geometry.S]]
        sums_sbuf = summed(gy_hbm, pattern, first * geometry.w_c, 2)
        copy(sums_hbm.ap(pattern=[[some, lines], [1, some]], offset=first), sums_sbuf)
    if images > 1:
        meet(sums_hbm)
        fold_images(sums_hbm, images, (1, rows // images, rows // images, 1), db_hbm, None)


#: The algorithms by their names in arguments.
SKEWED, DOT = "skewed", "dot"
ROWS_ALGORITHMS = (*ALGORITHMS, SKEWED)
#: Bytes of an element of sums.
SUM_BYTES = 4


@nki.jit
def depthwise_conv1d_weight_gradient(
    img_ref,
    grad_ref,
    filter_shape,
    padding=((0, 0), (0, 0)),
    stride=(1, 1),
    rhs_dilation=(1, 1),
    lhs_dilation=(1, 1),
    feature_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    accumulate_into=None,
    bias_gradient=False,
    out_dtype=None,
    algorithm=None,
    config=None,
):
    """Gradient of a depthwise conv1d with respect to its filters. Launch on one or two cores: both give the same bits.

    Args:
        img_ref: x in HBM, [N, C, 1, W] after in_perm; bf16, fp16 or fp32.
        grad_ref: gy in HBM, of y's shape as `depthwise_conv1d_implicit_gemm` stores it with out_perm; fp32 with fp32
            images, bf16 or fp16 with either of them. Layouts without contiguous, equally spaced rows are copied.
        filter_shape: shape of the filter as stored, (C, 1, 1, S) before kern_perm.
        padding, stride, rhs_dilation, lhs_dilation, feature_group_count, in_perm, kern_perm, out_perm, accumulate_into,
            bias_gradient, out_dtype: as in `conv_weight_gradient`.
        algorithm, config: "skewed" and its settings, or as in `depthwise_conv1d_implicit_gemm` for the convolution of
            x with gy; None: the kernel's choice.

    Returns: dw in HBM, of filter_shape; with bias_gradient (dw, db). Sums are fp32, rounded once.

    Raises: an assertion that names argument, value, rule and remedy, before any instruction.
    """
    check_given(locals())
    check_choice(algorithm, config, ROWS_ALGORITHMS)
    like = filter_like(filter_shape, 2, grad_ref, bias_gradient)
    places, perms = (padding, stride, rhs_dilation, lhs_dilation), (in_perm, kern_perm, out_perm)
    forward, y_shape = read_geometry(img_ref, like, places, (feature_group_count, 1), perms)
    dw_dtype = result_dtype(grad_ref, y_shape, filter_shape, accumulate_into, out_dtype)
    geometry = gradient_geometry(forward)
    options = options_of_rows(forward, accumulate_into, dw_dtype)
    algorithm = default_of_rows(forward, geometry, options) if algorithm == None else algorithm
    reason = unsupported_of_rows(algorithm, forward, geometry, options, config)
    require(reason == "", reason)
    dw_hbm = nl.ndarray(filter_shape, dtype=dw_dtype, buffer=nl.shared_hbm)
    db_hbm = nl.ndarray((forward.C,), dtype=nl.float32, buffer=nl.shared_hbm) if bias_gradient else None
    # copies, which the cores share and wait for
    (x_steps, x_parts), (gy_steps, gy_parts) = flat_rows(forward, True), flat_rows(forward, False)
    x_hbm = rows_copy([img_ref], x_parts) if x_parts else img_ref
    gy_hbm = rows_copy([grad_ref], gy_parts) if gy_parts else grad_ref
    several = forward.N > 1
    in_pass = algorithm == DOT and not several
    if algorithm == SKEWED:
        x, gy = Rows(x_hbm, x_steps, 0, forward.W), Rows(gy_hbm, gy_steps, 0, forward.Q)
        dw = Rows(dw_hbm, (0, forward.w_c, forward.w_s), 0, forward.S)
        added = None if accumulate_into == None else replace(dw, hbm=accumulate_into)
        skewed((x, gy, dw, added), forward, skewed_schedule.build(forward, config)[0])
    elif several:
        sums_hbm = nl.ndarray((geometry.C, geometry.Q), dtype=nl.float32, buffer=nl.shared_hbm)
        run_algorithm(algorithm, tensors_of(geometry, x_hbm, gy_hbm, sums_hbm), geometry, options, config)
        meet(sums_hbm)
        fold_images(sums_hbm, forward.N, (forward.C, forward.S, forward.w_c, forward.w_s), dw_hbm, accumulate_into)
    else:
        sums_hbm = db_hbm if in_pass else None
        tensors = tensors_of(geometry, x_hbm, gy_hbm, dw_hbm, residual=accumulate_into, sums=sums_hbm)
        run_algorithm(algorithm, tensors, geometry, options, config)
    if bias_gradient and not in_pass:
        sum_positions(gy_hbm, geometry, forward.N, db_hbm)
    return (dw_hbm, db_hbm) if bias_gradient else dw_hbm


def options_of_rows(forward, added, dw_dtype):
    """Options of the convolution of x with gy: with one image it writes dw, else sums in fp32."""
    several = forward.N > 1
    sum_bytes = SUM_BYTES if several or dw_dtype == nl.float32 else 2
    epilogue = read_epilogue(None, None, None if several else added, "pre_activation", sum_bytes)
    return Options(epilogue=epilogue, state=False, strict_nonfinite=False)


def unsupported_of_rows(algorithm, forward, geometry, options, config):
    """Why an algorithm does not run this gradient; "" if it does."""
    if algorithm == SKEWED:
        return skewed_schedule.build(forward, config)[1]
    return unsupported_reason(algorithm, geometry, options, config)
