"""Fewer rows of a big table of tests (`pytest.mark.cover`), for `make test`: `make test-all` runs the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations


def cover(rows: Sequence[Sequence[str]]) -> set[int]:
    """Places of rows that have every value, and where rows have three and more every two that some row has.

    Takes the row that has most of what is missing, of those one whose values have been taken least, the first of them.
    """
    facts = [set(combinations(sorted(set(row)), 2 if len(row) > 2 else 1)) for row in rows]
    missing, taken, found = set().union(*facts), Counter[str](), set[int]()
    while missing:
        best = max(range(len(rows)), key=lambda i: (len(facts[i] & missing), -sum(taken[one] for one in rows[i])))
        found.add(best)
        missing -= facts[best]
        taken.update(rows[best])
    return found
