"""Output tiles, and steps of rows of y, that are alike, in a loop on the device: the same bits, fewer instructions."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import check_exact, config_of, planned, volume
from conv_rows import GEMM, PIXELS
from depthwise import same_bits
from requested import requested

import nkiconv
from nkiconv import cases
from nkiconv.kernels.conv import conv2d_implicit_gemm, conv3d_implicit_gemm
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.request import Request
from nkiconv.planner.timing import trace
from nkiconv.problem import ConvProblem
from nkiconv.schedules import implicit_gemm_schedule, long_kernels, volume_rows
from nkiconv.simulator.iterations import num_compiled
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
ONE = ((0, 0), (1, 1), (1, 1))
FLAT = ((0, 0), (0, 0), (1, 1))
ROW = (1, 20, 4, 60, 24), (24, 20, 3, 3, 3), ONE
#: Why it is here: shape of x, of w, padding, what else is passed, settings, loops of core 0 of two.
TILES = {
    "images": ((3, 20, 40, 24), (24, 20, 3, 3), ONE[1:], {}, {"x_bytes": 256}, 2),
    "whole images": ((72, 20, 6, 5), (24, 20, 3, 3), ONE[1:], {}, {"x_bytes": 256}, 1),
    "rows apart": ((1, 20, 97, 24), (24, 20, 3, 3), ONE[1:], {"stride": (2, 1)}, {"x_bytes": 256}, 1),
    "rows left out": ((1, 5, 63, 160), (8, 5, 1, 1), ((0, 0), (0, 0)), {"stride": (2, 2)}, {"x_bytes": 320}, 1),
    "parts of rows": ((1, 20, 60, 102), (24, 20, 3, 3), ((0, 0), (0, 0)), {}, {"x_bytes": 256, "loop": 2}, 1),
    "no padding": ((1, 20, 60, 24), (24, 20, 3, 3), ((0, 0), (0, 0)), {}, {"x_bytes": 256}, 1),
    "between zeros": ((1, 20, 60, 24), (24, 20, 3, 3), ONE[1:], {"lhs_dilation": (2, 1)}, {"x_bytes": 256}, 1),
    "folded": ((1, 40, 80, 24), (40, 40, 3, 3), ONE[1:], {}, {"x_bytes": 300, "fold": "both"}, 1),
    "groups": ((1, 24, 60, 24), (24, 6, 3, 3), ONE[1:], {"feature_group_count": 4}, {"x_bytes": 256}, 1),
    "M tiles": ((1, 140, 50, 20), (260, 140, 3, 2), ONE[1:], {}, {"x_bytes": 400}, 1),
    "channels shared": ((1, 140, 50, 20), (260, 140, 3, 2), ONE[1:], {}, {"x_bytes": 400, "shard": "channels"}, 1),
    "K tiles outside": ((1, 140, 50, 20), (200, 140, 3, 2), ONE[1:], {}, {"x_bytes": 400, "order": "chunks"}, 1),
    "volumes": ((1, 20, 6, 40, 24), (24, 20, 3, 3, 3), ONE, {}, {"x_bytes": 1024}, 2),
    "two volumes": ((2, 20, 4, 40, 24), (24, 20, 3, 3, 3), ((1, 1), *ONE[1:]), {}, {"x_bytes": 1024}, 4),
    "planes as channels": ((1, 20, 6, 40, 24), (24, 20, 3, 3, 3), ONE, {}, {"x_bytes": 256, "planes": "channels"}, 2),
    "four bands": ((1, 20, 90, 24), (24, 20, 3, 3), ONE[1:], {}, {"x_bytes": 256, "loop": 2}, 1),
}
#: The same with settings that follow from the shape in other problems (segments, parts).
ROWS = {
    "rows": (*ROW, {}, {}, 1),
    "segments": ((1, 20, 4, 90, 24), *ROW[1:], {}, {"segments": 3}, 1),
    "an odd row": ((1, 20, 4, 71, 24), *ROW[1:], {}, {"segments": 2}, 1),
    "riders": ((1, 96, 3, 60, 10), (20, 96, 3, 3, 3), ONE, {}, {}, 1),
    "copies": ((1, 40, 3, 60, 10), (20, 40, 3, 3, 3), ONE, {}, {"copies": 3}, 1),
    "two volumes in parts": ((2, 20, 4, 40, 140), ROW[1], ((1, 1), *ONE[1:]), {}, {"parts": 2, "depth": 2}, 8),
    "several tiles": ((1, 20, 3, 40, 300), *ROW[1:], {}, {}, 1),
    "strides": ((1, 20, 4, 97, 24), *ROW[1:], {"stride": (1, 2, 2)}, {}, 1),
    "rows between": ((1, 20, 4, 161, 24), *ROW[1:], {"stride": (1, 2, 1), "rhs_dilation": (1, 3, 1)}, {}, 1),
    "one row of taps": (ROW[0], (24, 20, 3, 1, 3), FLAT, {}, {}, 1),
    "rows that nothing sees": ((1, 20, 4, 150, 24), (24, 20, 3, 2, 3), FLAT, {"stride": (1, 3, 1)}, {}, 1),
    "two rotations": ((1, 20, 4, 80, 24), *ROW[1:], {}, {"loop": 2}, 1),
}
#: What else may be asked for.
ASKED = {
    "plain": {},
    "bias and activation": {"bias": True, "activation": "gelu"},
    "frames": {"frames": 2},
    "fp32": {"dtype": np.float32},
    "fp32 as bf16": {"dtype": np.float32, "precision": "bf16"},
    "x with channels last": {"in_perm": (0, 4, 1, 2, 3)},
    "residual": {"residual": True, "beta": -0.5, "bias": True, "activation": "silu"},
    "residual and norm": {"residual": True, "bias": True, "y_norm": "rms", "return_before_norm": True},
}
CALLS = [(why, "plain") for why in (*TILES, *ROWS)]
CALLS += [
    (why, one) for why in ("images", "folded", "groups", "volumes") for one in ("bias and activation", "residual")
]
CALLS += [("images", "fp32 as bf16"), ("volumes", "frames"), ("planes as channels", "frames")]
CALLS += [("rows", one) for one in (*ASKED,)[1:]]


def call(why, loop, dtype=ml_dtypes.bfloat16, frames=0, **more):
    """(kernel, x, w, the other arguments) of a row."""
    x_shape, w_shape, padding, places, given, _ = {**TILES, **ROWS}[why]
    rng = np.random.default_rng(5)
    if "in_perm" in more:
        x_shape = tuple(x_shape[axis] for axis in np.argsort(more["in_perm"]))
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape))
    settings = {name: value for name, value in given.items() if name not in ("segments", "parts")}
    more |= {"padding": padding, "algorithm": GEMM if why in TILES else PIXELS, **places}
    more["config"] = tuple({**settings, "loop": given.get("loop", 1) if loop else 0}.items())
    if "bias" in more:
        more["bias"] = rng.standard_normal(w_shape[0]).astype(np.float32)
    if frames:
        more["initial_frames"] = rng.standard_normal((*x_shape[:2], frames, *x_shape[3:])).astype(dtype)
    kernel = conv2d_implicit_gemm if len(x_shape) == 4 else conv3d_implicit_gemm
    if "residual" in more:
        without = {name: value for name, value in more.items() if name in ("padding", "algorithm", "config", *places)}
        shape = nkiconv.simulator.execute(kernel[2], (x, w), without, trace_only=True).outputs.shape
        more["residual"] = rng.standard_normal(shape).astype(np.float32)
    return kernel, x, w, more


@pytest.mark.cover(6, keep=["images-fp32 as bf16", "rows-plain", "rows left out-plain", "parts of rows-plain"])
@pytest.mark.parametrize(("why", "asked"), CALLS)
def test_bits_are_those_of_the_unrolled_kernel(why, asked, change):
    given, loops = {**TILES, **ROWS}[why][-2:]
    change(volume_rows, "fewest_tiles", lambda geometry: given.get("segments", 1))
    change(volume_rows, "PARTS_TRIED", (given.get("parts", 1),))
    programs, found = [], []
    for loop in (False, True):
        kernel, x, w, more = call(why, loop, **ASKED[asked])
        programs.append(nkiconv.simulator.execute(kernel[2], (x, w), more, trace_only=True).programs[0])
        results = [nkiconv.simulate(kernel[lnc])(x, w, **more) for lnc in ((1, 2) if loop else (2,))]
        found += [one if isinstance(one, tuple) else (one,) for one in results]
    for other in found[1:]:
        assert all(map(same_bits, found[0], other))
    unrolled, looped = programs
    assert len(unrolled.repeated) == 0
    assert len(looped.repeated) == loops or asked != "plain"
    assert looped.repeated
    assert num_compiled(looped) < len(unrolled.instructions)


ONE_TAP = (1, 1, 1, 1, 1, 0, 0)


# Volumes whose loops once went wrong: C, K, groups, planes, rows, columns; segments of rows.
@pytest.mark.parametrize(("algorithm", "shape", "segments"), [
    (GEMM, (1, 1, 1, (1, 2, 1, 1, 1, 0, 2), (30, *ONE_TAP[1:]), (16, *ONE_TAP[1:])), 1),
    (PIXELS, (1, 2, 1, (2, 2, 1, 1, 1, 0, 0), (24, 2, 1, 2, 1, 0, 0), ONE_TAP), 1),
    (PIXELS, (3, 4, 1, (3, 2, 1, 1, 1, 0, 0), (30, 3, 2, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1, 1)), 2),
])  # fmt: skip
def test_volumes_whose_loops_once_went_wrong(algorithm, shape, segments, change):
    change(volume_rows, "fewest_tiles", lambda geometry: segments)
    more = {"x_bytes": 256, "planes": "channels"} if algorithm == GEMM else {}
    check_exact(volume(shape), config=config_of(algorithm, **more, loop=1))


#: x of its output tiles does not fit SBUF together.
TALL = ConvProblem(N=1, C=2, H=700, W=640, K=3, R=3, S=3, padding=ONE[1:])


@pytest.mark.parametrize(("loop", "most"), [(0, 2), (0, 16), (1, 3), (1, 16)])
def test_x_that_does_not_fit_rotates(loop, most, change):
    """Loads that wait for a buffer keep their order; of loads that wait for room later ones would overtake others."""
    change(implicit_gemm_schedule, "X_BUFFERS_MAX", most)
    settings = {"x_bytes": 8192, "loop": loop}
    schedule, _ = planned(TALL, GEMM, tuple(settings.items()))
    check_exact(TALL, config=config_of(GEMM, **settings))
    traced = trace(Request(problem=TALL), Candidate(GEMM, tuple(settings.items())), Rates())
    loads = [one.writes[0].info for one in traced.execution.programs[0].instructions if one.op == "dma_copy"]
    shape = (1, schedule.items[1].out_tile.hn, TALL.W)
    assert 0 < len({info.id for info in loads if info.shape[1:] == shape}) <= schedule.x_buffers
    assert schedule.x_buffers == most < len(schedule.items) // 4


def test_a_loop_needs_a_third_buffer_of_x(change):
    """x of the output tile after a loop is in the older one of its two, which the next load would overwrite."""
    change(implicit_gemm_schedule, "X_BUFFERS_MAX", 2)
    found = [planned(TALL, GEMM, (("x_bytes", 8192), ("loop", loop)))[0].x_buffers for loop in (0, 1)]
    assert found == [2, 0]


#: Kernels of many instructions, and of few, and whether the host and a bare kernel have a loop; the number of rotations
#: in a body is that of the problem, or of a part of it.
IMAGES = ConvProblem(N=1, C=96, H=2160, W=3840, K=96, R=3, S=3, padding=((1, 1), (1, 1)))
VIDEO = ConvProblem(N=1, C=96, D=6, H=720, W=1280, K=96, T=3, R=3, S=3, padding=ONE)
LOOPS = [
    (GEMM, IMAGES, True), (GEMM, IMAGES.replace(H=270, W=480), False), (PIXELS, VIDEO, True),
    (PIXELS, VIDEO.replace(H=90, W=160), False),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "problem", "loop"), LOOPS)
def test_many_instructions_ask_for_a_loop(algorithm, problem, loop):
    _, operation, shape = requested(problem)
    found = operation.complete(algorithm, shape, None)
    assert planned(problem, algorithm)[0].is_looped == (dict(found)["loop"] > 0) == loop


def test_a_residual_whose_loads_wait_in_a_loop_has_none():
    """In a loop, where each DMA waits for its address, those of three tensors take longer than a step's matmuls."""
    problem, plain = cases.get("wan_96").problem, {"bias": True, "y_norm": "rms"}
    for more, loop in (({}, 2), ({"residual": "pre_activation", "return_before_norm": True}, 0)):
        _, operation, shape = requested(problem, **plain, **more)
        assert dict(operation.complete(PIXELS, shape, None))["loop"] == loop


@pytest.mark.parametrize(("algorithm", "problem"), [row[:2] for row in LOOPS if row[2]])
def test_too_many_instructions_without_a_loop_are_refused(algorithm, problem, change):
    change(long_kernels, "INSTRUCTIONS_MAX", 10_000)
    assert "the compiler takes 10000;" in planned(problem, algorithm, (("loop", 0),))[1]
    assert planned(problem, algorithm, (("loop", 1),))[1] == ""
