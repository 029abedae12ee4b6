"""A convolution's options besides its geometry: the prologue of x, the epilogue of its sums, and strict_nonfinite.

y = act(norm(conv(x') + bias + residual))    residual "pre_activation"
y = act(norm(conv(x') + bias)) + residual    residual "post_activation"
y = act(conv(x') + bias) * residual          residual "product", a factor, only of depthwise rows
x' = x_act(x * x_scale + x_shift), each pixel x_upsample times along rows and columns, zeros as padding

norm is the identity, or one over the output channels of each pixel (`pixel_norms`)
"""

from __future__ import annotations

from dataclasses import dataclass

from .geometry import Geometry
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, QUADRANT, div_ceil


@dataclass(frozen=True)
class Norm:
    """A norm over the output channels of a pixel: a name of `pixel_norms.NORMS`, and its operands [K], if any."""

    kind: str
    weight: bool
    bias: bool
    #: whether its input is returned too
    kept: bool = False


#: Triples of statistics of a partition that are kept before bn_aggr merges them, in 13 cycles each: with so many it
#: leaves half a microsecond after the last values, and Vector does 6 % more than bn_stats alone.
TRIPLES = 32
#: Bytes a partition of these, for an M tile and image; most M tiles whose statistics are moved to other partitions at
#: once; banks of fp32 results before rounding.
STATISTICS_BYTES, MOVING_MAX, ROUNDED_BANKS = 12 * TRIPLES, 32, 2
#: Algorithms that return statistics.
TAKE_STATISTICS = ("implicit_gemm", "weight_stationary", "stacked")


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of sums, without data: all of it is known while the kernel is built."""

    activation: str
    #: whether there is a bias [C]
    bias: bool
    #: "" without a residual, else one of `rules.RESIDUAL_POSITIONS` or "product"
    residual: str
    #: bytes of an element of y
    y_itemsize: int
    norm: Norm | None = None
    #: whether silu(z) is z * sigmoid(z), beside other sigmoids: Scalar then never loads another table of functions
    by_sigmoid: bool = False


@dataclass(frozen=True)
class Prologue:
    """The prologue of x, without data: x * scale + shift, and an activation of it."""

    #: "" without one, "channel" for [C], "image" for [N, C]
    scale: str = ""
    shift: str = ""
    activation: str = ""
    #: neighbouring rows, and columns, that each row and column of x becomes
    upsample: int = 1

    @property
    def asked(self) -> bool:
        """Whether there is a prologue."""
        return self != NO_PROLOGUE

    @property
    def by_image(self) -> bool:
        """Whether its operands differ by image."""
        return "image" in (self.scale, self.shift)


NO_PROLOGUE = Prologue()
#: Bytes of a prologue's operand on a partition; most bytes of operands that stay in SBUF for the next loads.
NUMBER_BYTES, NUMBERS_BYTES = 4, 4096
#: Arguments of a prologue, as refusals name them.
PROLOGUE_ARGUMENTS = "x_scale, x_shift, x_activation"


@dataclass(frozen=True)
class Options:
    """All options besides the geometry that change an algorithm's instructions."""

    epilogue: Epilogue
    residual: bool
    #: whether NaN and Inf must stay in their group and window
    strict_nonfinite: bool
    prologue: Prologue = NO_PROLOGUE
    #: whether statistics of y by image and channel are returned
    statistics: bool = False

    @property
    def of_channels(self) -> bool:
        """Whether partitions must hold channels of one plane: a prologue and statistics are by channel."""
        return self.prologue.asked or self.statistics


def prologue_bytes(prologue: Prologue, geometry: Geometry, planes: int) -> int:
    """Upper bound of bytes a partition of a prologue's operands in SBUF, for loads of so many planes of x."""
    if not prologue.asked:
        return 0
    images = div_ceil(planes - 1, geometry.image_planes) + 1 if prologue.by_image else 1
    return NUMBERS_BYTES + NUMBER_BYTES * (2 * max(images, QUADRANT) + P_MAX)


def adds_last(epilogue: Epilogue) -> bool:
    """Whether the residual comes after an activation or a norm, as a summand or a factor."""
    if epilogue.residual == "product":
        return True
    return epilogue.residual == "post_activation" and (epilogue.activation != "" or epilogue.norm is not None)


def adds_bias_alone(epilogue: Epilogue) -> bool:
    """Whether y is the sums, or the sums and a bias: statistics of sums are then those of y but for the bias."""
    return epilogue.activation == "" and epilogue.residual == ""


def either_reads(epilogue: Epilogue, strict_nonfinite: bool) -> bool:
    """Whether Vector and Scalar can both evacuate sums: an activation is Scalar's, but relu is a maximum too.

    The result of Vector's maximum for NaN is not documented, so strict_nonfinite leaves relu to Scalar.
    """
    as_maximum = epilogue.activation == "relu" and epilogue.residual == "" and not strict_nonfinite
    return epilogue.activation == "" or as_maximum


def prologue_unsupported(options: Options, algorithm: str, geometry: Geometry) -> str:
    """Why an algorithm takes no prologue, with any settings; "" if it does."""
    if not options.prologue.asked or algorithm == "implicit_gemm":
        return ""
    if options.prologue.upsample > 1:
        return f"x_upsample={options.prologue.upsample}: {algorithm} takes 1; use implicit_gemm"
    if geometry.itemsize != geometry.hbm_itemsize:
        return f"{PROLOGUE_ARGUMENTS}, precision={geometry.precision}: {algorithm} does not cast x; use implicit_gemm"
    return ""


def no_prologue(options: Options, what: str) -> str:
    """Why an algorithm (`what`, with a reason) takes no prologue; "" if none is asked for."""
    return f"{PROLOGUE_ARGUMENTS}: {what}; use implicit_gemm" if options.prologue.asked else ""


def statistics_unsupported(options: Options, algorithm: str) -> str:
    """Why an algorithm does not return statistics of y; "" if it does, or none are asked for."""
    return "" if algorithm in TAKE_STATISTICS else no_statistics(options, algorithm)


def no_statistics(options: Options, what: str) -> str:
    """Why an algorithm (`what`) does not return statistics of y; "" if none are asked for."""
    if not options.statistics:
        return ""
    return (
        f"return_stats='channel': {what} has other outputs than channels on the partitions; use implicit_gemm, or "
        f"channel_stats of y"
    )


def packed_statistics_bytes(options: Options, rows: int, images: int, m_tiles: int = 1) -> int:
    """Bytes a partition of statistics of so many images, with so many rows of y in the columns: triples of all rows
    and, at the end of an image, of some of them twice; those that are moved; fp32 results."""
    if not options.statistics:
        return 0
    triples = (3 if rows > 1 else 1) * (images + 1) * m_tiles * STATISTICS_BYTES
    return triples + 12 * (rows + 2) * (MOVING_MAX + m_tiles) + ROUNDED_BANKS * BANK_BYTES


def taken_unsupported(
    geometry: Geometry, options: Options, algorithm: str, dilated: bool, what: str, apart: bool = False
) -> str:
    """Why an algorithm does not run lhs_dilation or strict_nonfinite; "" if it does.

    dilated: whether it takes lhs_dilation; what: its operands that it multiplies by zero, unless `apart`.
    """
    lhs_dilation = (geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
    if not dilated and lhs_dilation != (1, 1):
        return f"lhs_dilation={lhs_dilation}: {algorithm} takes (1, 1); use implicit_gemm"
    if options.strict_nonfinite and not apart:
        return f"strict_nonfinite=True: {algorithm} multiplies {what} by zero; use implicit_gemm"
    return ""


#: Algorithms that take a norm of y.
TAKE_NORM = ("activation_stationary", "implicit_gemm")


def norm_bytes(epilogue: Epilogue, K: int, columns: int = BANK_COLUMNS) -> int:
    """Bytes a partition of a norm: weight and bias, and sums of a bank of so many columns at each of its steps."""
    norm = epilogue.norm
    return 0 if norm is None else 4 * (K * (norm.weight + norm.bias) + 3 * columns)


def keeps_sums(epilogue: Epilogue) -> bool:
    """Whether a norm's input is returned too."""
    return epilogue.norm is not None and epilogue.norm.kept


def norm_unsupported(options: Options, algorithm: str) -> str:
    """Why an algorithm does not normalize sums before it stores them; "" if it does, or no norm is asked for."""
    norm = options.epilogue.norm
    if norm is not None and options.statistics:
        return f"y_norm={norm.kind}, return_stats='channel': statistics of a normalized y are channel_stats of it"
    if norm is None or algorithm in TAKE_NORM:
        return ""
    return f"y_norm={norm.kind}: {algorithm} has some channels of a pixel at a time; use {' or '.join(TAKE_NORM)}"
