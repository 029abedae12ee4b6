"""Frames in front of x (see `schedules.frames`) in the public kernel: their check, and the final frames of a call.

Final frames are copied from HBM to HBM; the transfers start before the algorithm and overlap it:

    final = the last n planes of frames (if n is more than x has) and x
"""

from ... import rules
from ..._nki import nl
from ...schedules.tiles import dense_strides, require, share
from .._arguments import refuse
from .._dma import copy


def frames_in_front(frames_ref, img_ref, axes):
    """The number of frames of a volume, 0 without any; refused if they do not fit x. axes: its in_perm."""
    if frames_ref == None:
        return 0
    depth = axes[2]
    refuse(
        rules.frames(frames_ref.shape, img_ref.shape, depth, 1, "img_ref"),
        rules.same("initial_frames", "dtype", frames_ref.dtype, "img_ref", img_ref.dtype),
    )
    require(
        axes[3] > depth and axes[4] > depth,
        f"in_perm={axes}: planes of x and initial_frames must lie outside rows and columns; store D before H and W",
    )
    return frames_ref.shape[depth]


def final_shape_of(geometry, img_ref, depth, wanted):
    """Shape of the final frames, stored as x, with planes on axis `depth`; () without any.

    wanted: False, True (the planes that the next call needs, or all if there are fewer), or their number.
    """
    window = (geometry.planes.taps - 1) * geometry.planes.dilation + 1
    planes = img_ref.shape[depth] + (0 if geometry.frames == None else geometry.frames.count)
    count = wanted
    if isinstance(wanted, bool):
        require(not wanted or window > 1, "return_final_frames=True: a window of one plane needs none; leave it out")
        count = min(window - 1, planes) if wanted else 0
    refuse(rules.frame_count(count, planes))
    found = ()
    for index in range(len(img_ref.shape) if count > 0 else 0):
        found = found + (count if index == depth else img_ref.shape[index],)
    return found


def store_final_frames(x_hbm, frames_hbm, final_hbm, depth):
    """Write final_hbm, shaped as x except for its planes on axis `depth`; each core its share."""
    count, size = final_hbm.shape[depth], x_hbm.shape[depth]
    of_x = min(count, size)
    copy_planes(final_hbm, count - of_x, x_hbm, size - of_x, of_x, depth)
    if of_x < count:
        held = count - of_x
        copy_planes(final_hbm, 0, frames_hbm, frames_hbm.shape[depth] - held, held, depth)


def copy_planes(final_hbm, to, source_hbm, first, count, depth):
    """Copy this core's share of `count` planes, from plane `first` of a tensor to plane `to` of another: a share of
    their runs, or of the run if there is only one."""
    plane, outer = dense_strides(source_hbm.shape)[depth], 1
    for index in range(depth):
        outer = outer * source_hbm.shape[index]
    from_apart, to_apart = source_hbm.shape[depth] * plane, final_hbm.shape[depth] * plane
    cores, core = nl.num_programs(), nl.program_id(0)
    runs, inside = share(outer, cores, core), (0, count * plane)
    if outer == 1:
        runs, inside = (0, 1), share(count * plane, cores, core)
    if runs[1] > 0 and inside[1] > 0:
        to_pattern, from_pattern = [[to_apart, runs[1]], [1, inside[1]]], [[from_apart, runs[1]], [1, inside[1]]]
        dst = final_hbm.ap(pattern=to_pattern, offset=runs[0] * to_apart + to * plane + inside[0])
        copy(dst, source_hbm.ap(pattern=from_pattern, offset=runs[0] * from_apart + first * plane + inside[0]))
