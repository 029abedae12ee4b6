"""Steps of rows of y that are alike, in a loop on the device: the same bits, fewer instructions, as much time."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import planned
from depthwise import same_bits
from draws import draws
from hypothesis import example, given
from hypothesis import strategies as st
from implicit_gemm_calls import shape_of
from volumes import an_axis, check_volume, has_output, volumes

import nkiconv
from nkiconv.kernels.conv import conv3d_implicit_gemm
from nkiconv.planner.cost.conv import ALGORITHMS
from nkiconv.problem import ConvProblem
from nkiconv.schedules import volume_rows
from nkiconv.schedules.conv_algorithms import built
from nkiconv.schedules.volume_rows import row_instructions
from nkiconv.simulator.iterations import num_compiled

NAME = "activation_stationary"
pytestmark = pytest.mark.simulator_only
ONE = ((0, 0), (1, 1), (1, 1))
#: Why it is here: shape of x, of w, padding, what else is passed, settings with those that follow from the shape in
#: other problems (segments, parts), loops of each core of two.
LOOPED = {
    "rows": ((1, 20, 4, 60, 24), (24, 20, 3, 3, 3), ONE, {}, {"segments": 1}, 1),
    "segments": ((1, 20, 4, 90, 24), (24, 20, 3, 3, 3), ONE, {}, {"segments": 3}, 1),
    "an odd row": ((1, 20, 4, 71, 24), (24, 20, 3, 3, 3), ONE, {}, {"segments": 2}, 1),
    "riders": ((1, 96, 3, 60, 10), (20, 96, 3, 3, 3), ONE, {}, {"segments": 1}, 1),
    "copies": ((1, 40, 3, 60, 10), (20, 40, 3, 3, 3), ONE, {}, {"segments": 1, "copies": 3}, 1),
    "two volumes in parts": (
        (2, 20, 4, 40, 140), (24, 20, 3, 3, 3), ((1, 1), *ONE[1:]), {}, {"segments": 1, "parts": 2, "depth": 2}, 8
    ),
    "several tiles": ((1, 20, 3, 40, 300), (24, 20, 3, 3, 3), ONE, {}, {"segments": 1}, 1),
    "rows apart": ((1, 20, 4, 97, 24), (24, 20, 3, 3, 3), ONE, {"stride": (1, 2, 2)}, {"segments": 1}, 1),
    "rows between": (
        (1, 20, 4, 161, 24), (24, 20, 3, 3, 3), ONE, {"stride": (1, 2, 1), "rhs_dilation": (1, 3, 1)},
        {"segments": 1}, 1,
    ),
    "one row of taps": ((1, 20, 4, 60, 24), (24, 20, 3, 1, 3), ((0, 0), (0, 0), (1, 1)), {}, {"segments": 1}, 1),
    "rows that nothing sees": (
        (1, 20, 4, 150, 24), (24, 20, 3, 2, 3), ((0, 0), (0, 0), (1, 1)), {"stride": (1, 3, 1)}, {"segments": 1}, 1
    ),
    "two rotations": ((1, 20, 4, 80, 24), (24, 20, 3, 3, 3), ONE, {}, {"segments": 1, "loop": 2}, 1),
}  # fmt: skip


def traced(change, why, lnc, loop, frames=0, dtype=ml_dtypes.bfloat16, **more):
    """(records, y) of a problem of LOOPED."""
    x_shape, w_shape, padding, places, chosen, _ = LOOPED[why]
    rng = np.random.default_rng(5)
    x, w, before = (
        rng.standard_normal(shape).astype(dtype)
        for shape in (x_shape, w_shape, (*x_shape[:2], max(1, frames), *x_shape[3:]))
    )
    more |= {"padding": padding, "algorithm": NAME, **places}
    chosen = dict(chosen)
    segments, parts = chosen.pop("segments"), chosen.pop("parts", 1)
    change(volume_rows, "fewest_tiles", lambda geometry: segments)
    change(volume_rows, "PARTS_TRIED", (parts,))
    more["config"] = tuple({**chosen, "loop": chosen.get("loop", 1) if loop else 0}.items())
    if frames:
        more["initial_frames"] = before
    kernel = conv3d_implicit_gemm[lnc]
    return nkiconv.simulator.execute(kernel, (x, w), more, trace_only=True), nkiconv.simulate(kernel)(x, w, **more)


@pytest.mark.cover(1)
@pytest.mark.parametrize("why", LOOPED)
def test_bits_are_those_of_the_unrolled_kernel(why, change):
    unrolled, expected = traced(change, why, 2, loop=False)
    looped, y = traced(change, why, 2, loop=True)
    assert same_bits(y, expected)
    assert same_bits(traced(change, why, 1, loop=True)[1], expected)
    assert [len(one.repeated) for one in looped.programs] == [LOOPED[why][-1]] * 2
    for one, other in zip(looped.programs, unrolled.programs, strict=True):
        assert not other.repeated
        assert num_compiled(one) < len(other.instructions)


@pytest.mark.cover(1)
@pytest.mark.parametrize("more", [
    {"frames": 2},
    {"dtype": np.float32, "precision": "bf16"},
    {"dtype": np.float32},
    {"bias": np.arange(24, dtype=np.float32), "activation": "silu"},
    {"in_perm": (0, 4, 1, 2, 3), "shape": (1, 4, 60, 24, 20)},
], ids=str)  # fmt: skip
def test_whatever_else_is_asked_for(more, monkeypatch, change):
    more = dict(more)
    if "shape" in more:
        monkeypatch.setitem(LOOPED, "rows", (more.pop("shape"), *LOOPED["rows"][1:]))
    looped, y = traced(change, "rows", 2, loop=True, **more)
    assert looped.programs[0].repeated
    assert same_bits(y, traced(change, "rows", 2, loop=False, **more)[1])


def many_rows():
    """An axis of rows with many outputs."""
    small = (st.integers(1, most) for most in (3, 2, 2))
    around = st.integers(-1, 2), st.integers(-1, 2)
    return st.tuples(st.integers(24, 44), *small, st.just(1), *around).filter(has_output)


@draws(20)
@given(volumes(most_lhs=1), many_rows(), an_axis(1), st.integers(1, 3), st.integers(1, 2))
@example((1, 2, 1, (2, 2, 1, 1, 1, 0, 0), None, None), (24, 2, 1, 2, 1, 0, 0), (1, 1, 1, 1, 1, 0, 0), 1, 1)
@example((3, 4, 1, (3, 2, 1, 1, 1, 0, 0), None, None), (30, 3, 2, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1, 1), 2, 1)
def test_any_volume_is_exact(shape, rows, columns, segments, lnc):
    C, K, groups, planes, *_ = shape
    if planes[1] > 1 and K > 1:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(volume_rows, "fewest_tiles", lambda geometry: segments)
            built.cache_clear()
            shape = (C, K, groups, planes, rows, columns)
            check_volume(shape, lnc=lnc, algorithm=NAME, config=(("loop", 1),))
        built.cache_clear()


@pytest.mark.parametrize("loop", [-1, True, 65])
def test_other_values_are_refused(loop):
    assert planned(LONG, NAME, (("loop", loop),)) == (
        None, f"config loop={loop}: must be an int from 0 to 64",
    )  # fmt: skip


#: A kernel of many instructions, and one of few.
LONG = ConvProblem(N=1, C=96, D=6, H=720, W=1280, K=96, T=3, R=3, S=3, padding=ONE)
SHORT = LONG.replace(H=90, W=160)


def test_many_instructions_ask_for_a_loop():
    counts = {}
    for problem, loop in ((LONG, 2), (SHORT, 0)):
        shape = shape_of(problem)
        found = ALGORITHMS[NAME].complete(shape, None)
        assert dict(found)["loop"] == loop
        counts[loop] = row_instructions(shape.geometry, ALGORITHMS[NAME].plan(shape, found), shape.options, 2)
        assert (ALGORITHMS[NAME].plan(shape, found).steps is not None) == bool(loop)
    assert max(counts.values()) < 20_000
    assert not ALGORITHMS[NAME].is_short(shape_of(LONG), (("loop", 0),))


def test_a_bare_kernel_loops_where_the_host_does():
    assert planned(LONG, NAME)[0].loop == 2
    assert planned(LONG, NAME, (("loop", 0),))[0].steps is None
    assert planned(SHORT, NAME)[0].loop == 0
