"""Settings of `activation_stationary`: those of y as NHWC, of volumes whose y is NCDHW, and of depthwise conv2d."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS, PSUM_BANK_FP32_ELEMS, SBUF_USABLE_BYTES_PER_PARTITION
from .implicit_gemm import LOOP_MAX
from .settings import BY_SHAPE, WARM_UPS, Config, Settings, choice, count, double, half, less, more, setting, warm_up

SHARDS = ("channels", "images")
#: Copies of the channels left over, and the most.
COPIES, COPIES_MAX = 4, 16
#: Of depthwise problems: channels of a K tile, at most; matmuls of 128 columns on zeros while the first x is loaded.
CHANNELS_MOST = 1024
WARM_UP = 40
_ROOM = SBUF_USABLE_BYTES_PER_PARTITION


@dataclass(frozen=True)
class PixelSettings(Settings):
    """All settings of y as NHWC."""

    algorithm = "activation_stationary"
    tried = ("shard", "side", "fold", "x_bytes", "filter_bytes", "warmup")

    shard: str = choice(
        "of y as NHWC: what the two cores share: channels of y, or images and their rows; with fold > 1 these",
        SHARDS,
        near=("images", "channels"),
    )
    side: int = count("neighbouring pixels of a partition", 1, 4096, near=BY_SHAPE)
    fold: int = count(
        "rows of y in the columns of the Tensor Engine, with as many times stride rows of x on its rows",
        1,
        PARTITIONS,
        near=(1, 2, 3, 4, 6, 8),
    )
    x_bytes: int = count(
        "x of an output tile, two of which are loaded at once", 64, _ROOM, default=32_768, near=(half, double),
        unit="bytes per partition",
    )  # fmt: skip
    filter_bytes: int = count(
        "filters of a weight-resident group",
        64,
        _ROOM,
        default=118_784,
        near=(half, double),
        unit="bytes per partition",
    )
    warmup: int = warm_up(28, near=WARM_UPS)


@dataclass(frozen=True)
class RowSettings(Settings):
    """All settings of volumes whose y is NCDHW."""

    algorithm = "activation_stationary"
    tried = ("depth", "copies", "warmup")

    depth: int = count(
        "of y as NCDHW: planes of y in the columns of the Tensor Engine", 1, PARTITIONS, near=(less, more)
    )
    copies: int = count(
        "copies of the channels left over beside whole 128s", 1, COPIES_MAX, default=COPIES, near=(1, 2, 3, 4)
    )
    warmup: int = warm_up(28, near=WARM_UPS)
    loop: int = count(
        "rotations of the circular buffer of x in the body of a loop on the device, 0: all steps are unrolled",
        0,
        LOOP_MAX,
        default=0,
    )


@dataclass(frozen=True)
class DepthwiseSettings(Settings):
    """All settings of depthwise conv2d; beside * below * images is at most 128."""

    algorithm = "activation_stationary"
    tried = ("buffers", "channels", "rows")

    rows: int = count(
        "depthwise: rows from a block to the next, a multiple of stride and lhs_dilation",
        1,
        PSUM_BANK_FP32_ELEMS,
        near=BY_SHAPE,
    )
    columns: int = count(
        "columns of y of a window; with lhs_dilation a multiple of those that begin alike", 1, PSUM_BANK_FP32_ELEMS
    )
    disjoint: int = count(
        "1, of NCHW: windows share no column of x and a block has all rows that its rows of y see; 0: blocks share no "
        "row of x and a window has all columns",
        0,
        1,
        default=0,
    )
    beside: int = count("blocks of a row that one matmul takes; 1 of NCHW", 1, PARTITIONS)
    below: int = count("blocks of a column that one matmul takes", 1, PARTITIONS)
    images: int = count("images that one matmul takes", 1, PARTITIONS)
    channels: int = count("channels of a K tile; of NCHW at most 128", 1, CHANNELS_MOST, near=(half, double))
    together: int = count("K tiles whose matrices are loaded together", 1, CHANNELS_MOST, default=1)
    buffers: int = count("tiles of blocks in rotation", 2, 16, default=2, near=(2, 3, 4, 5))


def read_pixels(config: Config, shard: str, side: int, fold: int) -> PixelSettings:
    """All settings of a config; what that leaves open is as given here, but for what does not go together."""
    fold = setting(config, "fold", 1 if setting(config, "shard", "images") == "channels" else fold)
    return PixelSettings.read(config, shard="images" if fold > 1 else shard, side=side, fold=fold)
