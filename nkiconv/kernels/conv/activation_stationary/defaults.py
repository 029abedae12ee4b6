"""Settings of a kernel that is called without some, or all."""

from ....schedules.activation_stationary import DepthwiseSettings, PixelSettings, RowSettings, read_pixels
from ....schedules.settings import declarations
from ....schedules.tiles import BANK_COLUMNS
from ..flip import writes_rows
from .pixel_blocks import can_fold
from .pixel_tiles import make_pixels, pixels_fit
from .row_tiles import TILE_BANKS, make_rows

#: Of `pixel_settings`: pixels up to which cores share channels, and below which they do where there are more channels
#: than so many, which results of neighbours have at most; columns and pixels of neighbouring rows, and pixels of
#: neighbours.
FEW_PIXELS, MANY_PIXELS = 128, 4096
MANY_CHANNELS, MANY_COLUMNS = 256, 384
PIXELS_A_ROW, PIXELS_A_SIDE = 256, 1440


def settings_of(geometry):
    """The dataclass of the settings that a problem has."""
    if geometry.groups > 1:
        return DepthwiseSettings
    return RowSettings if writes_rows(geometry) else PixelSettings


def pixel_settings(geometry, extras, config):
    """All settings of a config that is not refused. What that leaves open: images for many pixels; some rows
    together, and neighbours whose results leave in one run, for few channels; fewer of them where they do not fit."""
    if config != None and len(config) == len(declarations(PixelSettings)):
        return PixelSettings.read(config)
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
        if pixels_fit(geometry, extras, make_pixels(geometry, read_pixels(None, *tried))):
            break
    return read_pixels(config, *tried)


def row_settings(geometry, extras, config):
    """All settings; what a config leaves open: the planes that a few banks hold, or fewer where x does not fit."""
    planes = geometry.planes
    most = min(planes.out // planes.images, max(1, BANK_COLUMNS // geometry.K) * TILE_BANKS)
    for depth in range(most, 0, -1):
        found = RowSettings.read(config, depth=depth)
        if make_rows(geometry, extras, found) != None:
            break
    return found
