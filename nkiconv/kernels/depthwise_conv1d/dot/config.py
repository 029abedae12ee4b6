"""Settings of `dot`: what each says and may be, and what a kernel takes that is called without.

Compile-time code.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._axis import greatest_common_divisor
from ..._settings import FLAG, setting, settings_refusal
from ..._tiles import PARTS, div_ceil

#: Slots of a stationary that can be asked for, and most slots of a chunk: what does not fit SBUF is made smaller.
DOT_BLOCKS = (1, 2, 4, 8, 16)
SLOTS_MOST = 128
#: Most lags of a block of wide.py: a bank holds 128 slots of x of 4 channels, 31 of which are beyond the lags.
LAGS_MOST = 97
#: Every setting, and what it may be.
DOT_SETTINGS = (
    ("wide", FLAG),
    ("slots", (1, SLOTS_MOST)),
    ("lags", (1, LAGS_MOST)),
    ("block", (1, 16)),
    ("warmup", (0, 128)),
)
#: Most columns with masks; and lags beyond which wide.py is faster, more for few slots, as its blocks of lags are
#: large, and where a core has less than a tile and waits for HBM.
COLUMNS_MIN = 64
WIDE_FROM, WIDE_FROM_SLOTS = 10, 32
WIDE_FROM_FEW, WIDE_FROM_FEW_SLOTS = 12, 320

#: Matmuls on zeros without a config, and with masks rows from which they pay.
DOT_WARMUP, DOT_MANY_ROWS = 24, 1024


@dataclass(frozen=True)
class DotConfig(nl.NKIObject):
    """Every setting."""

    #: whether lags are put in step by a way through HBM (wide.py), or by masks
    wide: bool
    #: slots of a chunk of taps at most, 1 to 128; fewer where they do not fit, and whole blocks of 32 with wide
    slots: int
    #: with wide, lags of a block at most, 1 to 97; fewer where they do not fit
    lags: int
    #: with masks, slots of a stationary: 1, 2, 4, 8 or 16; fewer for short filters
    block: int
    #: matmuls on zeros while the first rows are on their way, 0 to 128
    warmup: int


def read_dot(geometry, config):
    """The DotConfig of (name, value) pairs, and defaults for what they leave open."""
    wide = setting(config, "wide", is_wide(geometry))
    return DotConfig(
        wide=wide,
        slots=setting(config, "slots", 64 if wide else 32),
        lags=setting(config, "lags", LAGS_MOST),
        block=setting(config, "block", 8),
        warmup=setting(config, "warmup", DOT_WARMUP if wide or geometry.N * geometry.C >= DOT_MANY_ROWS else 0),
    )


def is_wide(geometry):
    """Whether there are so many lags that wide.py is faster, or more columns than there may be without it."""
    common = greatest_common_divisor(geometry.stride, geometry.dilation)
    slots = div_ceil(div_ceil(geometry.S, geometry.stride // common), nl.tile_size.pmax)
    lags = div_ceil(geometry.Q, geometry.dilation // common)
    fewest = WIDE_FROM + WIDE_FROM_SLOTS // slots
    if geometry.N * geometry.C < PARTS * nl.tile_size.pmax:
        fewest = WIDE_FROM_FEW + WIDE_FROM_FEW_SLOTS // slots
    return geometry.Q > COLUMNS_MIN or lags > fewest


def dot_config_refusal(config):
    """What is wrong with the names and values of a config; "" if nothing is."""
    reason = settings_refusal(config, DOT_SETTINGS, "dot")
    if reason != "":
        return reason
    block = setting(config, "block", 1)
    return "" if block in DOT_BLOCKS else f"config block={block}: must be 1, 2, 4, 8 or 16 slots of a stationary"
