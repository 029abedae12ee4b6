"""Settings of `mixed`, and of `vector`, which is `mixed` without the Tensor Engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .settings import BY_SHAPE, SHARDS, Settings, choice, count, double, half, unchecked, warm_up

#: Bytes a partition of one load, at most.
LOAD_BYTES_MAX = 49_152
#: Most columns of one piece: four banks of PSUM, so that two pieces are in flight.
PIECE_MAX = 2048


@dataclass(frozen=True)
class MixedSettings(Settings):
    """All settings. A recipe is (tensor, vector_a, head, vector_b): how many taps of a piece each has."""

    algorithm = "mixed"
    tried = ("recipes", "piece", "start", "end", "last", "first", "warmup", "shard", "columns")

    shard: str = choice("axis that the two parts of the work share", SHARDS, near=BY_SHAPE)
    recipes: tuple[Any, ...] = unchecked("recipes that a part's pieces rotate through, one or more", near=BY_SHAPE)
    columns: int = count(
        "columns of a tile; fewer where such a tile does not fit", 1, LOAD_BYTES_MAX, near=(half, double)
    )
    piece: int = count("columns of a piece; at most a tile's", 1, PIECE_MAX, near=BY_SHAPE)
    start: tuple[Any, ...] = unchecked("recipes of the first pieces of a part", near=BY_SHAPE)
    first: tuple[Any, ...] = unchecked(f"columns of the first pieces of a part, 1 to {PIECE_MAX} each", near=BY_SHAPE)
    end: tuple[Any, ...] = unchecked("recipes of the last pieces of a part", near=BY_SHAPE)
    last: tuple[Any, ...] = unchecked(
        f"columns of the last pieces of a part, 1 to {PIECE_MAX} each", default=(320,), near=BY_SHAPE
    )
    warmup: int = warm_up(BY_SHAPE, most=64, near=(4, 6, 0), columns=512)
