"""One matmul a tap: every setting gives the same sums, needs no more than it says, and keeps the array at work."""

import itertools

import numpy as np
import pytest
from conv_calls import (
    EDGE,
    check_bits,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    geometry_of,
    integers,
    planned,
    run,
    trace,
)
from draws import cores
from implicit_gemm_calls import FOLDED, M_TILES, PROBLEMS, chosen, completed, timeline
from tolerances import assert_exact

import nkiconv
from nkiconv import cases
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.schedules.implicit_gemm_outputs import bank_rows, banks_of, row_parts
from nkiconv.simulator.hardware import SBUF_USABLE_BYTES_PER_PARTITION

SETTINGS = [
    {}, {"moved": 0}, {"moved": 1}, {"moved": 9}, {"moved": 9, "shard": "channels"}, {"moved": 2, "shard": "images"},
    {"shard": "channels", "x_bytes": 1024}, {"shard": "images", "x_bytes": 600, "warmup": 0},
]  # fmt: skip


@pytest.mark.cover(10)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_setting_is_exact(name, settings, dtype):
    if dtype == "fp32":
        settings = {key: value for key, value in settings.items() if key != "moved"}
    check_exact(PROBLEMS[name].replace(dtype=dtype), config=config_of("implicit_gemm", **settings))


@pytest.mark.parametrize("shard", ["channels", "images"])
def test_blocks_of_filters_that_dma_moves(shard):
    check_bits(M_TILES.replace(dtype="bf16"), config_of("implicit_gemm", moved=9, shard=shard))


@pytest.mark.cover(9)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("why", EDGE)
def test_every_edge_is_exact(why, dtype):
    check_exact(EDGE[why].replace(dtype=dtype), config=config_of("implicit_gemm"))


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("fold", ["inputs", "outputs", "both"])
@pytest.mark.parametrize("why", FOLDED)
def test_folded_channels_are_exact(why, fold, dtype):
    problem = FOLDED[why].replace(dtype=dtype)
    for settings in ({}, {"x_bytes": 900}):
        check_exact(problem, config=config_of("implicit_gemm", fold=fold, **settings))


@pytest.mark.parametrize("why", FOLDED)
def test_epilogue_of_folded_channels(why):
    asked = {"bias": True, "residual": True, "beta": 2.0, "activation": "relu"}
    check_epilogue(FOLDED[why], asked, config_of("implicit_gemm", fold="both"))


@pytest.mark.cover(8)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("why", FOLDED)
def test_packed_filters_are_folded_too(why, lnc):
    problem = FOLDED[why].replace(dtype="fp32")
    x, w = integers(np.random.default_rng(6), problem)
    packed, expected = nkiconv.pack_filter(w), conv_ref(x, w, problem)
    for fold in ("none", "inputs", *(["both"] if 128 % packed.shape[-1] == 0 else [])):
        assert_exact(run(x, packed, problem, lnc, config=config_of("implicit_gemm", fold=fold)), expected, "fp32")


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", PROBLEMS)
def test_packed_filters_are_exact(name, lnc):
    problem = PROBLEMS[name].replace(dtype="fp32")
    x, w = integers(np.random.default_rng(8), problem)
    y = run(x, nkiconv.pack_filter(w), problem, lnc, config=config_of("implicit_gemm"))
    assert_exact(y, conv_ref(x, w, problem), "fp32")


def test_nothing_is_folded_where_zeros_may_not_be_multiplied():
    problem = cases.get("unet_320").problem
    for asked, fold in (({}, "both"), ({"strict_nonfinite": True}, "none")):
        assert completed(problem, asked=asked)["fold"] == fold


@pytest.mark.parametrize(("problem", "changes", "fold", "message"), [
    (M_TILES.replace(C=256), {}, "inputs", "config fold=inputs: needs C=256 with 1 to 64 channels"),
    (M_TILES, {}, "inputs", None),
    (M_TILES.replace(S=1), {}, "inputs", "several columns of taps"),
    (M_TILES.replace(lhs_dilation=(1, 2)), {}, "both", "no lhs_dilation of columns"),
    (M_TILES.replace(K=256), {}, "outputs", "config fold=outputs: needs K=256 with 1 to 64 channels"),
    (M_TILES.replace(R=1), {}, "outputs", "that share rows of x"),
    (M_TILES, {"strict_nonfinite": True}, "inputs", "config fold=inputs: multiplies by zeros, which strict_nonfinite"),
    (M_TILES, {}, "all", r"config fold=all: must be one of \('none', 'inputs', 'outputs', 'both'\)"),
])  # fmt: skip
def test_what_cannot_be_folded(problem, changes, fold, message):
    if message is None:
        assert planned(problem, "implicit_gemm", (("fold", fold),), **changes)[1] == ""
    else:
        check_refused(problem, "implicit_gemm", message, {"fold": fold}, **changes)


@pytest.mark.slow
def test_folding_pays_where_channels_are_left_over():
    times = {}
    for fold in ("none", "inputs", "outputs", "both"):
        times[fold] = timeline(cases.get("unet_320").problem, 2, fold=fold)[0].us
    assert times["both"] < 0.85 * times["none"]
    assert times["both"] < min(times["inputs"], times["outputs"])
    assert timeline(cases.get("unet_320").problem, 2)[0].us == times["both"]


@pytest.mark.simulator_only
@pytest.mark.parametrize("shard", ["channels", "images"])
def test_filters_of_very_many_channels_come_as_there_is_room(shard):
    problem = ConvProblem(N=1, C=12_000, H=8, W=8, K=64, R=3, S=3, padding=((1, 1), (1, 1)))
    execution = trace(problem, 2, config=config_of("implicit_gemm", shard=shard))
    assert execution.sbuf_peak_bytes <= SBUF_USABLE_BYTES_PER_PARTITION


def outputs_of(out_tile):
    images, rows, columns = ((out_tile.z0, out_tile.zn), (out_tile.p0, out_tile.pn), (out_tile.q0, out_tile.qn))
    return set(itertools.product(*(range(first, first + count) for first, count in (images, rows, columns))))


@pytest.mark.parametrize("why", [why for why, problem in EDGE.items() if problem.P * problem.Q < 5000])
def test_banks_of_all_out_tiles_cover_every_output_once(why):
    problem = EDGE[why]
    found, _ = planned(problem, "implicit_gemm")
    for batch in range(len(found.batches)):
        seen = []
        for item in (item for item in found.items if item.batch == batch):
            inner = []
            for bank in banks_of(item.out_tile, item.last):
                first = (item.out_tile.z0 + bank.z, item.out_tile.p0 + bank.p, item.out_tile.q0 + bank.q)
                counts = (bank.zn, bank.pn, bank.qn)
                assert bank.zn * bank.pn * bank.qn <= 512
                inner += itertools.product(*(range(f, f + c) for f, c in zip(first, counts, strict=True)))
            assert len(inner) == len(set(inner))
            assert set(inner) == outputs_of(item.out_tile)
            seen += inner
        assert len(seen) == len(set(seen)) == problem.N * problem.P * problem.Q


def test_a_single_row_is_shared_by_both_cores():
    """A row of outputs was one output tile, and a core had nothing to do."""
    found = chosen(cases.get("whisper_conv2_s2").problem)
    assert len(found.items) % 2 == 0


ROWS = ConvProblem(N=1, C=96, H=20, W=64, K=128, R=5, S=5, padding=((2, 2), (2, 2)), dtype="bf16")


@pytest.mark.parametrize("problem", [ROWS, ROWS.replace(H=6, W=9), ROWS.replace(H=2, W=3, N=3)])
def test_rows_are_shared_evenly(problem):
    """Three banks were one for a core and two for the other, and a single one left a core without work."""
    found, _ = planned(problem, "implicit_gemm")
    half = len(found.items) // 2
    mine, other = (
        sum(item.out_tile.zn * item.out_tile.pn * item.out_tile.qn for item in items)
        for items in (found.items[:half], found.items[half:])
    )
    assert half > 0
    assert 0 <= other - mine <= problem.P * problem.Q if problem.N > 1 else abs(other - mine) <= problem.Q


def test_m_tiles_of_unequal_work_are_not_shared():
    """A folded M tile takes less than another: a core each would leave one of them idle."""
    found = chosen(FOLDED["both"].replace(N=4, H=100, W=56, dtype="bf16"))
    assert len(found.batches) == 1


@pytest.mark.simulator_only
def test_filters_that_are_long_on_their_way_leave_no_second_window_at_half_rate():
    timed, _ = timeline(ROWS, 2)
    assert [full for _, full in timed.line.throttle_changes[0]] == [False, True]
    assert timed.line.throttle_changes[0][1][0] < 3500


def test_rows_that_are_all_but_whole_come_whole():
    """A load of 55 of 56 columns was a run of 110 bytes a row."""
    problem = cases.get("rn50_proj_s2").problem
    for found in (chosen(problem), planned(problem, "implicit_gemm")[0]):
        assert {item.out_tile.wn for item in found.items} == {56}


def test_x_of_another_batch_is_not_loaded_again():
    problem = cases.get("unet_1280").problem
    execution = trace(problem, 2, config=config_of("implicit_gemm", **completed(problem)))
    ten = [i for i in execution.programs[0].instructions if i.op == "dma_copy" and i.reads[0].shape[1:] == (2, 16, 16)]
    assert len([i for i in ten if i.writes[0].info.on_chip]) == 10


#: x of fp32 that SBUF has no room for, and the array takes like 16 bits.
LARGE = ConvProblem(N=1, C=128, H=256, W=512, K=128, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32")


@pytest.mark.simulator_only
def test_the_array_does_not_wait_for_out_tiles_that_wait_for_room():
    """A second load of each output tile would come after those of the output tiles after it."""
    timed, array = timeline(LARGE, 2, precision="tf32")
    line, half = timed.line, len(array) // 2
    for before, after in itertools.pairwise(array[half // 4 :]):
        assert line.start[after] - line.free[before] < 1000


def test_rows_of_a_first_bank_of_pairs_come_together():
    """Two rows of outputs at once: a bank is pairs of rows, and the first load is all that it needs."""
    problem = ConvProblem(N=4, C=155, H=31, W=31, K=56, R=3, S=1, padding=((1, 1), (0, 0)), dtype="fp32")
    found, _ = planned(problem, "implicit_gemm")
    m_tile, out_tile = found.batches[0][0], found.items[0].out_tile
    assert m_tile.rows == 2
    first = row_parts(geometry_of(problem), out_tile, True, m_tile.rows)[0]
    assert first == (0, min(out_tile.hn, 2 * bank_rows(out_tile) + 1))


@pytest.mark.parametrize("value", [-1, 4097, 1.0, True])
def test_moved_is_checked(value):
    check_refused(M_TILES, "implicit_gemm", r"config moved=.*must be an int from 0 to 4096", {"moved": value})


@pytest.mark.parametrize("problem", [M_TILES.replace(dtype="fp32"), EDGE["groups"]])
def test_dma_transposes_only_what_it_can(problem):
    message = "config moved=1: DMA transposes plain filters of 16 bits and one group only"
    check_refused(problem, "implicit_gemm", message, {"moved": 1})


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_relu_is_read_out_by_both_engines_and_keeps_nan(bias, strict):
    """Scalar alone read all sums out where there was a relu; Vector's maximum with 0 is one too."""
    problem = ConvProblem(N=1, C=4, H=40, W=40, K=5, R=3, S=3, dtype="fp32")
    x, w = integers(np.random.default_rng(7), problem)
    x[0, 2, 30, 7] = np.nan
    more = {"activation": "relu", "strict_nonfinite": strict}
    if bias:
        more["bias"] = np.arange(-2, 3).astype(np.float32)
    plain = run(x, w, problem, 2, config=config_of("implicit_gemm", fold="none"))
    expected = np.maximum(plain + more.get("bias", np.zeros(5, np.float32))[:, None, None], 0)
    assert np.isnan(expected).any()
    for lnc in cores():
        y = run(x, w, problem, lnc, config=config_of("implicit_gemm", fold="none"), **more)
        np.testing.assert_array_equal(y, expected)
    execution = trace(problem, 1, config=config_of("implicit_gemm", fold="none"), **more)
    ops = {i.op for i in execution.programs[0].instructions if i.op in ("activation", "tensor_scalar")}
    assert ops == ({"activation"} if strict else {"activation", "tensor_scalar"})


@pytest.mark.slow
def test_filters_of_the_next_batch_fit_beside_those_of_one():
    """7 K tiles of inputs and 49 taps: an M tile's filters fill 88 kB, and so do those that are transposed ahead."""
    problem = ConvProblem(N=1, C=829, H=37, W=56, K=773, R=7, S=7, padding=((3, 3), (3, 3)))
    for settings in ({}, completed(problem)):
        found, reason = planned(problem, "implicit_gemm", tuple(settings.items()))
        assert reason == ""
        assert len(found.batches) > 2
        execution = trace(problem, 2, config=config_of("implicit_gemm", **settings))
        assert execution.sbuf_peak_bytes <= found.sbuf_bytes


@pytest.mark.parametrize("name", ["filter_bytes", "channels", "wide", "whole"])
def test_settings_that_were_removed_are_refused_by_name(name):
    found, reason = planned(M_TILES, "implicit_gemm", ((name, 64),))
    assert (found, reason) == (None, f"config {name}: was removed from implicit_gemm; leave it out")


def test_rows_wider_than_a_bank_are_stored_whole():
    """In a device loop stores wait for each other, as a register says where they go: one a bank held up the array."""
    problem = ConvProblem(N=1, C=8, H=65, W=1024, K=16, R=1, S=1, dtype="bf16")
    execution = trace(problem, 1, config=config_of("implicit_gemm", fold="none", x_bytes=8192, loop=1))
    program = execution.programs[0]
    stores = [one for one in program.instructions if one.op == "dma_copy" and not one.writes[0].info.on_chip]
    whole = [one for one in stores if one.bytes % (problem.K * problem.Q * problem.itemsize) == 0]
    assert len(whole) >= len(stores) - 4
