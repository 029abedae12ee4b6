"""What algorithms of conv2d share: every row, tap and part once, in an order that sums can start with."""

import itertools

import pytest
from conv_calls import EDGE, geometry_of

from nkiconv.kernels.conv.regions import block_pieces
from nkiconv.kernels.conv.sums import taps_by_cover
from nkiconv.schedules.cuts import parts_for_cores, window_of
from nkiconv.schedules.geometry import images_axis
from nkiconv.schedules.tiles import slot_for


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("outputs", [1, 6, 15, 16, 29])
def test_blocks_have_each_row_of_outputs_once(outputs, parts, height):
    span = parts * height
    blocks = -(-outputs // span)
    for j0, jn in itertools.combinations(range(blocks + 1), 2):
        rows = [
            (j0 + block + j) * span + (part + u) * height + row
            for block, count, part, some, rows in block_pieces(outputs, parts, height, j0, jn - j0)
            for j in range(count)
            for u in range(some)
            for row in range(rows)
        ]
        assert sorted(rows) == list(range(j0 * span, min(outputs, jn * span)))


@pytest.mark.parametrize("name", EDGE)
def test_taps_that_meet_all_outputs_come_first(name):
    geometry = geometry_of(EDGE[name])
    for axis in (geometry.rows, geometry.columns):
        counts = [valid_range[2] for _, valid_range in taps_by_cover(axis, 0, axis.out)]
        assert all(0 < count <= axis.out for count in counts)
        assert [count == axis.out for count in counts] == sorted((count == axis.out for count in counts), reverse=True)


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_a_window_ends_at_its_last_tap(outputs):
    for problem in EDGE.values():
        axis = geometry_of(problem).rows
        taps = {u * axis.stride + tap * axis.dilation for u in range(outputs) for tap in range(axis.taps)}
        assert window_of(axis, outputs) == max(taps) + 1


def test_work_is_cut_for_two_cores_where_that_can_be():
    for images, blocks in itertools.product(range(1, 8), range(1, 8)):
        for most in itertools.product(range(1, images + 1), range(1, blocks + 1)):
            found = parts_for_cores(images_axis(images), most[0], blocks, most[1])
            assert -(-images // most[0]) <= found[0] <= images
            assert -(-blocks // most[1]) <= found[1] <= blocks
            assert found[0] * found[1] % 2 == 0 or (found[0], found[1]) == (images, blocks)


def test_slots_begin_where_engines_address_partitions():
    assert [slot_for(size) for size in (1, 32, 33, 64, 65, 128)] == [32, 32, 64, 64, 128, 128]
