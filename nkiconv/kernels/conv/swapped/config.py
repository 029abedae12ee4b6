"""Settings of swapped."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._warm import WARM_UP_MAX
from .shape import can_fold
from .tiling import make_swapped, swapped_fits

SWAPPED_SETTINGS = ("shard", "side", "fold", "x_bytes", "filter_bytes", "warmup")
SWAPPED_SHARDS = ("channels", "images")
#: Neighbouring pixels of a partition, at most.
SIDE_LIMIT = 4096
#: Bytes a partition for x of one band and for filters, and matmuls on zeros, if nothing else is asked for.
SWAPPED_X_BYTES, SWAPPED_FILTER_BYTES, SWAPPED_WARM_UP = 32_768, 118_784, 28
#: Of `swapped_config`: pixels up to which cores share channels, and below which they do where there are more channels
#: than so many, which results of neighbours have at most; columns and pixels of rows beside each other, and pixels of
#: neighbours.
FEW_PIXELS, MANY_PIXELS = 128, 4096
MANY_CHANNELS, MANY_COLUMNS = 256, 384
PIXELS_A_ROW, PIXELS_A_SIDE = 256, 1440


@dataclass(frozen=True)
class SwappedConfig(nl.NKIObject):
    """How swapped works: see plan.py."""

    #: what two cores share: "channels" of the output, or "images" and rows of them; with fold > 1 these
    shard: str
    #: neighbouring pixels of a partition, 1 to 4096
    side: int
    #: rows of y beside each other in the array's columns, with as many times stride rows of x on its rows, 1 to 128
    fold: int
    #: bytes a partition for x of one band, 64 to all of SBUF; two bands are there at once
    x_bytes: int
    #: bytes a partition for filters that are there together, 64 to all of SBUF
    filter_bytes: int
    #: matmuls of 128 columns on zeros before the first filters, 0 to 256
    warmup: int


def swapped_config_refusal(config):
    """Why a config is none of swapped's by its names and values, or ""."""
    room = nl.tile_size.total_available_sbuf_size
    table = (
        ("shard", SWAPPED_SHARDS),
        ("side", (1, SIDE_LIMIT)),
        ("fold", (1, nl.tile_size.pmax)),
        ("x_bytes", (64, room)),
        ("filter_bytes", (64, room)),
        ("warmup", (0, WARM_UP_MAX)),
    )
    return settings_refusal(config, table, "swapped")


def swapped_config(geometry, extras, config):
    """The SwappedConfig of a config that is not refused. What that leaves open: images for many pixels; some rows
    together, and neighbours whose results leave in one run, for few channels; fewer of them where they do not fit."""
    if config != None and len(config) == len(SWAPPED_SETTINGS):
        return read_swapped(config, SWAPPED_SHARDS[0], 1, 1)
    Q, K = geometry.columns.out, geometry.K
    pixels = geometry.planes.out * geometry.rows.out * Q
    shard, other, side, fold = "images", "channels", 1, 1
    if pixels <= FEW_PIXELS or (K > MANY_CHANNELS and pixels < MANY_PIXELS):
        shard, other = "channels", "images"
    elif not extras.strict_nonfinite:
        for rows in (2, 4):
            if rows * K <= MANY_COLUMNS and pixels >= PIXELS_A_ROW * rows and can_fold(geometry, rows):
                fold = rows
    for pixels_together in (2, 3, 4, 6, 8):
        long = pixels >= PIXELS_A_SIDE * pixels_together and Q % pixels_together == 0
        if long and pixels_together * fold * K <= MANY_CHANNELS:
            side = pixels_together
    for tried in ((shard, side, fold), (shard, 1, fold), (shard, 1, 1), (other, 1, 1)):
        shard, side, fold = tried
        if swapped_fits(geometry, extras, make_swapped(geometry, read_swapped(None, shard, side, fold))):
            break
    return read_swapped(config, shard, side, fold)


def read_swapped(config, shard, side, fold):
    """The SwappedConfig of a config; what that leaves open is as given here, but for what does not go together."""
    fold = setting(config, "fold", 1 if setting(config, "shard", "images") == "channels" else fold)
    return SwappedConfig(
        shard=setting(config, "shard", "images" if fold > 1 else shard),
        side=setting(config, "side", side),
        fold=fold,
        x_bytes=setting(config, "x_bytes", SWAPPED_X_BYTES),
        filter_bytes=setting(config, "filter_bytes", SWAPPED_FILTER_BYTES),
        warmup=setting(config, "warmup", SWAPPED_WARM_UP),
    )
