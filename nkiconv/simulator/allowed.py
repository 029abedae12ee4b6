"""The permissions of a launch: behaviour that is refused by default."""

from __future__ import annotations

from dataclasses import dataclass

#: Versions of NKI that differ in what kernels may call; 0.6 stands for those that parse kernels.
VERSIONS = ("0.6", "0.7")


@dataclass(frozen=True)
class Allowed:
    """`simulate` says what each means."""

    sentinels: bool = False
    races: bool = False
    overflow: bool = False
    #: the version of NKI whose calls it has, one of VERSIONS
    nki: str = "0.7"

    def __post_init__(self) -> None:
        """Raise ValueError for another version."""
        if self.nki not in VERSIONS:
            raise ValueError(f"nki={self.nki!r}: accepted are {', '.join(VERSIONS)} (0.6 stands for 0.3 to 0.6)")


_state = [Allowed()]


def default() -> Allowed:
    """Of launches that do not say; `install` changes it."""
    return _state[0]


def set_default(allowed: Allowed) -> None:
    """Set the permissions of launches that name none."""
    _state[0] = allowed
