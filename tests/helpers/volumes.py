"""Convolutions of volumes by the kernels' three axes: shapes, a kernel that takes any axes, a reference by torch."""

import functools

import numpy as np
import torch
from hypothesis import strategies as st
from tolerances import integer_inputs

import nkiconv
from nkiconv._nki import nki, nl
from nkiconv.kernels._epilogue import read_epilogue
from nkiconv.kernels.conv.call import Extras, operands_of
from nkiconv.kernels.conv.dispatch import convolve
from nkiconv.kernels.conv.geometry import Axis, Geometry, bytes_of

#: (size, taps, stride, dilation, lhs_dilation, before, after) of an axis.
PLAIN = (6, 3, 1, 1, 1, 1, 1)
VOLUMES = {
    "same": (5, 7, 1, PLAIN, (9, 3, 1, 1, 1, 1, 1), (8, 3, 1, 1, 1, 1, 1)),
    "causal": (20, 24, 1, (7, 3, 1, 1, 1, 2, 0), (6, 3, 1, 1, 1, 1, 1), (8, 3, 1, 1, 1, 1, 1)),
    "planes only": (130, 9, 1, (6, 3, 1, 1, 1, 1, 1), (5, 1, 1, 1, 1, 0, 0), (4, 1, 1, 1, 1, 0, 0)),
    "patches": (3, 16, 1, (4, 2, 2, 1, 1, 0, 0), (8, 4, 4, 1, 1, 0, 0), (8, 4, 4, 1, 1, 0, 0)),
    "stem": (3, 8, 1, (6, 3, 1, 1, 1, 1, 1), (12, 7, 2, 1, 1, 3, 3), (11, 7, 2, 1, 1, 3, 3)),
    "wide": (4, 5, 1, PLAIN, (3, 3, 1, 1, 1, 1, 1), (1030, 3, 1, 1, 1, 1, 1)),
    "dilated": (6, 5, 1, (9, 3, 2, 2, 1, 3, 1), (7, 2, 1, 3, 1, 2, 1), (9, 3, 2, 1, 1, 0, 2)),
    "between zeros": (5, 6, 1, (4, 4, 1, 1, 2, 2, 2), (4, 3, 1, 1, 2, 1, 1), (5, 4, 1, 1, 2, 2, 2)),
    "cropped": (4, 3, 1, (8, 3, 1, 1, 1, -2, 1), (7, 3, 1, 1, 1, 1, -2), (9, 3, 1, 1, 1, -1, -1)),
    "far outside": (2, 3, 1, (2, 3, 2, 1, 1, 6, 5), (3, 2, 1, 1, 1, 0, 0), (4, 2, 1, 1, 1, 1, 0)),
    "groups": (12, 8, 4, PLAIN, (5, 2, 1, 1, 1, 1, 0), (6, 3, 1, 1, 1, 1, 1)),
    "depthwise": (7, 7, 7, PLAIN, (5, 3, 1, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1, 1)),
    "several chunks": (257, 130, 1, (3, 2, 1, 1, 1, 1, 0), (4, 2, 1, 1, 1, 0, 1), (5, 2, 1, 1, 1, 1, 0)),
}


def axis_of(size, taps, stride, dilation, lhs_dilation, before, after):
    """The Axis of a row of numbers."""
    window, length = (taps - 1) * dilation + 1, (size - 1) * lhs_dilation + 1 + before + after
    out = (length - window) // stride + 1
    return Axis(size, taps, out, stride, dilation, lhs_dilation, before)


@nki.jit
def volume_conv(
    x_hbm, w_hbm, planes, rows, columns, groups, precision=None, config=None, algorithm="implicit_gemm", last=False
):
    """x [C, D, H, W], or [D, H, W, C] where channels come last, with w [K, C / groups, T, R, S]."""
    axes = (axis_of(*planes), axis_of(*rows), axis_of(*columns))
    D, H, W = (axis.size for axis in axes)
    Z, P, Q = (axis.out for axis in axes)
    C, (K, each, T, R, S) = x_hbm.shape[3] if last else x_hbm.shape[0], w_hbm.shape
    taps = T * R * S
    y_hbm = nl.ndarray((Z, P, Q, K) if last else (K, Z, P, Q), dtype=nl.float32, buffer=nl.shared_hbm)
    y_strides = (1, P * Q * K, Q * K, K) if last else (Z * P * Q, P * Q, Q, 1)
    geometry = Geometry(
        C=C,
        K=K,
        groups=groups,
        planes=axes[0],
        rows=axes[1],
        columns=axes[2],
        x_strides=(1, H * W * C, W * C, C) if last else (D * H * W, H * W, W, 1),
        w_strides=(each * taps, taps, S, 1),
        y_strides=y_strides,
        r_strides=y_strides,
        packed=0,
        itemsize=bytes_of(x_hbm.dtype, precision),
        hbm_itemsize=bytes_of(x_hbm.dtype, None),
        fast=x_hbm.dtype != nl.float32,
        precision=precision,
    )
    extras = Extras(read_epilogue(None, None, None, "pre_activation", 4), (1, 1), False, False, False)
    convolve(algorithm, operands_of(x_hbm, w_hbm, y_hbm, None, None, 1.0, precision), geometry, extras, config)
    return y_hbm


def volume_ref(x, w, axes, groups):
    """The same by torch in fp64, zeros between elements and around them put in beforehand."""
    dense = np.asarray(x, np.float64)
    for index, (size, _, _, _, lhs_dilation, before, after) in enumerate(axes, 1):
        shape = list(dense.shape)
        shape[index] = (size - 1) * lhs_dilation + 1
        apart = np.zeros(shape)
        apart[(slice(None),) * index + (slice(None, None, lhs_dilation),)] = dense
        around = [(0, 0)] * 4
        around[index] = (max(0, before), max(0, after))
        padded = np.pad(apart, around)
        kept = slice(max(0, -before), padded.shape[index] - max(0, -after))
        dense = padded[(slice(None),) * index + (kept,)]
    stride, dilation = tuple(axis[2] for axis in axes), tuple(axis[3] for axis in axes)
    weights = torch.from_numpy(np.asarray(w, np.float64))
    return torch.nn.functional.conv3d(torch.from_numpy(dense.copy())[None], weights, None, stride, 0, dilation, groups)[
        0
    ].numpy()


def check_volume(shape, dtype="bf16", lnc=2, last=False, **options):
    """One volume of integers, exactly."""
    C, K, groups, *axes = shape
    rng = np.random.default_rng(7)
    x = integer_inputs(rng, (C, *(axis[0] for axis in axes)), dtype)
    w = integer_inputs(rng, (K, C // groups, *(axis[1] for axis in axes)), dtype)
    kernel = functools.partial(nkiconv.simulate(volume_conv[lnc]), last=last, **options)
    y = kernel(np.moveaxis(x, 0, -1).copy() if last else x, w, *axes, groups)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 0) if last else y, volume_ref(x, w, axes, groups))


def an_axis(most_lhs=3):
    """Any axis that has an output."""
    sizes = (st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, most_lhs))
    return st.tuples(*sizes, st.integers(-2, 4), st.integers(-2, 4)).filter(lambda axis: axis_of(*axis).out >= 1)


@st.composite
def volumes(draw, groups=(1,), most_lhs=3, rows=None):
    """Any small volume, as in `VOLUMES`; groups: accepted numbers of them; rows: the axes of rows and columns, if only
    planes are to be any."""
    each, count = draw(st.tuples(st.integers(1, 9), st.integers(1, 9))), draw(st.sampled_from(groups))
    axes = rows or (draw(an_axis(most_lhs)), draw(an_axis(most_lhs)))
    return (count * each[0], count * each[1], count, draw(an_axis(most_lhs)), *axes)
