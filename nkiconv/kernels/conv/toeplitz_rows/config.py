"""Settings of depthwise conv2d by Toeplitz matrices, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._tiles import PARTS, div_ceil
from ..._warm import WARM_UP_MAX
from .shape import group_bytes, most_channels_of_group, triggers_of, x_buffers_most

#: Of a kernel without settings: columns of the array that pass while the rows of an image are loaded and stored, and
#: during two triggers; bytes a partition that are zeroed before w comes.
DMA_COLUMNS = 384
TRIGGER_COLUMNS = 280
EARLY_BYTES = 10_800


@dataclass(frozen=True)
class ToeplitzConfig(nl.NKIObject):
    """Every setting."""

    #: channels of a group, 1 to `most_channels_of_group`
    channels: int
    #: groups whose matrices are made together, at most, 1 to 128
    together: int
    #: buffers of x, 2 to 128
    buffers: int
    #: groups of the first round that are zeroed before filters are loaded, 0 to 128
    early: int
    #: matmuls of WARM_UP_BLOCKS times 128 columns on zeros while the first matrices are on their way
    warmup: int


def toeplitz_config_refusal(config):
    """What is wrong with a config; "" if nothing is."""
    most = nl.tile_size.pmax
    sizes = (("channels", (1, most)), ("together", (1, most)), ("buffers", (2, most)))
    return settings_refusal(config, sizes + (("early", (0, most)), ("warmup", (0, WARM_UP_MAX))), "toeplitz_rows")


def toeplitz_settings(geometry, config):
    """All settings: what a config leaves open so that the work of the groups of a round, in columns of the array, hides
    the triggers of the next one's matrices."""
    columns, N = geometry.columns, geometry.planes.out
    A = most_channels_of_group(geometry)
    share_groups = div_ceil(div_ceil(geometry.C, A), PARTS)
    work = max(geometry.planes.taps * columns.taps * max(nl.tile_size.pmax, N * columns.out), N * DMA_COLUMNS)
    needed = TRIGGER_COLUMNS * triggers_of(geometry, A) // work + 1
    together = min(nl.tile_size.pmax, div_ceil(share_groups, max(1, share_groups // needed)))
    early = min(nl.tile_size.pmax, EARLY_BYTES // group_bytes(geometry, A))
    return ToeplitzConfig(
        channels=setting(config, "channels", A),
        together=setting(config, "together", together),
        buffers=setting(config, "buffers", min(min(16, 4 + 96 // N), x_buffers_most(geometry))),
        early=setting(config, "early", early),
        warmup=setting(config, "warmup", 48),
    )
