"""Fewer rows of a big table of tests (`pytest.mark.cover`), for `make test`: `make test-all` runs the rest."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations


def cover(rows: Sequence[Sequence[str]]) -> list[int]:
    """Places of rows that have every value, and where rows have three and more every two that some row has.

    Takes the row that has most of what is missing, of those one whose values have been taken least, the first of them.
    """
    facts = [set(combinations(sorted(set(row)), 2 if len(row) > 2 else 1)) for row in rows]
    having = defaultdict(list)
    for place, some in enumerate(facts):
        for fact in some:
            having[fact].append(place)
    missing, taken, found = [len(some) for some in facts], Counter[str](), list[int]()
    while most := max(missing, default=0):
        alike = (place for place, count in enumerate(missing) if count == most)
        best = min(alike, key=lambda place: sum(taken[one] for one in rows[place]))
        found.append(best)
        taken.update(rows[best])
        for fact in facts[best]:
            for place in having.pop(fact, ()):
                missing[place] -= 1
    return found


def sample(rows: Sequence[Sequence[str]], most: int, table: str) -> set[int]:
    """As `cover`, but the first so many rows that it takes when the table is shuffled by its name: tests that share a
    table of shapes take different ones."""
    order = random.Random(table).sample(range(len(rows)), len(rows))
    return {order[place] for place in cover([rows[place] for place in order])[:most]}
