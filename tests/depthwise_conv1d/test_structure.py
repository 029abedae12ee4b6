"""How taps_on_partition does it: what its design promises about loads, tiles, matmuls and memory, off the records."""

import functools
import itertools
import sys
from collections import Counter

import pytest
from depthwise import EDGE, loads
from depthwise import trace as trace_any

from nkiconv.simulator.memory import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM

pytestmark = pytest.mark.simulator_only

BASE = EDGE[0].problem("bf16").replace(N=1)

trace = functools.partial(trace_any, algorithm="taps_on_partition", lnc=1)


def problem(C, W, S, **changes):
    return BASE.replace(C=C, K=C, groups=C, W=W, S=S, **changes)


def test_rows_of_a_tile_overlap_in_hbm():
    """Row (c, s) of an interior tile starts at element c * W + s, straight from HBM, one DMA a tile."""
    execution = trace(problem(C=4, W=300, S=64))
    of_x = loads(execution, "img_ref")
    assert [i.reads[0].strides for i in of_x] == [(300, 1, 1)] * 2
    assert [i.reads[0].shape for i in of_x] == [(2, 64, 237)] * 2
    assert [i.reads[0].offset for i in of_x] == [0, 600]


@pytest.mark.cover(3)
@pytest.mark.parametrize("S", [1, 7, 64, 65, 128, 129, 700])
def test_nothing_is_materialised_in_hbm_and_tiles_keep_their_limits(S):
    execution = trace(problem(C=300, W=3000, S=S, padding=((0, 0), (S - 1, 0))))
    regions = [r for i in execution.instructions for r in (*i.writes, *i.reads)]
    assert not [r for r in regions if r.info.buffer is PRIVATE_HBM and r.info.name not in ("img_ref", "filter_ref")]
    assert {r.info.shape for r in regions if r.info.buffer is SHARED_HBM} == {(1, 300, 1, 3000)}
    for region in regions:
        if region.info.buffer in (SBUF, PSUM):
            assert region.info.shape[0] <= 128
        if region.info.buffer is PSUM:
            assert region.info.bytes_per_partition <= 2048
    assert max(p.sbuf_peak_bytes for p in [execution]) <= 212_728


def test_channels_share_tiles_and_matmuls_when_filters_are_short():
    """128 channels of 8 taps and 512 columns: 16 channels a tile, so 4 tiles a core and a matmul for each."""
    execution = trace(problem(C=128, W=519, S=8), lnc=2)
    ops = Counter((i.engine, i.op) for i in execution.instructions)
    assert ops["tensor", "nc_matmul"] == 128 // 16
    assert len(loads(execution, "img_ref")) == 128 // 16
    contraction = {i.params["contraction"] for i in execution.instructions if i.op == "nc_matmul"}
    assert contraction == {128}


def test_filters_are_loaded_and_transposed_once_a_channel_tile():
    """Two images and many columns do not repeat the filters' work."""
    one = trace(problem(C=256, W=600, S=100))
    many = trace(problem(C=256, W=9000, S=100).replace(N=3))
    for execution in (one, many):
        transposes = [i for i in execution.instructions if i.op == "nc_transpose"]
        assert len(transposes) == len(loads(execution, "filter_ref")) == 2


def test_filters_of_neighbouring_channel_tiles_are_in_two_buffers():
    """So that the next tile's filters are spread while this tile's matmuls run."""
    execution = trace(problem(C=512, W=600, S=100))
    buffers = [i.reads[0].info.id for i in execution.instructions if i.op == "nc_matmul"]
    changes = [a for a, b in itertools.pairwise(buffers) if a != b]
    assert len(set(buffers)) == 2
    assert len(changes) == 3


def test_taps_accumulate_in_psum():
    execution = trace(problem(C=1, W=900, S=300))
    matmuls = [i for i in execution.instructions if i.op == "nc_matmul"]
    assert [i.params["contraction"] for i in matmuls if i.params["moving_columns"] == 512] == [128, 128, 44]
    assert len({i.writes[0].info.id for i in matmuls}) == 2, "one accumulator for each 512 columns"


@pytest.mark.parametrize("pad", [(63, 0), (0, 63), (20, 20)])
def test_padding_costs_a_memset_and_one_dma_of_the_valid_part(pad):
    """Not one DMA a column: two DMAs a tile that touches padding."""
    plain = trace(problem(C=4, W=400, S=64))
    padded = trace(problem(C=4, W=400, S=64, padding=((0, 0), pad)))
    tiles = len(loads(plain, "img_ref"))
    dmas = [sum(i.op == "dma_copy" for i in e.instructions) for e in (plain, padded)]
    assert dmas[1] - dmas[0] == tiles
    assert len(loads(padded, "img_ref")) == tiles


def test_million_element_rows_use_small_tiles():
    execution = trace(problem(C=1, W=1_000_000, S=9))
    assert execution.sbuf_peak_bytes < 64 * 1024


def test_both_cores_work_when_there_are_channels():
    for C in (2, 3, 16, 129, 383):
        programs = trace(problem(C=C, W=700, S=5), lnc=2).programs
        matmuls = [sum(i.op == "nc_matmul" for i in p.instructions) for p in programs]
        assert min(matmuls) > 0
        assert max(matmuls) <= 2 * min(matmuls)


def test_read_out_alternates_between_vector_and_scalar():
    execution = trace(problem(C=2, W=2051, S=4))
    engines = Counter(
        i.engine for i in execution.instructions if i.op == "tensor_copy" and i.reads[0].dtype == "float32"
    )
    assert engines["vector"] == engines["scalar"] > 0


@pytest.mark.cover(48)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("row", EDGE, ids=lambda row: row.id)
def test_kernel_knows_its_instruction_count(row, strict, lnc, monkeypatch):
    module = sys.modules["nkiconv.kernels.depthwise_conv1d.taps_on_partition.kernel"]
    counts, count = [], module.count_partition_instructions
    monkeypatch.setattr(module, "count_partition_instructions", lambda *args: counts.append(count(*args)) or counts[-1])
    execution = trace(row.problem("bf16"), lnc=lnc, strict_nonfinite=strict)
    actual = max(len(program.instructions) for program in execution.programs)
    assert actual <= counts[0] <= actual + 2


@pytest.mark.slow
def test_the_longest_filters_fit():
    trace(problem(C=1, W=4_000_000, S=4_000_000))


def test_a_filter_that_does_not_fit_is_refused():
    with pytest.raises(AssertionError, match=r"S=5000000: one channel's filter must fit 65536 bytes"):
        trace(problem(C=1, W=5_000_000, S=5_000_000))


def test_more_than_five_million_instructions_are_refused():
    with pytest.raises(AssertionError, match="compiler takes 5000000; split N or C"):
        trace(problem(C=8192, W=100_000, S=4000))
