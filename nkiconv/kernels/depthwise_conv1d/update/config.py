"""Settings of `update`: what each says and may be, and what a kernel takes that is called without.

Compile-time code.
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
#: Without a config the array multiplies for so many images for each channel on a partition of Vector's, or in all where
#: taps meet so many elements for each byte of one; or for few where Vector's runs would be of so few bytes that DMA
#: engines take long for each. Not if filters have more taps an image, or rows more columns a tap.
TENSOR_IMAGES, MET_ELEMENTS, TENSOR_IMAGES_TINY, TINY_RUN = 16, 64, 3, 4
TAPS_AN_IMAGE, COLUMNS_A_TAP = 4000, 16
#: Matmuls on zeros without a config, and rows from which they pay: few are done before the array is at full rate.
WARMUP, MANY_ROWS = 16, 65_536


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
    channels, most, room = group_limits(geometry, extras.state)
    on_vector = extras.strict_nonfinite or channels == 0 or not is_for_tensor(geometry, extras.state)
    return UpdateConfig(
        engine=setting(config, "engine", "vector" if on_vector else "tensor"),
        channels=setting(config, "channels", max(1, channels)),
        groups=setting(config, "groups", max(1, min(most, room // max(1, channels)))),
        vector_reads=setting(config, "vector_reads", 2),
        warmup=setting(config, "warmup", WARMUP if geometry.N * geometry.C >= MANY_ROWS else 0),
    )


def is_for_tensor(geometry, with_state):
    """Whether there are enough images, and not too many columns or taps, for the array."""
    length = div_ceil(geometry.C, PARTS * nl.tile_size.pmax)
    positions = geometry.W + (geometry.pad_left if with_state else 0)
    images = TENSOR_IMAGES * length
    if length * geometry.Q * geometry.itemsize <= TINY_RUN:
        images = TENSOR_IMAGES_TINY
    elif geometry.N * min(geometry.S, positions) >= MET_ELEMENTS * geometry.itemsize:
        images = TENSOR_IMAGES
    few_taps = geometry.S * geometry.C <= TAPS_AN_IMAGE * geometry.N
    return geometry.N >= images and few_taps and geometry.Q <= COLUMNS_A_TAP * geometry.S


def update_config_refusal(config):
    """What is wrong with the names and values of a config; "" if nothing is."""
    return settings_refusal(config, UPDATE_SETTINGS, "update")
