"""Which algorithm a kernel takes that is called without one: a rule of shapes. docs/algorithms.md compares it."""

from ..._nki import nl

#: Channels, of x and of y, that fill too little of the array one tap at a time; so few that pairs of fp8 and NHWC
#: without copies do not pay; those from which on NHWC is taken a tap at a time.
RULE_INPUTS, RULE_OUTPUTS, RULE_FEW, RULE_SIDE_BY_SIDE = 64, 44, 16, 256
#: Outputs of a channel up to which filters are what takes time; of groups and of depthwise filters, and of NHWC taps of
#: these, up to which one tap at a time does; outputs from which few channels of a transposed one take several at once.
RULE_PIXELS, RULE_PIXELS_GROUPS, RULE_PIXELS_DEPTHWISE, RULE_TAPS, RULE_PIXELS_MANY = 215, 500, 1900, 9, 50_000
#: Taps of a depthwise filter from which on outputs share stationaries however few they are.
RULE_TAPS_MANY = 64
#: Taps of a depthwise filter from which on blocks of NHWC pay that Toeplitz matrices multiply.
RULE_TAPS_BLOCKS = 25


def wanted_algorithms(geometry):
    """Names in the order in which they are asked whether they run this; `implicit_gemm` comes last."""
    pixels, last = geometry.planes.out * geometry.rows.out * geometry.columns.out, geometry.x_strides[0] == 1
    contraction = geometry.C * geometry.rows.taps * geometry.columns.taps
    apart = geometry.planes.lhs_dilation * geometry.rows.lhs_dilation * geometry.columns.lhs_dilation > 1
    apart = apart or (geometry.C <= RULE_INPUTS and (contraction == geometry.C or pixels < RULE_PIXELS))
    if (geometry.flipped and apart) or geometry.precision in ("fp16x3", "winograd"):
        first = ["activation_stationary"] if last and geometry.C > RULE_FEW else []
        return ([] if geometry.K <= RULE_FEW and pixels > RULE_PIXELS_MANY else first) + ["weight_stationary"]
    if geometry.hbm_itemsize == 1 and geometry.groups == 1 and geometry.C > RULE_FEW:
        return ["implicit_gemm"] if geometry.K > RULE_FEW else ["weight_stationary"]
    if geometry.groups > 1:
        return wanted_in_groups(geometry, pixels)
    if last and geometry.C > RULE_FEW and geometry.rows.size * geometry.columns.size > 1:
        return wanted_side_by_side(geometry)
    if geometry.C <= RULE_INPUTS:
        return wanted_of_few_inputs(geometry, pixels, contraction)
    few_taps, whole = contraction < 5 * geometry.C, geometry.C >= nl.tile_size.pmax
    if geometry.K > RULE_OUTPUTS or (few_taps and whole and geometry.columns.stride > 1 and pixels > RULE_PIXELS):
        return []
    return ["stacked"] if few_taps and not whole else ["weight_stationary"]


def wanted_side_by_side(geometry):
    """The same of NHWC."""
    if geometry.K <= RULE_FEW:
        return [] if geometry.C < RULE_INPUTS else ["weight_stationary"]
    whole = geometry.C >= RULE_SIDE_BY_SIDE and geometry.C % nl.tile_size.pmax == 0
    return [] if whole and geometry.rows.taps * geometry.columns.taps > 3 else ["activation_stationary"]


def wanted_of_few_inputs(geometry, pixels, contraction):
    """The same of few input channels; where they are few for several planes of taps too."""
    if geometry.planes.taps > 1 and geometry.C * geometry.planes.taps <= RULE_INPUTS:
        return ["stacked"]
    few = pixels < 3 * RULE_PIXELS and (geometry.C * geometry.K > 34_000 or (geometry.C > 16 and geometry.K > 150))
    return [] if few or geometry.columns.out > 650 or (contraction > 1500 and geometry.K > 150) else ["stacked"]


def wanted_in_groups(geometry, pixels):
    """The same where channels have groups."""
    taps, last = geometry.rows.taps * geometry.columns.taps, geometry.x_strides[0] == 1
    few = last and taps <= RULE_TAPS and geometry.planes.taps == 1
    if geometry.groups == geometry.C and geometry.groups == geometry.K:
        volumes, tall = geometry.planes.taps > 1, geometry.rows.taps > 4 and geometry.rows.stride == 1
        if few or (not volumes and pixels < RULE_PIXELS_DEPTHWISE and taps <= RULE_TAPS_MANY):
            return []
        if last and tall and taps >= RULE_TAPS_BLOCKS and geometry.C >= RULE_INPUTS and not volumes:
            return ["activation_stationary", "stacked", "weight_stationary"]
        return ["stacked"] * (tall or (volumes and geometry.rows.taps > 1)) + ["weight_stationary"]
    few = few and geometry.groups == geometry.C
    return [] if few or pixels < RULE_PIXELS_GROUPS else ["weight_stationary"]
