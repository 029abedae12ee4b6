"""What `make test` takes of a big table."""

from itertools import combinations, product

import pytest
from cover import cover, sample


@pytest.mark.parametrize("sizes", [(5,), (63, 3), (7, 12, 3), (6, 4, 2, 2)])
def test_every_value_and_every_pair_of_three_is_met(sizes):
    rows = [tuple(f"{axis}:{value}" for axis, value in enumerate(row)) for row in product(*map(range, sizes))]
    together = 2 if len(sizes) > 2 else 1
    kept = cover(rows)
    for axes in combinations(range(len(sizes)), together):
        assert {tuple(rows[i][axis] for axis in axes) for i in kept} == {
            tuple(row[axis] for axis in axes) for row in rows
        }
    largest = sorted(sizes)[-together:]
    assert len(kept) <= 1.2 * (largest[0] * largest[-1] if together == 2 else largest[0])


def test_values_take_turns():
    rows = list(product("abcdef", "xy"))
    assert sorted(rows[i][1] for i in cover(rows)) == ["x"] * 3 + ["y"] * 3


def test_tables_of_the_same_rows_take_different_ones():
    rows = [(str(place),) for place in range(60)]
    taken = [sample(rows, 6, f"test_{name}") for name in range(20)]
    assert all(len(one) == 6 for one in taken)
    assert len(set().union(*taken)) > 40
    assert taken == [sample(rows, 6, f"test_{name}") for name in range(20)]
