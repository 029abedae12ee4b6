"""Which algorithm a kernel takes that is called without one: a rule of shapes.

Every call on the host chooses by cost models, and `nkiconv.plan` by the timeline: docs/algorithms.md compares them.
"""

#: Channels, of x and of y, that fill too little of the array one tap at a time.
RULE_INPUTS, RULE_OUTPUTS = 64, 44
#: Input channels of fp8 up to which two taps a matmul do not make up for that.
RULE_INPUTS_FP8 = 16
#: Outputs of a channel up to which filters are what takes time; of groups and of depthwise filters, up to which one tap
#: at a time does.
RULE_PIXELS, RULE_PIXELS_GROUPS, RULE_PIXELS_DEPTHWISE = 215, 500, 1900


def wanted_algorithms(geometry):
    """Names in the order in which they are asked whether they run this; `taps`, which runs most, comes behind all."""
    pixels = geometry.N * geometry.rows.out * geometry.columns.out
    contraction = geometry.C * geometry.rows.taps * geometry.columns.taps
    if geometry.precision == "fp16x3":
        return ["taps"]
    if geometry.hbm_itemsize == 1 and geometry.groups == 1 and geometry.C > RULE_INPUTS_FP8:
        return ["taps"]
    if geometry.groups > 1:
        return wanted_in_groups(geometry, pixels)
    if geometry.x_c == 1 and geometry.C > 1 and geometry.rows.size * geometry.columns.size > 1:
        return [] if geometry.K < 17 and geometry.C < RULE_INPUTS else ["swapped"]
    if geometry.C <= RULE_INPUTS:
        return wanted_of_few_inputs(geometry, pixels, contraction)
    if geometry.K <= RULE_OUTPUTS:
        if contraction < 5 * geometry.C:
            if geometry.C < 128:
                return ["stacked"]
            return [] if geometry.columns.stride > 1 and pixels > RULE_PIXELS else ["narrow"]
        return ["narrow"]
    return []


def wanted_of_few_inputs(geometry, pixels, contraction):
    """The same of few input channels."""
    if geometry.columns.out > 650:
        return []
    if pixels < 3 * RULE_PIXELS and (geometry.C * geometry.K > 34_000 or (geometry.C > 16 and geometry.K > 150)):
        return []
    return [] if contraction > 1500 and geometry.K > 150 else ["stacked"]


def wanted_in_groups(geometry, pixels):
    """The same where channels have groups."""
    if geometry.groups == geometry.C and geometry.groups == geometry.K:
        if pixels < RULE_PIXELS_DEPTHWISE:
            return []
        return ["bands", "grouped"] if geometry.rows.taps > 4 and geometry.rows.stride == 1 else ["grouped"]
    return [] if pixels < RULE_PIXELS_GROUPS else ["grouped"]
