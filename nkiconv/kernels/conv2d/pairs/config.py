"""Settings of pairs, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, div_ceil
from .extents import is_dense
from .work import can_stage, folding_pays, image_pitch, make_pairs, most_together, sbuf_bytes

PAIRS_SETTINGS = (
    "shard",
    "x_bytes",
    "filter_bytes",
    "channels",
    "buffers",
    "fold",
    "halves",
    "staged",
    "images",
    "warmup",
    "banks",
    "last_columns",
)
PAIRS_SHARDS = ("channels", "images")
PAIRS_X_BYTES = 28_672
PAIRS_FILTER_BYTES = 40_960
#: Least bytes of x and of filters; down to which x of a band goes by itself where there is no room.
PAIRS_LEAST_BYTES = 256
PAIRS_WARM_UP_MAX = 256
#: Columns of a row of x below which DMAs of single rows take as long as of so many.
LONG_ROW = 128


@dataclass(frozen=True)
class PairsConfig(nl.NKIObject):
    """Every setting; `work.py` says more of fold, halves and staged."""

    #: what the two cores share: "channels" of the output, or "images" and rows of them
    shard: str
    #: bytes a partition of x of one band, and of the filters that are there together, from 256 on
    x_bytes: int
    filter_bytes: int
    #: output channels of a job, 1 to 128
    channels: int
    #: buffers that bands of x take in turn, 2 to 8
    buffers: int
    #: 1: channels that are left over beside whole 128s are folded where they can be
    fold: int
    #: 1: singles of two banks share the array where they can
    halves: int
    #: 1: whole images come in one run each, where they can, and are put between zeros on chip
    staged: int
    #: images of a bank of sums, at most, 1 to 512; a bank holds fewer
    images: int
    #: matmuls of 128 columns on zeros before the first filters, 0 to 256
    warmup: int
    #: banks of sums whose results leave by one DMA, 1 to 8
    banks: int
    #: columns of the last bank of all, whose read-out nothing hides, at least, 1 to 512
    last_columns: int


def pairs_config_refusal(config):
    """What is wrong with names and values of a config; "" if nothing is."""
    whole = nl.tile_size.total_available_sbuf_size
    reason = config_refusal(config, PAIRS_SETTINGS, "pairs")
    if reason == "":
        limits = (
            ("x_bytes", PAIRS_LEAST_BYTES, whole),
            ("filter_bytes", PAIRS_LEAST_BYTES, whole),
            ("channels", 1, nl.tile_size.pmax),
            ("buffers", 2, 8),
            ("fold", 0, 1),
            ("halves", 0, 1),
            ("staged", 0, 1),
            ("images", 1, BANK_COLUMNS),
            ("warmup", 0, PAIRS_WARM_UP_MAX),
            ("banks", 1, PSUM_BANKS),
            ("last_columns", 1, BANK_COLUMNS),
        )
        reason = numbers_refusal(config, limits)
    if reason == "" and setting(config, "shard", PAIRS_SHARDS[0]) not in PAIRS_SHARDS:
        reason = f"config shard={setting(config, 'shard', PAIRS_SHARDS[0])}: accepted are {PAIRS_SHARDS}"
    return reason


def pairs_defaults(geometry, residual, config):
    """Settings that a config of a bare kernel leaves open: x of a band gets less until all fits beside those given."""
    x_bytes = setting(config, "x_bytes", PAIRS_X_BYTES)
    found = usual_pairs(geometry, x_bytes)
    while can_shrink(config, x_bytes) and not fits_pairs(geometry, residual, read_pairs(config, found)):
        x_bytes = x_bytes // 2
        found = usual_pairs(geometry, x_bytes)
    return found


def can_shrink(config, x_bytes):
    """Whether bands may have less x than this."""
    return setting(config, "x_bytes", 0) == 0 and x_bytes >= 2 * PAIRS_LEAST_BYTES


def fits_pairs(geometry, residual, settings):
    """Whether a partition of SBUF holds what settings need."""
    return sbuf_bytes(geometry, make_pairs(geometry, settings), residual) <= nl.tile_size.total_available_sbuf_size


def usual_pairs(geometry, x_bytes):
    """Settings by the shape alone, and x_bytes."""
    C, H, W = geometry.C, geometry.rows.size, geometry.columns.size
    P, Q = geometry.rows.out, geometry.columns.out
    jobs, stages = div_ceil(geometry.K, nl.tile_size.pmax), can_stage(geometry)
    whole, rows = max(H * W, LONG_ROW), H * max(W, LONG_ROW)
    if is_dense(geometry.columns):
        rows = whole
    # work for an image: the array's, and that of DMAs, row by row and at least, as large where it takes as long
    busy = geometry.rows.taps * geometry.columns.taps * jobs * P * Q * C
    moved = 8 * C * rows + 4 * geometry.K * P * Q
    least = 8 * C * (whole if stages else rows) + 4 * geometry.K * P * Q
    gaps = image_pitch(geometry) > P * geometry.rows.stride and P * Q >= nl.tile_size.pmax
    return PairsConfig(
        shard="channels" if geometry.x_w == 1 and jobs % 2 == 0 and busy >= least else "images",
        x_bytes=x_bytes,
        filter_bytes=PAIRS_FILTER_BYTES,
        channels=nl.tile_size.pmax,
        buffers=3,
        fold=1 if folding_pays(geometry) else 0,
        halves=1 if geometry.x_w == 1 and busy >= 2 * moved else 0,
        staged=1 if stages and 2 * whole < rows and busy < 2 * moved else 0,
        images=1 if gaps else div_ceil(geometry.N, max(PARTS, div_ceil(geometry.N, most_together(geometry)))),
        warmup=16,
        banks=4,
        last_columns=nl.tile_size.pmax,
    )


def read_pairs(config, defaults):
    """The settings of a config; what it leaves open is as in `defaults`."""
    return PairsConfig(
        shard=setting(config, "shard", defaults.shard),
        x_bytes=setting(config, "x_bytes", defaults.x_bytes),
        filter_bytes=setting(config, "filter_bytes", defaults.filter_bytes),
        channels=setting(config, "channels", defaults.channels),
        buffers=setting(config, "buffers", defaults.buffers),
        fold=setting(config, "fold", defaults.fold),
        halves=setting(config, "halves", defaults.halves),
        staged=setting(config, "staged", defaults.staged),
        images=setting(config, "images", defaults.images),
        warmup=setting(config, "warmup", defaults.warmup),
        banks=setting(config, "banks", defaults.banks),
        last_columns=setting(config, "last_columns", defaults.last_columns),
    )
