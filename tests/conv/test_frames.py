"""Volumes in chunks: frames in front of x in a tensor of their own, final frames, by every algorithm and to the bit;
chunks round as all of a video does: the order of an output's sums is neither the depth's nor a bank's.
"""

import sys

import numpy as np
import pytest
from conv_calls import canonical_of, config_of, in_layout, integers, normals, run, volume
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_exact, integer_inputs

import nkiconv
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref

SIDES = (5, 2, 1, 1, 1, 1, 0), (6, 3, 1, 1, 1, 1, 1)
CHANNELS = {"planes": "channels"}
#: C, K, groups, algorithm, settings.
ALGORITHMS = {
    "implicit_gemm": (12, 16, 1, "implicit_gemm", {}),
    "implicit_gemm, chunks of channels": (130, 9, 1, "implicit_gemm", {}),
    "implicit_gemm, groups": (12, 8, 4, "implicit_gemm", {}),
    "folded": (40, 30, 1, "implicit_gemm", {"fold": "inputs"}),
    "planes as channels": (6, 8, 1, "implicit_gemm", CHANNELS),
    "planes of channels in two chunks": (50, 9, 1, "implicit_gemm", CHANNELS),
    "planes of channels, folded": (86, 30, 1, "implicit_gemm", CHANNELS | {"fold": "inputs"}),
    "planes of channels, two folded K tiles": (25, 30, 1, "implicit_gemm", CHANNELS | {"fold": "inputs"}),
    "stacked": (6, 16, 1, "stacked", {}),
    "stacked, planes as channels": (3, 8, 1, "stacked", CHANNELS),
    "stacked, depthwise": (7, 7, 7, "stacked", {}),
    "pixels": (12, 16, 1, "activation_stationary", {}),
    "few outputs": (20, 3, 1, "weight_stationary", {}),
    "few outputs, two planes at once": (20, 3, 1, "weight_stationary", {"depth": 2}),
    "few outputs, the same of uneven chunks": (49, 3, 1, "weight_stationary", {"depth": 2}),
    "groups": (12, 8, 4, "weight_stationary", {}),
    "the kernel's choice": (3, 8, 1, None, {}),
}
# why, volumes, frames, planes of x, taps, stride, dilation, lhs_dilation, zeros in front, behind
PLANES = [
    ("a cache as the window wants it", 1, 2, 4, 3, 1, 1, 1, 0, 0),
    ("several volumes, a short cache", 2, 1, 3, 3, 1, 1, 1, 1, 0),
    ("one plane at a time", 2, 2, 1, 3, 1, 1, 1, 0, 0),
    ("more frames than are seen", 1, 5, 2, 2, 1, 1, 1, -3, 1),
    ("stride and dilation", 2, 4, 6, 3, 2, 2, 1, 0, 0),
    ("nothing but frames is seen", 1, 3, 2, 2, 1, 1, 1, 0, -2),
]


def check(planes, C, K, groups, last, dtype="fp32", lnc=2, wanted=True, packed=False, **options):
    """A volume whose first F planes come as frames: y, and so many final frames."""
    N, F, D, *axis = planes
    problem = volume((C, K, groups, (F + D, *axis), *SIDES), dtype, N, last)
    x, w = integers(np.random.default_rng(5), problem)
    frames, rest = (np.ascontiguousarray(one) for one in np.split(x, [F], axis=1 if last else 2))
    if packed:
        given = nkiconv.pack_filter(w)
        given, options["packed"] = given.reshape(-1, *given.shape[2:]), True
    options |= {"initial_frames": frames, "return_final_frames": wanted, "out_dtype": nkiconv._nki.nl.float32}
    y, final = run(rest, given if packed else w, problem, lnc, **options)
    whole = canonical_of(x, problem)
    np.testing.assert_array_equal(y, in_layout(conv_ref(whole, w, problem), problem))
    count = min(F + D, (axis[0] - 1) * axis[2]) if wanted is True else wanted
    assert final.dtype == x.dtype
    np.testing.assert_array_equal(canonical_of(final, problem), whole[:, :, F + D - count :])


@pytest.mark.cover(22)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("planes", [row[1:] for row in PLANES], ids=[row[0] for row in PLANES])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_frames(name, planes, last, dtype):
    C, K, groups, algorithm, settings = ALGORITHMS[name]
    last = name == "pixels" or (last and not settings)
    check(planes, C, K, groups, last, dtype, config=config_of(algorithm, **settings))


@pytest.mark.cover(4)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("planes", [row[1:] for row in PLANES[:3]], ids=[row[0] for row in PLANES[:3]])
@pytest.mark.parametrize("channels", [(50, 16), (144, 48)])
def test_packed_filters_with_planes_as_channels(channels, planes, lnc):
    config = config_of("implicit_gemm", **CHANNELS)
    check(planes, *channels, 1, False, "bf16", lnc, packed=True, config=config)


@pytest.mark.cover(6)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("C", "wanted"), [(1, 1), (1, 3), (5, 2), (5, 4)])
@pytest.mark.parametrize("last", [False, True])
def test_any_number_of_final_frames(C, wanted, last, lnc):
    for N in (1, 2):
        check((N, 2, 2, 3, 1, 1, 1, 0, 0), C, 4, 1, last, lnc=lnc, wanted=wanted)


def test_one_tap_fp8_fp16_pairs_and_a_gap_between_planes():
    for N in (1, 2):
        check((N, 1, 3, 1, 1, 1, 1, 0, 0), 48, 24, 1, False, "fp8_e4m3", wanted=2)
        check((N, 3, 3, 1, 2, 1, 1, 0, 0), 12, 8, 1, True, wanted=2)
    check(PLANES[1][1:], 24, 32, 1, True, "fp8_e4m3")
    check((2, 1, 3, 2, 1, 1, 2, 1, 0), 6, 8, 1, False)
    check((1, 2, 3, 3, 1, 1, 1, 0, 0), 20, 24, 1, False, precision="fp16x3")


@pytest.mark.cover(2)
@pytest.mark.parametrize("layout", ["NCDHW", "NDHWC"])
@pytest.mark.parametrize(("channels", "groups", "frames", "stride"), [(16, 1, 2, 1), (16, 1, 1, 3), (6, 6, 3, 3)])
def test_one_plane_of_one_pixel(channels, groups, frames, stride, layout):
    """Channels of such an x are neighbours in HBM in either layout, those of several frames in one."""
    rng = np.random.default_rng(6)
    x, before = (integer_inputs(rng, (2, channels, planes, 1, 1), "bf16") for planes in (1, frames))
    w = integer_inputs(rng, (channels, channels // groups, 3, 1, 1), "bf16")
    places = {"padding": ((2, 0), (0, 0), (0, 2)), "stride": (1, 1, stride), "groups": groups}
    both = np.concatenate([before, x], 2)
    stored = [one if layout == "NCDHW" else np.moveaxis(one, 1, -1).copy() for one in (x, before)]
    whole = conv_ref(
        both, w,
        ConvProblem(N=2, C=channels, D=frames + 1, H=1, W=1, K=channels, T=3, R=1, S=1, **places),
    )  # fmt: skip
    for algorithm in (None, "implicit_gemm", "stacked"):
        y = nkiconv.conv3d(stored[0], w, initial_frames=stored[1], layout=layout, algorithm=algorithm, **places)
        assert_exact(y if layout == "NCDHW" else np.moveaxis(y, -1, 1), whole, "bf16")


#: Planes of outputs of each chunk.
SIZES = ([1, 4, 4], [2, 6], [1, 1, 1, 1], [8, 1], [3, 4])


@pytest.fixture(scope="module")
def exact():
    """A matmul's own sums are exact, in fp64, so that bits show the order of matmuls alone: BLAS adds as it likes."""
    engine = sys.modules["nkiconv.simulator.isa.tensor_engine"]
    operand = engine._operand
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_operand", lambda *operands: operand(*operands).astype(np.float64))
        yield


@st.composite
def videos(draw, least_taps=2):
    """(problem of all of a causal video, sizes of chunks in planes of outputs)."""
    C, K = draw(st.sampled_from([1, 3, 8, 20, 48, 100, 160])), draw(st.sampled_from([1, 3, 8, 48, 130]))
    groups = draw(st.sampled_from([1, 1, 1, 4, "all"]))
    if groups == "all":
        K = groups = C
    C, K = -(-C // groups) * groups, -(-K // groups) * groups
    T, R, S = draw(st.integers(least_taps, 4)), draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from([1, 3]))
    stride, dilation = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2]))
    sizes, across = draw(st.sampled_from(SIZES)), draw(st.sampled_from([1, 1, 2]))
    problem = ConvProblem(
        N=draw(st.integers(1, 2)), C=C, D=sum(sizes) * stride, H=draw(st.integers(5, 20)), W=draw(st.integers(5, 60)),
        K=K, T=T, R=R, S=S, groups=groups, dtype=draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        padding=(((T - 1) * dilation, 0), (R // 2, R // 2), (S // 2, S // 2)),
        stride=(stride, across, across), rhs_dilation=(dilation, 1, 1),
    )  # fmt: skip
    return problem, sizes


def run_of_chunk(problem, x, w, frames, **options):
    """(y in fp32, the frames of the next chunk) of a chunk, frames in front of it instead of as many zeros."""
    kept = problem.depth.window - 1
    ahead = kept - (0 if frames is None else frames.shape[2])
    places = {"stride": problem.stride, "dilation": problem.rhs_dilation, "groups": problem.groups}
    options |= {"initial_frames": frames, "return_final_frames": True, "out_dtype": "fp32"}
    return nkiconv.conv3d(x, w, padding=((ahead, 0), *problem.padding[1:]), **places, **options)


def check_chunks(problem, sizes, seed=1, **options):
    """Whether all chunks have the bits of one run."""
    x, w = normals(np.random.default_rng(seed), problem)
    whole, _ = run_of_chunk(problem, x, w, None, **options)
    frames, z, step = None, 0, problem.depth.stride
    for size in sizes:
        part = np.ascontiguousarray(x[:, :, z * step : (z + size) * step])
        y, frames = run_of_chunk(problem, part, w, frames, **options)
        np.testing.assert_array_equal(y, whole[:, :, z : z + size])
        z += size


@pytest.mark.simulator_only
@pytest.mark.usefixtures("exact")
@draws(4, 500)
@given(video=videos(), seed=st.integers(0, 2**31))
def test_any_chunks_have_the_bits_of_the_whole(video, seed):
    check_chunks(*video, seed)


CAUSAL = ConvProblem(N=1, C=48, D=9, H=11, W=23, K=3, T=3, R=3, S=3, padding=((2, 0), (1, 1), (1, 1)))
#: An algorithm that is named, and a problem of several of its banks, chunks of channels or parts.
NAMED = {
    "implicit_gemm": CAUSAL.replace(C=136, K=24, H=9, W=70),
    "activation_stationary": CAUSAL.replace(C=96, K=48, W=40),
    "stacked": CAUSAL.replace(C=3, K=32),
    "weight_stationary, packed": CAUSAL.replace(C=160, H=20),
    "stacked, depthwise": CAUSAL.replace(C=24, K=24, groups=24),
    "weight_stationary": CAUSAL.replace(C=32, K=32, groups=4),
}


@pytest.mark.simulator_only
@pytest.mark.usefixtures("exact")
@pytest.mark.cover(1)
@pytest.mark.parametrize("name", NAMED)
def test_chunks_of_every_algorithm(name):
    check_chunks(NAMED[name], [1, 4, 4], algorithm=name.split(",")[0])
