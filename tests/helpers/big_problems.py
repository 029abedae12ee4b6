"""Problems whose kernels have very many tiles, phases or taps: estimates once took seconds to minutes for them."""

from collections.abc import Callable

from nkiconv import ConvProblem


def transposed(size: int, taps: int, stride: int, channels: int = 8, groups: int = 1, dilation: int = 1) -> ConvProblem:
    """A transposed convolution of square images without padding."""
    return ConvProblem.transpose(
        N=1, C=channels, K=channels, H=size, W=size, groups=groups, stride=(stride, stride), padding=((0, 0),) * 2,
        output_padding=(0, 0), dilation=(dilation, dilation), taps=(taps, taps),
    )  # fmt: skip


def patches(size: int, taps: int) -> ConvProblem:
    """The gradient of x of patches without overlap."""
    whole = ConvProblem(N=1, C=3, K=768, H=size, W=size, R=taps, S=taps, stride=(taps, taps))
    return whole.toward("dgrad")


def rows(**fields: int) -> ConvProblem:
    """Depthwise rows."""
    return ConvProblem(K=fields["C"], groups=fields["C"], **fields)


def sparse_row(size: int, dilation: int) -> ConvProblem:
    """A transposed convolution of a row whose 3 taps are far from each other."""
    return ConvProblem(
        N=1, C=8, K=8, W=size, S=3, padding=((0, 0), (2 * dilation,) * 2), rhs_dilation=(1, dilation), transposed=True
    )


_SAME = ((1, 1), (1, 1))
_DIGITS = {"N": 65_536, "C": 1, "H": 28, "W": 28, "R": 3, "S": 3}
_VOLUME = {"N": 25, "C": 1, "D": 100, "H": 375, "W": 128, "T": 3, "R": 3, "S": 3, "padding": ((1, 1), *_SAME)}
_SATELLITE = {"N": 1, "C": 3, "K": 16, "H": 10_980, "W": 10_980, "R": 3, "S": 3, "padding": _SAME}
_SPARSE = {"N": 1, "C": 8, "K": 8, "H": 1003, "W": 1003, "R": 3, "S": 3, "stride": (200, 200)}
#: By name; made when asked for.
BIG: dict[str, Callable[[], ConvProblem]] = {
    "65,536 digits": lambda: ConvProblem(K=32, **_DIGITS),
    "65,536 digits, one filter": lambda: ConvProblem(K=1, **_DIGITS),
    "65,536 digits, dgrad": lambda: ConvProblem(K=32, **_DIGITS).toward("dgrad"),
    "65,536 digits, wgrad": lambda: ConvProblem(K=32, **_DIGITS).toward("wgrad"),
    "25 volumes": lambda: ConvProblem(K=16, **_VOLUME),
    "25 volumes, one filter": lambda: ConvProblem(K=1, **_VOLUME),
    "25 volumes, wgrad": lambda: ConvProblem(K=16, **_VOLUME).toward("wgrad"),
    "9.6 M samples, 255 taps": lambda: ConvProblem(N=1, C=1, K=16, W=9_600_000, S=255),
    "9.6 M samples, 255 taps, rows": lambda: rows(N=1, C=2, W=9_600_000, S=255),
    "9.6 M samples, 255 taps, rows, wgrad": lambda: rows(N=1, C=1, W=9_600_000, S=255).toward("wgrad"),
    "1,024 rows of 128 taps, NHWC, dgrad": lambda: ConvProblem(
        N=1, C=1024, K=1024, W=1024, S=128, groups=1024, padding=((0, 0), (0, 0)), layout="NHWC"
    ).toward("dgrad"),
    "10,980 x 10,980": lambda: ConvProblem(**_SATELLITE),
    "10,980 x 10,980, wgrad": lambda: ConvProblem(**_SATELLITE).toward("wgrad"),
    "stride 200": lambda: ConvProblem(**_SPARSE),
    "stride 200, dgrad": lambda: ConvProblem(**_SPARSE).toward("dgrad"),
    "stride 200, 200 x 200 taps, transposed": lambda: transposed(5, 200, 200),
    "stride 2**31 - 1, dgrad": lambda: ConvProblem(**{**_SPARSE, "stride": (2**31 - 1, 1)}).toward("dgrad"),
    "dilation of 1,000, transposed": lambda: transposed(64, 3, 1, dilation=1000),
    "dilation of 1,000, transposed, stride 2": lambda: transposed(64, 3, 2, dilation=1000),
    "dilation of 2**16, transposed rows": lambda: sparse_row(9, 2**16),
    "dilation of 2**20, transposed rows": lambda: sparse_row(100_000, 2**20),
    "stride of 2**20, volumes": lambda: ConvProblem(N=1, C=8, D=4, H=9, W=9, T=2, R=3, S=3, stride=(2**20,) * 3),
    "patches of 16, dgrad": lambda: patches(224, 16),
    "patches of 32, dgrad": lambda: patches(224, 32),
    "patches of 64, dgrad": lambda: patches(256, 64),
    "FCN-32s": lambda: transposed(16, 64, 32, 21),
    "FCN-32s, 21 groups": lambda: transposed(16, 64, 32, 21, 21),
    "20,000 x 20,000 rows": lambda: rows(N=20_000, C=20_000, W=16, S=4),
    "20,000 x 20,000 rows, wgrad": lambda: rows(N=20_000, C=20_000, W=16, S=4).toward("wgrad"),
    "2**30 samples": lambda: rows(N=1, C=1, W=2**30, S=9),
    "2**30 samples, wgrad": lambda: rows(N=1, C=1, W=2**30, S=9).toward("wgrad"),
    "5,000 phases": lambda: ConvProblem(N=1, C=2, W=3, S=3, padding=((0, 0), (2, 2)), lhs_dilation=(1, 5000)),
    "16,384 channels": lambda: ConvProblem(N=1, C=16_384, H=8, W=8, R=3, S=3),
    "32,768 groups, wgrad": lambda: ConvProblem(N=1, C=65_536, H=8, W=8, R=3, S=3, groups=32_768).toward("wgrad"),
    "7 x 304 taps far apart": lambda: ConvProblem(N=33, C=16, K=24, H=79, W=2229, R=7, S=304, rhs_dilation=(2, 5)),
    "10,000 x 10,000, 255 x 255 taps": lambda: ConvProblem(N=1, C=4, K=4, H=10_000, W=10_000, R=255, S=255),
    "1,048,576 filters": lambda: ConvProblem(N=1, C=1, K=1 << 20, H=8, W=8, S=1),
}  # fmt: skip
