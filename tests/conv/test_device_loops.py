"""Output tiles that are alike, worked on in a loop on the device: the same bits, fewer instructions, about the same
time."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import planned
from depthwise import same_bits
from draws import draws
from hypothesis import example, given
from hypothesis import strategies as st
from implicit_gemm_calls import completed
from volumes import check_volume, has_output, volumes

import nkiconv
from nkiconv.kernels.conv import conv2d_implicit_gemm, conv3d_implicit_gemm
from nkiconv.problem import ConvProblem
from nkiconv.schedules import geometry
from nkiconv.simulator.iterations import num_compiled

pytestmark = pytest.mark.simulator_only
ONE = ((0, 0), (1, 1), (1, 1))
#: Why it is here: shape of x, of w, padding, what else is passed, settings of the algorithm, loops of core 0 of two.
LOOPED = {
    "images": ((3, 20, 40, 24), (24, 20, 3, 3), ONE[1:], {}, {"x_bytes": 256}, 2),
    "whole images": ((72, 20, 6, 5), (24, 20, 3, 3), ONE[1:], {}, {"x_bytes": 256}, 1),
    "rows apart": ((1, 20, 97, 24), (24, 20, 3, 3), ONE[1:], {"stride": (2, 1)}, {"x_bytes": 256}, 1),
    "no padding": ((1, 20, 60, 24), (24, 20, 3, 3), ((0, 0), (0, 0)), {}, {"x_bytes": 256}, 1),
    "between zeros": ((1, 20, 60, 24), (24, 20, 3, 3), ONE[1:], {"lhs_dilation": (2, 1)}, {"x_bytes": 256}, 1),
    "folded": ((1, 40, 80, 24), (40, 40, 3, 3), ONE[1:], {}, {"x_bytes": 300, "fold": "both"}, 1),
    "groups": ((1, 24, 60, 24), (24, 6, 3, 3), ONE[1:], {"feature_group_count": 4}, {"x_bytes": 256}, 1),
    "several jobs": ((1, 140, 50, 20), (260, 140, 3, 2), ONE[1:], {}, {"x_bytes": 400}, 1),
    "several batches": (
        (1, 140, 50, 20), (260, 140, 3, 2), ONE[1:], {}, {"x_bytes": 400, "shard": "channels"}, 1
    ),
    "chunks outside": ((1, 140, 50, 20), (200, 140, 3, 2), ONE[1:], {}, {"x_bytes": 400, "order": "chunks"}, 1),
    "volumes": ((1, 20, 6, 40, 24), (24, 20, 3, 3, 3), ONE, {}, {"x_bytes": 1024}, 2),
    "two volumes": ((2, 20, 4, 40, 24), (24, 20, 3, 3, 3), ((1, 1), *ONE[1:]), {}, {"x_bytes": 1024}, 4),
    "planes as channels": ((1, 20, 6, 40, 24), (24, 20, 3, 3, 3), ONE, {}, {"x_bytes": 256, "planes": "channels"}, 2),
    "four bands": ((1, 20, 90, 24), (24, 20, 3, 3), ONE[1:], {}, {"x_bytes": 256, "loop": 2}, 1),
}  # fmt: skip
EPILOGUES = {
    "plain": {},
    "bias and activation": {"bias": True, "activation": "gelu"},
    "residual": {"residual": True, "beta": -0.5, "bias": True, "activation": "silu"},
}


def run(why, lnc, loop, dtype="bf16", trace_only=False, **epilogue):
    """y of a problem of LOOPED, or its records."""
    x_shape, w_shape, padding, places, given, _ = LOOPED[why]
    kernel = (conv2d_implicit_gemm, conv3d_implicit_gemm)[len(x_shape) - 4][lnc]
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
            for shape in (x_shape, w_shape))  # fmt: skip
    more = {"padding": padding, "algorithm": "implicit_gemm", **places, **epilogue}
    more["config"] = tuple({**given, "loop": given.get("loop", 1) if loop else 0}.items())
    if "bias" in epilogue:
        more["bias"] = rng.standard_normal(w_shape[0]).astype(np.float32)
    if "residual" in epilogue:
        spec = nkiconv.spec(x_shape, dtype), nkiconv.spec(w_shape, dtype)
        without = {name: value for name, value in more.items() if name not in EPILOGUES["residual"]}
        y = nkiconv.simulator.execute(kernel, spec, without, trace_only=True).outputs
        more["residual"] = rng.standard_normal(y.shape).astype(np.float32)
    if not trace_only:
        return nkiconv.simulate(kernel)(x, w, **more)
    return nkiconv.simulator.execute(kernel, (x, w), more, trace_only=True)


CALLS = [(why, "plain") for why in LOOPED]
CALLS += [(why, one) for why in ("images", "folded", "groups", "volumes") for one in EPILOGUES if one != "plain"]


@pytest.mark.cover(3)
@pytest.mark.parametrize(("why", "epilogue"), CALLS)
def test_bits_are_those_of_the_unrolled_kernel(why, epilogue):
    more = EPILOGUES[epilogue]
    expected = run(why, 2, loop=False, **more)
    for lnc in (1, 2):
        assert same_bits(run(why, lnc, loop=True, **more), expected)


@pytest.mark.cover(3)
@pytest.mark.parametrize("why", LOOPED)
def test_as_many_bodies_as_are_alike_are_seen_once(why):
    looped, unrolled = (run(why, 2, loop=one, trace_only=True) for one in (True, False))
    first = looped.programs[0]
    assert (len(first.repeated), len(unrolled.programs[0].repeated)) == (LOOPED[why][-1], 0)
    branches = sum(one.op == "loop_branch" for one in first.instructions)
    assert branches > 0
    assert num_compiled(first) < len(unrolled.programs[0].instructions)
    moved = [one for one in first.instructions if one.params.get("indirect")]
    assert {one.engine for one in moved} == {"dma"}
    assert sum(not one.writes[0].info.on_chip for one in moved) > 0


def test_fp32_comes_as_bf16_in_a_loop_too():
    expected = run("images", 2, loop=False, dtype="fp32", precision="bf16")
    assert same_bits(run("images", 2, loop=True, dtype="fp32", precision="bf16"), expected)


@pytest.mark.cover(1)
@pytest.mark.parametrize("given", [{"x_bytes": 1024}, {"x_bytes": 256, "planes": "channels"}])
def test_frames_in_front_move_with_x(given):
    rng = np.random.default_rng(6)
    shapes = (2, 20, 4, 40, 24), (24, 20, 3, 3, 3), (2, 20, 2, 40, 24)
    x, w, frames = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    found = []
    for loop in (0, 1):
        config = (*given.items(), ("loop", loop))
        more = {"padding": ((0, 0), *ONE[1:]), "initial_frames": frames, "config": config}
        kernel, more["algorithm"] = conv3d_implicit_gemm[2], "implicit_gemm"
        execution = nkiconv.simulator.execute(kernel, (x, w), more, trace_only=True)
        assert bool(execution.programs[0].repeated) == bool(loop)
        found.append(nkiconv.simulate(kernel)(x, w, **more))
    assert same_bits(*found)


@pytest.mark.cover(2)
@pytest.mark.parametrize("why", ["images", "several jobs", "volumes"])
def test_it_is_exact(why):
    x_shape, w_shape, padding, places, given, _ = LOOPED[why]
    C, K, axes = x_shape[1], w_shape[0], len(x_shape) - 2
    sizes = zip(x_shape[2:], w_shape[2:], padding, strict=True)
    rows = [(size, taps, 1, 1, 1, *around) for size, taps, around in sizes]
    assert not places
    check_volume((C, K, 1, *[(2, 1, 1, 1, 1, 0, 0)] * (3 - axes), *rows), config=(*given.items(), ("loop", 1)))


def an_axis_of(least, most):
    """(size, taps, stride, dilation, lhs_dilation, before, after) of so many elements."""
    small = (st.integers(1, most) for most in (3, 2, 2, 2))
    around = st.integers(-1, 2), st.integers(-1, 2)
    return st.tuples(st.integers(least, most), *small, *around).filter(has_output)


@draws(20)
@given(an_axis_of(1, 3), an_axis_of(30, 44), an_axis_of(16, 20), volumes(groups=(1, 2)), st.data())
@example((1, 2, 1, 1, 1, 0, 2), (30, 1, 1, 1, 1, 0, 0), (16, 1, 1, 1, 1, 0, 0), (1, 1, 1), None)
def test_any_volume_is_exact(planes, rows, columns, shape, data):
    """Many output tiles of rows, whatever else; planes of taps as channels too, where no plane of x may be seen."""
    C, K, groups, *_ = shape
    more = {"x_bytes": 256, "loop": 1}
    if planes[1] > 1 and groups == planes[4] == 1 and (data is None or data.draw(st.booleans())):
        more["planes"] = "channels"
    lnc, N = (1, 1) if data is None else data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    check_volume((C, K, groups, planes, rows, columns), lnc=lnc, N=N, config=tuple(more.items()))


#: What is asked for, and why that takes no loop.
REFUSED = [
    ({"dtype": "fp32", "precision": "fp16x3"}, "config loop=1: product=fp16x3 prepares x of an output tile .*; use 0"),
    ({"in_perm": (0, 3, 1, 2)}, "config loop=1: needs rows of x and y in HBM, not channels side by side; use 0"),
    ({"out_perm": (0, 2, 3, 1)}, "config loop=1: needs rows of x and y in HBM, not channels side by side; use 0"),
    ({"loop": -1}, "config loop=-1: must be an int from 0 to 64"),
    ({"loop": True}, "config loop=True: must be an int from 0 to 64"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_what_takes_no_loop_is_refused_by_name(more, message):
    more = dict(more)
    spec = [nkiconv.spec(shape, more.get("dtype", "bf16")) for shape in ((1, 8, 8, 8), (8, 8, 1, 1))]
    more.pop("dtype", None)
    config = (("loop", more.pop("loop", 1)),)
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match=message):
        nkiconv.simulator.execute(
            conv2d_implicit_gemm[2], spec, {"algorithm": "implicit_gemm", "config": config} | more, trace_only=True
        )


def test_pairs_of_fp8_take_no_loop():
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match="config loop=1: product=fp8"):
        nkiconv.simulator.execute(
            conv2d_implicit_gemm[2],
            [nkiconv.spec(shape, "fp8_e4m3") for shape in ((1, 256, 16, 16), (128, 256, 3, 3))],
            {"algorithm": "implicit_gemm", "config": (("loop", 1), ("product", "fp8_pairs"))},
            trace_only=True,
        )


#: A kernel of many instructions, and one of few.
LONG = ConvProblem(N=1, C=96, H=2160, W=3840, K=96, R=3, S=3, padding=((1, 1), (1, 1)))
SHORT = LONG.replace(H=270, W=480)


def counts(problem):
    """(settings, instructions of a core at most) as the host has them."""
    found = completed(problem)
    plan, reason = planned(problem, "implicit_gemm", tuple(found.items()))
    assert reason == ""
    return found, plan.instructions(2)


def test_many_instructions_ask_for_a_loop(change):
    found, looped = counts(LONG)
    assert planned(LONG, "implicit_gemm")[0].loop == found["loop"] == 1
    assert looped < 10_000
    assert counts(SHORT)[0]["loop"] == 0
    change(geometry, "INSTRUCTIONS_MAX", 100_000)
    assert "the compiler takes 100000" in planned(LONG, "implicit_gemm", (("loop", 0),))[1]
