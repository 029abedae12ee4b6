"""What a launch lets a kernel do that is refused unless it is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowed:
    """`simulate` says what each means."""

    sentinels: bool = False
    races: bool = False
    overflow: bool = False


_state = [Allowed()]


def default() -> Allowed:
    """Of launches that do not say; `install` changes it."""
    return _state[0]


def set_default(allowed: Allowed) -> None:
    """What launches allow from now on that do not say."""
    _state[0] = allowed
