"""`nki.collectives`: its names, so that code which imports them loads. None is simulated; each raises when called."""

from __future__ import annotations

from typing import Any

from .errors import NotSimulatedError

#: AWS's API index (NKI 0.6).
_NAMES = (
    "ReplicaGroup", "all_reduce", "all_gather", "all_gather_v", "reduce_scatter", "all_to_all", "all_to_all_v",
    "collective_permute", "collective_permute_implicit", "collective_permute_implicit_reduce",
    "collective_permute_implicit_current_processing_rank_id", "rank_id",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """A call that raises NotSimulatedError, for each documented name."""
    if name not in _NAMES:
        raise AttributeError(f"module 'nki.collectives' has no attribute {name!r}")

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotSimulatedError(f"nki.collectives.{name}", ["what one NeuronCore or two of one device do"])

    return missing
