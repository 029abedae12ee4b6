"""Settings of `dot`: what each says and may be, and what a kernel takes that is called without.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import FLAG, setting, settings_refusal

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
    ("keep", FLAG),
    ("buffers", (2, 16)),
    ("block", (1, 16)),
    ("batch", (1, 64)),
    ("vector_share", (0, 64)),
    ("warmup", (0, 128)),
)


@dataclass(frozen=True)
class DotConfig(nl.NKIObject):
    """Every setting."""

    #: whether lags are put in step by a way through HBM (wide.py), or by masks
    wide: bool
    #: slots of a chunk of taps at most, 1 to 128; fewer where they do not fit, and whole blocks of 32 with wide
    slots: int
    #: with wide, lags of a block at most, 1 to 97; fewer where they do not fit
    lags: int
    #: whether transposed filters stay in SBUF from image to image, where they fit
    keep: bool
    #: rows in flight, 2 to 16
    buffers: int
    #: with masks, slots of a stationary: 1, 2, 4, 8 or 16; fewer for short filters
    block: int
    #: with masks, channel tiles (or images) that leave together, 1 to 64; fewer where a bank does not hold them
    batch: int
    #: with masks, every how many-th bank of transposed slots Vector moves to SBUF, 0 to 64; 0: none
    vector_share: int
    #: matmuls on zeros while the first rows are on their way, 0 to 128
    warmup: int


def dot_defaults(wide):
    """Settings without a config, with and without a way through HBM."""
    return DotConfig(
        wide=wide,
        slots=64 if wide else 32,
        lags=LAGS_MOST,
        keep=True,
        buffers=2 if wide else 4,
        block=8,
        batch=4,
        vector_share=0,
        warmup=24,
    )


def read_dot(config, defaults):
    """The DotConfig of (name, value) pairs; what they leave open is as in `defaults`."""
    return DotConfig(
        wide=setting(config, "wide", defaults.wide),
        slots=setting(config, "slots", defaults.slots),
        lags=setting(config, "lags", defaults.lags),
        keep=setting(config, "keep", defaults.keep),
        buffers=setting(config, "buffers", defaults.buffers),
        block=setting(config, "block", defaults.block),
        batch=setting(config, "batch", defaults.batch),
        vector_share=setting(config, "vector_share", defaults.vector_share),
        warmup=setting(config, "warmup", defaults.warmup),
    )


def dot_config_refusal(config):
    """What is wrong with the names and values of a config; "" if nothing is."""
    reason = settings_refusal(config, DOT_SETTINGS, "dot")
    if reason != "":
        return reason
    block = setting(config, "block", 1)
    return "" if block in DOT_BLOCKS else f"config block={block}: must be 1, 2, 4, 8 or 16 slots of a stationary"
