"""Estimates look at so much of a problem, whatever its size; their clock, bounds, floors and counts of instructions are
near timelines and traces; too many instructions are refused. The golden table is of this code on a sample.
"""

import dataclasses
import functools
import math
import random
import re
import statistics

import big_problems
import numpy as np
import pytest
import random_problems
from commands import of_command
from requested import core_us, requested

import nkiconv
import nkiconv.axis
from nkiconv import ConvProblem, UnsupportedError, cases, simulate
from nkiconv.kernels.floors import copy_floor, launch_floor
from nkiconv.planner import child, clock, parts
from nkiconv.planner import estimate as estimates
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.entry import estimated
from nkiconv.planner.estimate import chosen
from nkiconv.planner.floors import TILE_BYTES, floors
from nkiconv.planner.operations import operation_for, operation_of
from nkiconv.planner.parts import part_of, pieces_of
from nkiconv.planner.plan import Estimate
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.timing import trace
from nkiconv.schedules import b2b, long_kernels, pointwise_mlp, split
from nkiconv.schedules.geometry import Axis
from nkiconv.schedules.long_kernels import ISSUE_NS, TILE_INSTRUCTIONS, too_long, too_many, too_many_tiles
from nkiconv.schedules.settings import WARM_UP_MAX
from nkiconv.simulator import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import PriceList, Rates

pytestmark = pytest.mark.simulator_only

#: What no algorithm runs: too many instructions, or one output's window does not fit.
REFUSED = ("9.6 M samples, 255 taps, rows, wgrad", "stride 200, 200 x 200 taps, transposed", "FCN-32s, 21 groups",
           "7 x 304 taps far apart", "10,000 x 10,000, 255 x 255 taps")  # fmt: skip


@pytest.mark.cover(0, keep=["1,048,576 filters", "1,024 rows of 128 taps, NHWC, dgrad", "FCN-32s, 21 groups",
                            "20,000 x 20,000 rows, wgrad", "7 x 304 taps far apart"])  # fmt: skip
@pytest.mark.parametrize("name", big_problems.BIG)
def test_estimates_of_big_problems(quickly, name):
    """Chosen or refused by name, from at most so many pieces."""
    request = Request(problem=big_problems.BIG[name]())
    part, times = part_of(request.problem, request.asked, operation_for(request).kept)
    one_input = math.prod(part.input_shape[2:]) == 1  # whose outputs are not cut
    assert pieces_of(part) <= 2 * parts.PIECES or operation_for(request).kept or one_input
    assert (times > 1) == (part != request.problem)
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=r"instructions on a core|of SBUF"):
            estimated(request)
    else:
        assert estimated(request).config


def test_settings_that_the_kernel_refuses_for_the_whole_are_not_taken(monkeypatch):
    request, operation, shape = requested(ConvProblem(N=1, C=3, K=16, H=9, W=9, R=3, S=3))
    refused = Estimate("weight_stationary", (("rows", 10**6),))
    monkeypatch.setattr(estimates, "chosen", lambda _: refused)
    found = estimates.estimate(request, use_cache=False)
    assert operation.kernel_reason(refused.algorithm, shape, refused.config)
    assert not operation.kernel_reason(found.algorithm, shape, found.config)


def test_given_sizes_of_k_packing_have_their_own_bound():
    """A video's order of sums gives them: the best filters for them are those of the free choice."""
    size = {"N": 4, "C": 8, "D": 10, "H": 43, "W": 73, "K": 3, "T": 2, "R": 7, "S": 7, "stride": (1, 2, 2)}
    _, operation, shape = requested(ConvProblem(padding=((1, 0), (3, 3), (3, 3)), **size))
    stacked = operation.known["stacked"]
    free = stacked.guess(shape, None)
    sizes = tuple(pair for pair in free.config if pair[0] in ("rows", "shifts", "outputs", "beside", "apart"))
    assert dict(free.config)["filters"] == "straight"
    assert stacked.guess(shape, sizes) == free


@pytest.mark.parametrize("operation", ["conv2d", "conv3d"])
def test_candidates_above_other_algorithms_are_not_scheduled_and_no_others(operation):
    """Guesses near the least are those near the least of all."""
    for problem in random_problems.OF[operation](7, 61):
        _, of_problem, shape = requested(problem)
        near, every = (of_problem.near_least(shape, of_problem.algorithms, most) for most in (clock.NEAR, math.inf))
        least_ns = min(guess.ns for _, guess in every)
        assert near == [one for one in every if one[1].ns <= clock.NEAR * least_ns]


@pytest.mark.parametrize("operation", random_problems.OF)
def test_parts(monkeypatch, operation):
    """A part has no more of anything, the same filter and the same epilogue; settings for it run the whole."""
    monkeypatch.setattr(parts, "PIECES", 40)
    count = 0
    for problem in random_problems.OF[operation](12, 3):
        request, whole_of, shape = requested(problem)
        part, times = part_of(problem, Asked(), whole_of.kept)
        for name in ("N", "C", "K", "H", "W", "P", "Q", "Z"):
            assert getattr(part, name) <= getattr(problem, name)
        assert (part.R, part.S, part.T, part.stride) == (problem.R, problem.S, problem.T, problem.stride)
        if times > 1:
            count += 1
            algorithm, config = whole_of.choice(request, shape)
            assert not whole_of.kernel_reason(algorithm, shape.whole, config), (problem, algorithm, config)
    assert count > 0


def drawn_axis(rng):
    """An Axis of any small numbers that has outputs."""
    while True:
        size, taps, stride, apart = rng.randint(1, 20), rng.randint(1, 6), rng.randint(1, 7), rng.randint(1, 4)
        spread, lo, hi = rng.choice([1, 1, 2, 3, 6]), rng.randint(-6, 8), rng.randint(-6, 8)
        out = ((size - 1) * spread + 1 + lo + hi - (taps - 1) * apart - 1) // stride + 1
        if out >= 1:
            return Axis(size=size, taps=taps, out=out, stride=stride, dilation=apart, lhs_dilation=spread, before=lo)


def test_products_and_inputs_met_are_counted_by_arithmetic():
    """Against each output and tap one by one; of the largest numbers at once."""
    rng = random.Random(7)
    for _ in range(400):
        axis = drawn_axis(rng)
        after = (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1
        after -= axis.before + (axis.size - 1) * axis.lhs_dilation + 1
        one = nkiconv.axis.Axis(axis.size, axis.taps, axis.stride, axis.before, after, axis.dilation, axis.lhs_dilation)
        places = [q * one.stride + tap * one.rhs_dilation - one.lo for q in range(one.out) for tap in range(one.taps)]
        meets = [place // one.lhs_dilation for place in places if place % one.lhs_dilation == 0]
        assert one.products == len(meets)
        assert one.num_read == len({element for element in meets if 0 <= element < one.size})
    huge = nkiconv.axis.Axis(9, 3, 1, 2**30, 2**30 - 99, 1, 2)
    assert nkiconv.axis.Axis(2**30 + 1, 3, 2**29, 0, 0, 2**28, 1).num_read == 5  # two windows share an input
    assert (huge.num_read, huge.products) == (9, (huge.out * 3 + 1) // 2)


def launch_of(problem, algorithm=None, config=None, lnc=2):
    request = Request(problem=problem, lnc=lnc)
    operation = operation_for(request)
    if algorithm is None:
        found = chosen(request)
        algorithm, config = found.algorithm, found.config
    return operation.kernel[lnc], *operation.launch(request, algorithm, config)


def both_cores_us(launch):
    kernel, args, kwargs = launch
    return in_time(execute(kernel, args, kwargs, trace_only=True), Rates()).us


@pytest.mark.cover(1)
@pytest.mark.parametrize("operation", random_problems.OF)
def test_core_1_takes_no_more_than_both_cores(operation):
    """Core 0 may have more to do than core 1; both share the HBM's rate, of which core 1 has at least half: 1.003 of
    the time of both at most, here."""
    for problem in random_problems.OF[operation](1, 46):
        launch = launch_of(problem)
        assert core_us(launch, Rates(), 50_000) <= 1.01 * both_cores_us(launch), problem


def test_matmuls_on_zeros_are_no_more_than_a_kernel_takes(monkeypatch):
    """A setting counts those of both places: each wait may take all, not both together."""
    monkeypatch.setattr(clock.Probe, "fill", lambda *_: WARM_UP_MAX)
    problem = ConvProblem(N=1, C=128, H=16, W=16, K=3, R=3, S=3, padding=((1, 1), (1, 1)))
    _, operation, shape = requested(problem)
    config = operation.complete("weight_stationary", shape, None)
    config = clock.with_counts(config, (clock.PROBE, clock.PROBE))
    launch = launch_of(problem, "weight_stationary", config)
    execution, rates = clock.core_trace(launch, Rates(), None, cut=False)
    probe = clock.Probe(execution, PriceList(rates), config)
    assert len(probe.places) == 2
    assert max(map(sum, probe.lines)) == WARM_UP_MAX


def test_bounds_ask_for_no_more_matmuls_on_zeros_than_a_kernel_takes():
    """The Tensor Engine waits for filters longer than as many last."""
    _, operation, shape = requested(cases.get("big_filter").problem.replace(C=32))
    assert dict(operation.complete("weight_stationary", shape, None))["warmup"] == WARM_UP_MAX


def test_a_candidate_that_breaks_a_rule_is_passed_over():
    """It was chosen where one other candidate was left."""
    problem = cases.get("rn50_c4").problem
    found = chosen(Request(problem=problem))
    broken, whole = ("implicit_gemm", (("x_bytes", 1),)), (found.algorithm, found.config)
    launch = functools.partial(launch_of, problem)
    assert clock.fastest([broken, whole], launch, Rates()) == whole
    assert clock.fastest([broken, broken], launch, Rates()) == broken


def test_a_single_candidate_without_matmuls_on_zeros_is_not_timed():
    def launch(*_):
        raise AssertionError

    only = ("implicit_gemm", (("x_bytes", 1),))
    assert clock.fastest([only], launch, Rates()) == only
    with pytest.raises(AssertionError):
        clock.fastest([("implicit_gemm", (("warmup", 1),))], launch, Rates())


def test_the_clock_overrules_cost_models():
    """stacked is the first by cost models, and 1.3 times slower with its settings."""
    problem = ConvProblem(N=2, C=40, W=4363, K=26, S=7, stride=(1, 2), padding=((0, 0), (3, 3)))
    request, operation, shape = requested(problem)
    ranked = operation.ranked(shape)
    times = [both_cores_us(launch_of(problem, *one)) for one in ranked]
    found = chosen(request)
    assert found.algorithm == ranked[times.index(min(times))][0] != ranked[0][0]
    assert both_cores_us(launch_of(problem, found.algorithm, found.config)) < 0.95 * times[0]


def test_the_planners_own_process_chooses_alike():
    """It answers where AWS's NKI runs the kernels."""
    request = Request(problem=cases.get("mobilenet_dw").problem)
    try:
        assert child.estimate(request) == chosen(request)
    finally:
        child.stop()


@pytest.mark.parametrize(("N", "layout", "S", "name"), [
    (1, "NCHW", 4, "depthwise_conv1d"), (1, "NHWC", 40, "conv2d"), (64, "NHWC", 40, "depthwise_conv1d"),
    (1, "NHWC", 60, "depthwise_conv1d"),
])  # fmt: skip
def test_who_takes_rows(N, layout, S, name):
    """Images take few rows of few taps whose channels are last; chunks reach the kernel of rows."""
    problem = ConvProblem(N=N, C=160, W=640, S=S, groups=160, layout=layout)
    assert operation_for(Request(problem=problem)).name == name
    request = Request(problem=problem, asked=Asked(chunks="xG", bias=True))
    assert operation_for(request).arguments(request, None, None)[1]["chunks"] == "xG"


def test_the_dilation_of_one_tap_is_none():
    problem = ConvProblem(N=25, C=2329, W=29, S=1, groups=2329, dtype="fp16")
    both = problem, problem.replace(rhs_dilation=(1, 2))
    one, other = (operation.choice(request, shape) for request, operation, shape in map(requested, both))
    assert one == other
    one, other = (both_cores_us(launch_of(problem, "mixed", None)) for problem in both)
    assert one == other


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
@pytest.mark.parametrize(("name", "lnc", "bytes_per_ns"), [("mamba2_prefill", 2, 670.7), ("mamba2_prefill", 1, 415)])
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


def test_the_refusal_says_how_many_calls_are_enough():
    assert too_many("C=2, K=2: stacked", 5_000_000) == ""
    assert too_many("C=2, K=2: stacked", 12_000_001) == (
        "C=2, K=2: stacked needs about 12000001 instructions on a core, the compiler takes 5000000; split its images, "
        "rows, tokens or channels over 3 calls"
    )
    assert too_long("", 5e6 * ISSUE_NS) == ""
    assert "about 6000000 instructions" in too_long("", 6e6 * ISSUE_NS)
    assert too_many_tiles("", 2 * 5_000_000 // TILE_INSTRUCTIONS) == ""
    assert "over 2 calls" in too_many_tiles("", 4 * 4_500_000 // TILE_INSTRUCTIONS)


@pytest.mark.parametrize(("name", "algorithm"), [
    ("mobilenet_dw", "weight_stationary"), ("rn50_1x1", "implicit_gemm"), ("rn50_stem", "stacked"),
    ("convnext_dw7", "activation_stationary"), ("nkl_n1_c16_w512_s64", "banded"), ("nkl_n1_c256_w129_s128", "dot"),
    ("kda_bf16", "mixed"), ("kda_bf16", "vector"), ("decode_step", "update"),
])  # fmt: skip
def test_estimates_are_near_the_trace(name, algorithm):
    request = Request(problem=cases.get(name).problem)
    operation = operation_for(request)
    _, guess = operation.near_least(operation.whole_shape(request, Rates()), (algorithm,), math.inf)[0]
    true = trace(request, Candidate(algorithm, guess.config), Rates()).compiled / request.lnc
    # 0.84 to 4.2 of them: engines work at once, and some instructions are long
    assert 0.8 * true < guess.ns / ISSUE_NS < 4.5 * true


ROWS = ConvProblem(N=3, C=37, K=37, groups=37, W=211, S=5)
IMAGES = ConvProblem(N=3, C=24, K=24, groups=6, H=19, W=23, R=3, S=3)
CONV = ConvProblem(N=3, C=67, K=35, H=19, W=23, R=3, S=3)


# Algorithm, problem that no other test has, as its plans are kept.
@pytest.mark.parametrize(("algorithm", "problem"), [
    ("implicit_gemm", CONV), ("stacked", CONV), ("activation_stationary", CONV.replace(layout="NHWC")),
    ("weight_stationary", IMAGES), ("blocks", CONV.toward("wgrad")), ("diagonals", IMAGES.toward("wgrad")),
    ("skewed", ROWS.toward("wgrad")), ("banded", ROWS), ("vector", ROWS.toward("wgrad")),
])  # fmt: skip
def test_every_algorithm_refuses_too_many(algorithm, problem, change):
    is_rows = problem.W == ROWS.W and problem.direction != "forward"
    request = Request(problem=problem, operation="depthwise_conv1d_weight" if is_rows else None)
    operation = operation_for(request)
    change(long_kernels, "INSTRUCTIONS_MAX", 2)
    reason = operation.kernel_reason(algorithm, operation.whole_shape(request, Rates()), None)
    assert re.search(r"^\w+=\d+, .*: .* needs about \d+ instructions on a core, the compiler takes 2; split", reason)


def test_blocks_of_layers_refuse_too_many(change):
    change(long_kernels, "INSTRUCTIONS_MAX", 2)
    tokens = split.SplitGeometry(1, 64, 900, 4, ((1, 64, False),), 0, 1, 64, 2, split.rows_of(1, 900))
    for reason in (
        pointwise_mlp.unsupported_reason(pointwise_mlp.MlpGeometry(2, 96, 384, 96, 900, 2, 0)),
        b2b.unsupported_reason(b2b.B2bGeometry(2, 96, 900, 3, 7, 2)),
        split.tokens_unsupported(tokens),
    ):
        assert "instructions on a core, the compiler takes 2; split" in reason


#: Algorithm, problem, settings, and the least ratio of their bound to their time.
BOUNDED = {
    # these took 1.6, 1.2 and 1.2 times as long as other settings or algorithms
    "22 rows and one": ("implicit_gemm", ConvProblem(
        N=1, C=74, H=45, W=45, K=253, R=5, S=5, stride=(2, 2), padding=((2, 2), (2, 2)), dtype="fp32"),
        {"shard": "images", "fold": "inputs"}, 0.85),
    "128 channels and 50, two rows at once": ("implicit_gemm", ConvProblem(
        N=2, C=17, H=46, W=28, K=178, R=7, S=7, padding=((3, 3), (3, 3)), dtype="fp32"),
        {"shard": "channels", "fold": "both"}, 0.85),
    "two images and one": ("weight_stationary", ConvProblem(
        N=3, C=128, K=128, W=1024, S=5, padding=((0, 0), (2, 2))).toward("dgrad"),
        {"y_bytes": 16_384, "shard": "outputs"}, 0.85),
    # took 94 us, 71 by weight_stationary
    "loads of Toeplitz matrices": ("stacked", ConvProblem(
        N=2, C=641, K=641, groups=641, H=56, W=56, R=5, S=5, padding=((2, 2), (2, 2))), {}, 0.95),
    # of 480 channels, took 369 us, 228 by weight_stationary
    "half rate after loads of Toeplitz matrices": ("stacked", ConvProblem(
        N=1, C=96, K=96, groups=96, H=64, W=64, R=7, S=7, padding=((3, 3), (3, 3)), dtype="fp32"), {}, 0.9),
    # these took 53 us, 25 with planes of taps as channels
    "loads of filters for 40 rows of y": ("stacked", ConvProblem(
        N=2, C=1, K=37, D=19, H=37, W=63, T=3, R=3, S=3, padding=((1, 1),) * 3, dtype="fp16"),
        {"rows": 42, "shifts": 3, "outputs": 40, "beside": 1, "apart": 40, "blocks": 1, "rest": 0,
         "filters": "straight"}, 0.75),
}  # fmt: skip


def guess_of(problem, algorithm, config):
    """The guess with the least bound of those with a config."""
    _, operation, shape = requested(problem)
    return operation.known[algorithm].guess(shape, tuple(config.items()) or None)


@pytest.mark.parametrize(("algorithm", "problem", "config", "least"), BOUNDED.values(), ids=BOUNDED)
def test_bounds_are_near_the_time(algorithm, problem, config, least):
    guess = guess_of(problem, algorithm, config)
    us = trace(Request(problem=problem), Candidate(algorithm, guess.config), Rates()).us
    assert least * us < guess.ns / 1e3 < 1.1 * us


def test_copies_of_rows_that_are_stored_together_are_priced():
    """Blocks of four rows took 14.0 us, of two 11.9."""
    problem = ConvProblem(N=1, C=96, H=48, W=48, K=192, R=3, S=3, padding=((1, 1), (1, 1)), groups=6)
    sizes = [{"rows": 32, "height": rows, "width": 1} for rows in (2, 4)]
    two, four = (guess_of(problem, "weight_stationary", one).ns for one in sizes)
    assert 1.02 * two < four


golden = of_command("golden")


@pytest.mark.cover(1)
@pytest.mark.parametrize("way", ["default", "estimate", "timed"])
@pytest.mark.parametrize(
    "name", ["nkl_n1_c16_w512_s7", "kda_bf16", "rn50_c4", "vit_patch16", "sam_up", "1x1 wgrad bias"]
)
def test_a_sample_is_as_the_table_says(golden, name, way):
    assert golden.row_of(name, dict(golden.requests())[name], way) == golden.read()[name, way]


def test_kept_settings_are_run_in_place_of_a_choice(golden, monkeypatch):
    request, row = dict(golden.requests())["rn50_c4"], golden.read()["rn50_c4", "timed"]
    monkeypatch.setattr(nkiconv, "plan", None)
    assert golden.row_of("rn50_c4", request, "timed", row) == row


def test_the_table_has_every_problem_each_way(golden):
    assert set(golden.read()) == {(name, way) for name, _ in golden.requests() for way in golden.WAYS}


def of_operation(operation):
    """Those of an operation, also gradients by x, which transposed ones compute."""

    def taken(name, problem):
        found = operation_of(problem).name
        return operation == (found.replace("_transpose", "") if " dgrad " in name else found)

    return taken


#: Whose times, how they were chosen, of how many at least: their geometric mean and the worst over the timed plan's.
#: NHWC of large depthwise filters and strided stems are the worst of gradients.
NEAR_TIMED = {
    "rows": (of_operation("depthwise_conv1d"), "default", 150, 1.10, 2.4),
    "images": (of_operation("conv2d"), "default", 150, 1.10, 2.4),
    "filter gradients": (of_operation("conv2d_weight"), "default", 26, 1.4, 2.2),
    "transposed": (lambda name, _: name in cases.names("conv_transpose"), "estimate", 13, 1.05, 1.15),
}


@pytest.mark.parametrize("which", NEAR_TIMED)
def test_choices_without_a_search_are_near_the_timed_plan(golden, which, record_property):
    (taken, way, count, mean, worst), rows = NEAR_TIMED[which], golden.read()
    names = [name for name, problem in golden.problems() if taken(name, problem) and rows[name, "timed"].us]
    times = [float(rows[name, way].us) / float(rows[name, "timed"].us) for name in names]
    record_property(f"{way} over timed", f"{statistics.geometric_mean(times):.4f}, worst {max(times):.3f}")
    assert len(times) >= count
    assert statistics.geometric_mean(times) <= mean
    assert max(times) <= worst


measured = of_command("validation", "measured")
modelled = of_command("validation", "modelled")
#: Rows of classes that constants were not read off, and the least and most that the model may take for them.
NEAR = [("m 2, n 1, k 8", 0.95, 1.05), ("m 2, n 6, k 4", 0.93, 1.07), ("copy of 4096 x 128", 0.95, 1.05)]


@pytest.mark.cover(0, keep=["copy of 4096 x 128"])
@pytest.mark.parametrize(("what", "least", "most"), NEAR, ids=[row[0] for row in NEAR])
def test_hardware_made_descriptors_take_what_was_measured(measured, modelled, what, least, most):
    sources = [source for source in measured.read() if "chipboost" in source.name]
    for source in sources:
        rows = tuple(row for row in source.rows if row.what == what)
        for found in modelled.outcomes(dataclasses.replace(source, rows=rows), None, {}):
            assert least < 1 + found.error < most
            assert least < 1 + found.ahead_error < most
            return
    pytest.fail("no such row")
