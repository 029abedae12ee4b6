"""Settings of `implicit_gemm`: weight-stationary, one matmul a tap."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import ALL, WARM_UPS, Settings, choice, count, double, half, warm_up
from .tiles import SBUF_BYTES

SHARDS, ORDERS = ("channels", "images"), ("banks", "chunks")
FOLDS = ("none", "inputs", "outputs", "both")
#: Kinds of products: one by one, of fp16 pairs (precision="fp16x3"), or of fp8 pairs, also with halves or staged rows
#: if the shape allows them.
PRODUCTS = ("single", "fp16x3", "fp8_pairs", "fp8_halves", "fp8_staged")
FP8_PRODUCTS = PRODUCTS[2:]
X_BYTES = 32_768
#: The most M tiles that a setting counts, and the most pairs of output tiles in the body of a device loop.
COUNT_MAX, LOOP_MAX = 4096, 64


@dataclass(frozen=True)
class ImplicitGemmSettings(Settings):
    """All settings of `implicit_gemm`."""

    algorithm = "implicit_gemm"
    tried = ("x_bytes", "shard", "warmup", "fold", "moved", "product", "order")

    shard: str = choice(
        "what the two cores share: channels of y, or images and their rows", SHARDS, near=("images", "channels")
    )
    x_bytes: int = count(
        "x of an output tile; two are loaded at once", 256, SBUF_BYTES, near=(half, double), unit="bytes a partition"
    )
    warmup: int = warm_up("by shape", near=WARM_UPS)
    moved: int = count(
        "M tiles of each half of the work whose filters DMA transposes, not the Tensor Engine",
        0,
        COUNT_MAX,
        default=0,
        near=(0, 1, 2, 4),
    )
    fold: str = choice("which channels beyond a multiple of 128 are folded", FOLDS, near=ALL)
    order: str = choice(
        "accumulators of an output tile one after the other, or all of them for each K tile of x",
        ORDERS,
        default=ORDERS[0],
        near=ALL,
    )
    product: str = choice("kind of products", PRODUCTS, near=ALL)
    loop: int = count("pairs of output tiles of a device loop's body; 0: all are unrolled", 0, LOOP_MAX, default=0)
