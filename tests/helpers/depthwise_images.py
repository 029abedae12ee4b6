"""Depthwise problems of images that both Toeplitz algorithms are held against."""

from nkiconv.problem import ConvProblem


def depthwise(C, **fields):
    """A problem of C channels with a filter each."""
    return ConvProblem(C=C, K=C, groups=C, **fields)


DEPTHWISE_IMAGES = {
    "same": depthwise(6, N=2, H=14, W=13, R=7, S=7, padding=((3, 3), (3, 3))),
    "stride": depthwise(150, N=3, H=9, W=8, R=3, S=2, stride=(2, 1)),
    "both strides": depthwise(5, N=2, H=20, W=23, R=4, S=5, stride=(3, 4), padding=((1, 3), (2, 0))),
    "dilation": depthwise(7, N=1, H=19, W=38, R=2, S=4, rhs_dilation=(3, 2), padding=((1, 2), (-1, 3))),
    "cropped": depthwise(5, N=2, H=9, W=9, R=3, S=3, padding=((-1, -2), (-2, 1))),
    "padded beyond the filter": depthwise(3, N=1, H=4, W=5, R=2, S=2, padding=((9, 8), (7, 6))),
    "one tap": depthwise(9, N=2, H=6, W=5, R=1, S=1),
    "two channels": depthwise(2, N=1, H=12, W=12, R=3, S=3, padding=((1, 1), (1, 1))),
}
