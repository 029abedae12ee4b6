"""Settings of depthwise conv2d by bands, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import limits_refusal, setting
from ..._tiles import PARTS, div_ceil
from .shape import group_bytes, most_channels, triggers_of, x_buffers_most

BANDS_SETTINGS = ("fold", "channels", "together", "buffers", "early", "warmup")
#: Rows of x that a partition may have.
BANDS_FOLDS = (1, 2, 4)
#: Most matmuls on zeros.
BANDS_WARM_UP_MAX = 256
#: Of a kernel without settings: columns of the array that pass while the rows of an image are loaded and stored, and
#: during two triggers; bytes a partition that are zeroed before w comes.
DMA_COLUMNS = 384
TRIGGER_COLUMNS = 280
EARLY_BYTES = 10_800


@dataclass(frozen=True)
class BandsConfig(nl.NKIObject):
    """Every setting."""

    #: rows of x that a partition has, one of BANDS_FOLDS that divides H
    fold: int
    #: channels of a tile, 1 to `most_channels`
    channels: int
    #: groups whose bands are made together, at most, 1 to 128
    together: int
    #: buffers of x, 2 to 128
    buffers: int
    #: groups of the first round that are zeroed before filters are loaded, 0 to 128
    early: int
    #: matmuls of WARM_UP_BLOCKS times 128 columns on zeros while the first bands are on their way
    warmup: int


def bands_config_refusal(geometry, config):
    """What is wrong with a config; "" if nothing is."""
    most, size = nl.tile_size.pmax, geometry.rows.size
    limits = (("fold", 1, most), ("channels", 1, most), ("together", 1, most), ("buffers", 2, most))
    limits = limits + (("early", 0, most), ("warmup", 0, BANDS_WARM_UP_MAX))
    reason = limits_refusal(config, BANDS_SETTINGS, "bands", limits)
    if reason != "":
        return reason
    fold = setting(config, "fold", 1)
    if fold not in BANDS_FOLDS or size % fold != 0:
        return f"config fold={fold}: one of {BANDS_FOLDS} that divides H={size}"
    return ""


def bands_defaults(geometry, fold):
    """Settings of a kernel that is called without any but `fold`: the work of the groups of a round, in columns of the
    array, hides the triggers of the next one's bands."""
    columns, N = geometry.columns, geometry.N
    A = most_channels(geometry, fold)
    share_groups = div_ceil(div_ceil(geometry.C, fold * A), PARTS)
    work = fold * max(columns.taps * max(nl.tile_size.pmax, N * columns.out), N * DMA_COLUMNS)
    needed = TRIGGER_COLUMNS * triggers_of(geometry, fold, A) // work + 1
    together = div_ceil(share_groups, max(1, share_groups // needed))
    return BandsConfig(
        fold=fold,
        channels=A,
        together=min(nl.tile_size.pmax, together),
        buffers=min(min(16, 4 + 96 // N), x_buffers_most(geometry, fold)),
        early=min(nl.tile_size.pmax, EARLY_BYTES // group_bytes(geometry, fold, A)),
        warmup=48,
    )


def read_bands(config, defaults):
    """The settings of a config; what it leaves open is as in `defaults`."""
    return BandsConfig(
        fold=setting(config, "fold", defaults.fold),
        channels=setting(config, "channels", defaults.channels),
        together=setting(config, "together", defaults.together),
        buffers=setting(config, "buffers", defaults.buffers),
        early=setting(config, "early", defaults.early),
        warmup=setting(config, "warmup", defaults.warmup),
    )
