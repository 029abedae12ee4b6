"""The floor kernels move what they say, and their modelled time is what the hardware's rates allow."""

import numpy as np
import pytest

from nkiconv import ConvProblem, cases, simulate
from nkiconv.kernels.floors import copy_floor, launch_floor
from nkiconv.planner.floors import TILE_BYTES, floors
from nkiconv.simulator import execute

pytestmark = pytest.mark.simulator_only


@pytest.mark.parametrize("lnc", [1, 2])
def test_launch_floor_copies_its_row(lnc):
    row = np.arange(256, dtype=np.float32)[None]
    assert (simulate(launch_floor[lnc])(row) == row).all()


@pytest.mark.cover(4)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("reads", "writes", "tile_elems"), [
    (128 * 64 + 5, 128 * 64 + 5, 16),
    (5000, 1200, 7),
    (1200, 5000, 7),
    (3, 9, 4),
])  # fmt: skip
def test_copy_floor_reads_everything_once_and_writes_as_much_as_asked(reads, writes, tile_elems, lnc):
    x = np.arange(reads, dtype=np.float32)
    execution = execute(copy_floor[lnc], (x, writes, tile_elems))
    y = execution.outputs
    assert y.shape == (writes,)
    assert np.isin(y, x).all()
    loads = [i for i in execution.instructions if i.writes[0].info.on_chip]
    stores = [i for i in execution.instructions if not i.writes[0].info.on_chip]
    assert sum(i.reads[0].num_elems for i in loads) == reads
    assert sum(i.writes[0].num_elems for i in stores) == writes
    assert {i.engine for i in execution.instructions} == {"dma"}
    if reads == writes:
        assert sorted(y) == list(x)


# bytes/ns: what one core carries, and what two get of their HBM in runs of 8 and 16 KiB
@pytest.mark.parametrize(
    ("name", "lnc", "bytes_per_ns"),
    [("mamba2_prefill", 2, 670.7), ("mamba2_prefill", 1, 415)],
)
def test_copy_floor_is_the_bytes_at_full_rate_and_a_start(name, lnc, bytes_per_ns):
    problem = cases.get(name).problem
    found = floors(problem, lnc)
    least = problem.min_bytes / bytes_per_ns / 1e3
    assert least < found.copy_us < least + 1.6, "775 to 1,175 ns until data flows, and the end of the last store"
    assert found.copy_tile_bytes in TILE_BYTES


def test_launch_floor_is_one_load_and_one_store():
    found = floors(ConvProblem(N=1, C=1, W=4, S=2, groups=1, dtype="fp32"), 2)
    element = 4.7 + 512 / 27.2
    assert found.launch_us * 1e3 == pytest.approx(775 + element + 7 + 380 + 775 + element + 7)
