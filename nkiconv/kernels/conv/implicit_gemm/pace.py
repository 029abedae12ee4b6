"""Things that are due between matmuls, evenly spread over some of them."""

from dataclasses import dataclass

from ...._nki import nl


@dataclass
class Pace(nl.NKIObject):
    """rate: things a matmul; credit: of them, due."""

    rate: float = 0.0
    credit: float = 0.0


def start_pace(count, matmuls, first, until):
    """The Pace of so many things in the course of the next matmuls, from and until these shares of them."""
    rate = count / ((until - first) * matmuls)
    return Pace(rate=rate, credit=-first * matmuls * rate)


def due_now(pace):
    """After a matmul: how many things are due."""
    pace.credit = pace.credit + pace.rate
    count = 0
    while pace.credit >= 1.0:
        pace.credit = pace.credit - 1.0
        count += 1
    return count
