"""Settings of depthwise conv2d by bands, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import PARTS, div_ceil

BANDS_SETTINGS = ("fold", "channels", "together", "buffers", "early", "warmup")
#: Rows of x that a partition may have.
BANDS_FOLDS = (1, 2, 4)
#: Most matmuls on zeros.
BANDS_WARM_UP_MAX = 256
#: Bytes of a row of x from which a DMA is quick enough without others beside it, of a kernel without settings.
BANDS_LONG_ROW_BYTES = 64


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
    reason = config_refusal(config, BANDS_SETTINGS, "bands")
    if reason == "":
        limits = (("fold", 1, most), ("channels", 1, most), ("together", 1, most), ("buffers", 2, most))
        reason = numbers_refusal(config, limits)
    if reason == "":
        reason = numbers_refusal(config, (("early", 0, most), ("warmup", 0, BANDS_WARM_UP_MAX)))
    if reason != "":
        return reason
    fold = setting(config, "fold", 1)
    if fold not in BANDS_FOLDS or size % fold != 0:
        return f"config fold={fold}: one of {BANDS_FOLDS} that divides H={size}"
    return ""


def bands_defaults(geometry, fold):
    """Settings of a kernel that is called without any, or with nothing but `fold`, 0 else."""
    rows, columns = geometry.rows, geometry.columns
    if fold == 0:
        fold = 2 if columns.size * geometry.itemsize < BANDS_LONG_ROW_BYTES and rows.size % 2 == 0 else 1
    return BandsConfig(
        fold=fold,
        channels=most_channels(geometry, fold),
        together=4,
        buffers=4,
        early=1,
        warmup=24,
    )


def most_channels(geometry, fold):
    """Channels of a tile at most; each core has a group."""
    most, rows = nl.tile_size.pmax, geometry.rows
    fits = min(most // fold // (rows.size // fold), most // rows.out)
    return min(max(1, div_ceil(geometry.C, PARTS * fold)), fits)


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
