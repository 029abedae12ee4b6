"""Settings of `update`: a few positions of many images."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import Settings, choice, count, warm_up

#: Most groups of a chunk: at most 128 groups' filters are transposed at once.
GROUPS_MAX = 16


@dataclass(frozen=True)
class UpdateSettings(Settings):
    """All settings; all but the first are of the Tensor Engine."""

    algorithm = "update"
    tried = ("vector_reads", "warmup")

    engine: str = choice("engine that multiplies", ("tensor", "vector"))
    channels: int = count("channels of a group; fewer where they do not fit", 1, 128)
    groups: int = count("groups of a chunk; fewer where they do not fit", 1, GROUPS_MAX)
    vector_reads: int = count(
        "of this many pieces of results Vector evacuates one and Scalar the others; 0: Scalar all",
        0,
        64,
        default=2,
        near=(0, 1, 2, 3),
    )
    warmup: int = warm_up("by shape", near=(0, 16, 24))
