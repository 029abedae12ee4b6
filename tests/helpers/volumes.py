"""Convolutions of volumes: shapes, and their problems."""

from nkiconv.problem import ConvProblem

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


def volume(shape, dtype="bf16", N=1, last=False):
    """The problem of (C, K, groups, planes, rows, columns); last: channels side by side in memory."""
    C, K, groups, *axes = shape
    sizes, taps, stride, rhs_dilation, lhs_dilation, *_ = zip(*axes, strict=True)
    return ConvProblem(
        N=N, C=C, K=K, groups=groups, **dict(zip("DHW", sizes, strict=True)), **dict(zip("TRS", taps, strict=True)),
        stride=stride, rhs_dilation=rhs_dilation, lhs_dilation=lhs_dilation, padding=tuple(axis[5:] for axis in axes),
        dtype=dtype, layout="NDHWC" if last else "NCDHW",
    )  # fmt: skip
