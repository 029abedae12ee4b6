"""Settings of a kernel that is called without some, or all: a rule of shapes."""

from ...._nki import nl
from ....schedules.tiles import PARTS, div_ceil
from ....schedules.update import UpdateSettings
from .plan import group_limits

#: Without a config the array multiplies for so many images for each channel on a partition of Vector's, or in all where
#: taps meet so many elements for each byte of one; or for few where Vector's runs would be of so few bytes that DMA
#: engines take long for each. Not if filters have more taps an image, or rows more columns a tap.
TENSOR_IMAGES, MET_ELEMENTS, TENSOR_IMAGES_TINY, TINY_RUN = 16, 64, 3, 4
TAPS_AN_IMAGE, COLUMNS_A_TAP = 4000, 16
#: Matmuls on zeros without a config, and rows from which they pay: few are done before the array is at full rate.
WARMUP, MANY_ROWS = 16, 65_536


def update_settings(geometry, extras, config):
    """All settings of a config; without one, chunks of as many channels as a bank holds."""
    channels, most, room = group_limits(geometry, extras.state)
    on_vector = extras.strict_nonfinite or channels == 0 or not is_for_tensor(geometry, extras.state)
    return UpdateSettings.read(
        config,
        engine="vector" if on_vector else "tensor",
        channels=max(1, channels),
        groups=max(1, min(most, room // max(1, channels))),
        warmup=WARMUP if geometry.N * geometry.C >= MANY_ROWS else 0,
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
