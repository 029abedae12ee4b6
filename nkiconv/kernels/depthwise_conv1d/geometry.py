"""Checks of the public kernel's arguments, the geometry of algorithms, N, C, W, S, Q, with copies of channels-last
rows; the parts of a core. Only the public kernel has nki-library's argument names.
"""

from dataclasses import replace

from ... import rules
from ..._nki import nl
from ...axis import Axis
from ...schedules.depthwise import RowGeometry
from ...schedules.options import PROLOGUE_ARGUMENTS
from ...schedules.row_copies import copies_of, rows_of
from ...schedules.tiles import dense_strides, picked, require, result_strides, size_of
from .._arguments import IDENTITY, check_tensors, refuse
from .._engines import itemsize_of
from .._prologue import PrologueOperands, read_prologue
from ..conv.relayout import copy_transposed, meet, rows_copy


def with_prologue(geometry, img_ref, x_scale, x_shift, x_activation):
    """(geometry with the prologue of x, PrologueOperands), or (the same geometry, None) without a prologue."""
    prologue = read_prologue((x_scale, x_shift, x_activation), 1, img_ref, geometry.N, geometry.C)
    if not prologue.asked:
        return geometry, None
    refuse(rules.chunks_plain(None if geometry.chunks == "x" else geometry.chunks, PROLOGUE_ARGUMENTS))
    return replace(geometry, prologue=prologue), PrologueOperands(prologue, x_scale, x_shift, image_planes=1)


def with_copies(algorithm, geometry, options, x, y, residual):
    """(RowGeometry, RowCopies, x, y, residual) for an algorithm: copies in HBM of x and the residual, and rows for y,
    or the tensors themselves."""
    copies = copies_of(algorithm, geometry, options)
    if copies.x:
        x = rows_copy([x] * len(copies.x), copies.x)
    if copies.residual:
        residual = rows_copy([residual] * len(copies.residual), copies.residual)
    if copies.y:
        y = nl.ndarray((size_of(y.shape),), dtype=y.dtype, buffer=nl.shared_hbm)
    return rows_of(geometry, copies), copies, x, y, residual


def copy_back(y_hbm, rows_hbm, parts):
    """Write y from an algorithm's rows, if it wrote rows."""
    if parts:
        meet(rows_hbm)
    for part in parts:
        copy_transposed(y_hbm, rows_hbm, part)


def read_geometry(img_ref, filter_ref, places, group_counts, perms, flipped=False, chunks=None):
    """Check every argument of the public kernel and return (RowGeometry, shape of y as stored).

    places: (padding, stride, rhs_dilation, lhs_dilation); group_counts: (feature_group_count, batch_group_count);
    perms: (in_perm, kern_perm, out_perm); flipped, chunks: as in the public kernel.
    """
    padding, stride, rhs_dilation, lhs_dilation = places
    refuse(rules.rank("img_ref", img_ref.shape, "N, C, 1, W", " before in_perm"))
    refuse(rules.rank("filter_ref", filter_ref.shape, "C, 1, 1, S", " before kern_perm"))
    check_tensors(img_ref, filter_ref, rules.KERNEL_DTYPES, perms, 4)
    numbers = {"stride": stride, "rhs_dilation": rhs_dilation, "lhs_dilation": lhs_dilation}
    refuse(rules.padding(padding, 2, alone=False))
    refuse(*(rules.places(name, value, 2, alone=False) for name, value in numbers.items()))
    row = f"padding[0]={padding[0]}: H is 1, so H takes no padding; use (0, 0), or conv2d for images"
    require(padding[0] == (0, 0), row)
    refuse(*(rules.one_row(**{name: value}) for name, value in numbers.items()))
    in_axes, kern_axes, out_axes = (IDENTITY if perm is None else perm for perm in perms)

    x_shape, w_shape = img_ref.shape, filter_ref.shape
    N, channels, H, W = picked(x_shape, in_axes)
    refuse(rules.chunks(chunks, channels))
    order = "x" if chunks == None else chunks
    C = channels // len(order)
    require(H == 1, f"img_ref H={H}: must be 1 ([N, C, 1, W] after in_perm); use conv2d for images")
    w_extents = picked(w_shape, kern_axes)
    S = w_extents[3]
    refuse(rules.shape("filter_ref", w_extents, (C, 1, 1, S), "after kern_perm [C, 1, 1, S]"))
    remedy = "this kernel is depthwise, 1 is read as C"
    refuse(rules.accepted("batch_group_count", group_counts[1], (1,), "split the batch before the call"))
    refuse(rules.accepted("feature_group_count", group_counts[0], (1, C), remedy))

    pad_left, pad_right = padding[1]
    axis = Axis(W, S, stride[1], pad_left, pad_right, rhs_dilation[1], lhs_dilation[1])
    refuse(rules.output(axis, "QWS"))
    Q = axis.out
    require(
        "C" not in order or Q == W,
        f"chunks={chunks}, W={W}, Q={Q}: a factor of y has its extents; pad so that Q is W, with stride 1",
    )

    y_shape = picked((N, C, 1, Q), out_axes)
    x_n, x_c, _, x_w = picked(dense_strides(x_shape), in_axes)
    w_c, _, _, w_s = picked(dense_strides(w_shape), kern_axes)
    y_n, y_c, _, y_q = result_strides(y_shape, out_axes)
    # a single element is in a run with its neighbours in other axes
    x_w, w_s, y_q = (step if count > 1 else 1 for step, count in ((x_w, W), (w_s, S), (y_q, Q)))
    geometry = RowGeometry(
        *(N, C, W, S, Q),
        *(stride[1], rhs_dilation[1] if S > 1 else 1, lhs_dilation[1], pad_left, pad_right),
        *(x_n, x_c, x_w, w_c, w_s, y_n, y_c, y_q),
        itemsize=itemsize_of(img_ref.dtype),
        flipped=flipped and S > 1,
        chunks=order,
    )
    return geometry, y_shape


def parts_of_core():
    """The PARTS of the work of this core, in order."""
    return (0, 1) if nl.num_programs() == 1 else (nl.program_id(0),)
