"""Settings of `update`: what each says and may be, and what a kernel takes that is called without.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._tiles import PARTS, div_ceil
from .plan import UPDATE_GROUPS_MAX, group_limits

#: Every setting, and what it may be.
UPDATE_SETTINGS = (
    ("engine", ("tensor", "vector")),
    ("channels", (1, 128)),
    ("groups", (1, UPDATE_GROUPS_MAX)),
    ("vector_reads", (0, 64)),
    ("warmup", (0, 128)),
)
#: Where the array multiplies without a config: so many images at least, and for each of them columns of a row and taps
#: of all channels at most; and so many elements of 2 bytes of all images that taps meet, or images for each channel on
#: a partition of Vector's, at least. Where Vector's runs are of a few bytes, DMA engines take long for each.
TENSOR_IMAGES, TENSOR_COLUMNS, TENSOR_TAPS = 3, 2, 4000
TENSOR_ELEMENTS, TENSOR_IMAGES_EACH, TINY_RUN = 128, 16, 4


@dataclass(frozen=True)
class UpdateConfig(nl.NKIObject):
    """Every setting; all but the first are the array's, of no use to Vector."""

    #: who multiplies: "tensor", the array, or "vector" (vector.py)
    engine: str
    #: channels of a group, 1 to 128, and groups of a chunk, 1 to 16; fewer where they do not fit
    channels: int
    groups: int
    #: every how many-th piece of the results Vector reads out, 0 to 64; 0: none. Scalar reads the others
    vector_reads: int
    #: matmuls on zeros while filters and first rows are on their way, 0 to 128
    warmup: int


def read_update(geometry, extras, config):
    """The UpdateConfig of (name, value) pairs; without them, chunks of as many channels as a bank holds."""
    limits = group_limits(geometry, extras.state)
    fewest = min(limits.groups, limits.room // max(1, limits.channels))
    on_vector = extras.strict_nonfinite or limits.channels == 0 or not is_for_tensor(geometry)
    return UpdateConfig(
        engine=setting(config, "engine", "vector" if on_vector else "tensor"),
        channels=setting(config, "channels", max(1, limits.channels)),
        groups=setting(config, "groups", max(1, fewest)),
        vector_reads=setting(config, "vector_reads", 2),
        warmup=setting(config, "warmup", 16),
    )


def is_for_tensor(geometry):
    """Whether there are enough images, and not too many columns or taps, for the array."""
    N, Q, S = geometry.N, geometry.Q, geometry.S
    met = min(S, geometry.W)
    length = div_ceil(geometry.C, PARTS * nl.tile_size.pmax)
    many = N * met * 2 >= TENSOR_ELEMENTS * geometry.itemsize or N >= TENSOR_IMAGES_EACH * length
    tiny = length * Q * geometry.itemsize <= TINY_RUN
    few = S * geometry.C <= TENSOR_TAPS * N or S <= N * Q * met
    bands = Q <= 16 * S or N >= 64 * length
    return N >= TENSOR_IMAGES and (many or tiny) and few and Q <= TENSOR_COLUMNS * N and bands


def update_config_refusal(config):
    """What is wrong with the names and values of a config; "" if nothing is."""
    return settings_refusal(config, UPDATE_SETTINGS, "update")
