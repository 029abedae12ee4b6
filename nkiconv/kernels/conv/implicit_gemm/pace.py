"""Spreads background work evenly between matmuls."""

from dataclasses import dataclass

from ...._nki import nl


@dataclass
class Pace(nl.NKIObject):
    """rate: pieces of work per matmul; credit: of those, due."""

    rate: float = 0.0
    credit: float = 0.0


def start_pace(count, matmuls, first, until):
    """The Pace of `count` pieces of work over the next matmuls, from share `first` of them until share `until`."""
    rate = count / ((until - first) * matmuls)
    return Pace(rate=rate, credit=-first * matmuls * rate)


def due_now(pace):
    """After a matmul: how many pieces of work are due."""
    pace.credit = pace.credit + pace.rate
    count = 0
    while pace.credit >= 1.0:
        pace.credit = pace.credit - 1.0
        count += 1
    return count
