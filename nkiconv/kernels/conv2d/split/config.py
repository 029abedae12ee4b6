"""Settings of split, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from .work import LEAD, make_plan, sbuf_bytes

SPLIT_SETTINGS = ("shard", "x_bytes", "filter_bytes", "channels", "warmup", "ahead")
SPLIT_SHARDS = ("channels", "images")
#: Two bands of x are there at once.
SPLIT_X_BYTES = 32_768
SPLIT_FILTER_BYTES = 90_112
#: Bytes of x of a band down to which it goes by itself where there is no room.
LEAST_X_BYTES = 2048
SPLIT_WARM_UP_MAX = 256


@dataclass(frozen=True)
class SplitConfig(nl.NKIObject):
    """Every setting."""

    #: what the two cores share: "channels" of the output, or "images" and rows of them
    shard: str
    #: bytes a partition of the pairs of one band of x, and of the filters that are there together, from 256 on
    x_bytes: int
    filter_bytes: int
    #: output channels of a job, 1 to 128
    channels: int
    #: matmuls of 128 columns on zeros while the first filters and rows are on their way, and become pairs, 0 to 256
    warmup: int
    #: pieces of the next batch's filters that are transposed before a batch is done, 0 to 3
    ahead: int


def split_config_refusal(config):
    """What is wrong with names and values of a config; "" if nothing is."""
    whole = nl.tile_size.total_available_sbuf_size
    reason = config_refusal(config, SPLIT_SETTINGS, "split")
    if reason == "":
        limits = (
            ("x_bytes", 256, whole),
            ("filter_bytes", 256, whole),
            ("channels", 1, nl.tile_size.pmax),
            ("warmup", 0, SPLIT_WARM_UP_MAX),
            ("ahead", 0, LEAD),
        )
        reason = numbers_refusal(config, limits)
    if reason == "" and setting(config, "shard", SPLIT_SHARDS[0]) not in SPLIT_SHARDS:
        reason = f"config shard={setting(config, 'shard', SPLIT_SHARDS[0])}: accepted are {SPLIT_SHARDS}"
    return reason


def split_defaults(geometry, extras, config):
    """Settings that a config leaves open: filters ahead, then x of a band, get less until all fits."""
    x_bytes, ahead = SPLIT_X_BYTES, LEAD
    more_x, more_ahead = setting(config, "x_bytes", 0) == 0, setting(config, "ahead", -1) < 0
    found = usual_split(geometry, x_bytes, ahead)
    while (more_x or more_ahead) and not fits_split(geometry, extras, read_split(config, found)):
        if more_ahead:
            ahead, more_ahead = 0, False
        else:
            x_bytes = x_bytes // 2
            more_x = x_bytes > LEAST_X_BYTES
        found = usual_split(geometry, x_bytes, ahead)
    return found


def fits_split(geometry, extras, settings):
    """Whether a partition of SBUF holds what settings need."""
    return sbuf_bytes(geometry, make_plan(geometry, extras, settings), extras) <= nl.tile_size.total_available_sbuf_size


def usual_split(geometry, x_bytes, ahead):
    """Settings by the shape alone, and x_bytes and ahead; the cores share channels where x is the smaller tensor."""
    x_elements = geometry.N * geometry.C * geometry.rows.size * geometry.columns.size
    w_elements = geometry.K * (geometry.C // geometry.groups) * geometry.rows.taps * geometry.columns.taps
    return SplitConfig(
        shard="channels" if x_elements <= w_elements else "images",
        x_bytes=x_bytes,
        filter_bytes=SPLIT_FILTER_BYTES,
        channels=nl.tile_size.pmax,
        warmup=24,
        ahead=ahead,
    )


def read_split(config, defaults):
    """The settings of a config; what it leaves open is as in `defaults`."""
    return SplitConfig(
        shard=setting(config, "shard", defaults.shard),
        x_bytes=setting(config, "x_bytes", defaults.x_bytes),
        filter_bytes=setting(config, "filter_bytes", defaults.filter_bytes),
        channels=setting(config, "channels", defaults.channels),
        warmup=setting(config, "warmup", defaults.warmup),
        ahead=setting(config, "ahead", defaults.ahead),
    )
