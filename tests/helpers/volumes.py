"""Convolutions of volumes: shapes, and a check of the public kernel against torch."""

import numpy as np
import torch
from tolerances import integer_inputs

import nkiconv
from nkiconv._nki import nl

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


def volume_ref(x, w, axes, groups):
    """[N, C, D, H, W] by torch in fp64, zeros between elements and around them put in beforehand."""
    dense = np.asarray(x, np.float64)
    for index, (size, _, _, _, lhs_dilation, before, after) in enumerate(axes, 2):
        shape = list(dense.shape)
        shape[index] = (size - 1) * lhs_dilation + 1
        apart = np.zeros(shape)
        apart[(slice(None),) * index + (slice(None, None, lhs_dilation),)] = dense
        around = [(0, 0)] * 5
        around[index] = (max(0, before), max(0, after))
        padded = np.pad(apart, around)
        kept = slice(max(0, -before), padded.shape[index] - max(0, -after))
        dense = padded[(slice(None),) * index + (kept,)]
    stride, dilation = tuple(axis[2] for axis in axes), tuple(axis[3] for axis in axes)
    weights = torch.from_numpy(np.asarray(w, np.float64))
    return torch.nn.functional.conv3d(
        torch.from_numpy(dense.copy()), weights, None, stride, 0, dilation, groups
    ).numpy()


def check_volume(shape, dtype="bf16", lnc=2, last=False, N=1, added=False, **options):
    """Volumes of integers, exactly; last: channels side by side in memory; added: with a bias and a residual."""
    C, K, groups, *axes = shape
    rng = np.random.default_rng(7)
    x = integer_inputs(rng, (N, C, *(axis[0] for axis in axes)), dtype)
    w = integer_inputs(rng, (K, C // groups, *(axis[1] for axis in axes)), dtype)
    names = {"stride": 2, "rhs_dilation": 3, "lhs_dilation": 4}
    places = {name: tuple(axis[index] for axis in axes) for name, index in names.items()}
    places["padding"] = tuple(axis[5:] for axis in axes)
    if last:
        options |= {"in_perm": (0, 4, 1, 2, 3), "out_perm": (0, 2, 3, 4, 1)}
    if options.get("config") is not None:
        options = {"algorithm": "implicit_gemm"} | options
    kernel = nkiconv.simulate(nkiconv.conv3d_implicit_gemm[lnc])
    stored = np.moveaxis(x, 1, -1).copy() if last else x
    expected = volume_ref(x, w, axes, groups)
    if added:
        bias, residual = (rng.integers(-3, 4, shape).astype(np.float32) for shape in (K, expected.shape))
        expected = expected + bias[:, None, None, None] + 2 * residual
        options |= {"bias": bias, "residual": np.moveaxis(residual, 1, -1).copy() if last else residual, "beta": 2.0}
    y = kernel(stored, w, **places, feature_group_count=groups, out_dtype=nl.float32, **options)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if last else y, expected)
