"""Chunks of a video round as all of it does: the order of an output's sums is neither the depth's nor a bank's."""

import sys

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

import nkiconv
from nkiconv import ConvProblem

pytestmark = pytest.mark.simulator_only
DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
#: Planes of outputs of each chunk.
SIZES = ([1, 4, 4], [2, 6], [1, 1, 1, 1], [8, 1], [3, 4])


@pytest.fixture(scope="module", autouse=True)
def _exact():
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


def values(problem, seed):
    """Random x and w, whose sums round."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[problem.dtype]
    return (rng.standard_normal(shape).astype(dtype) for shape in (problem.input_shape, problem.filter_shape))


def run(problem, x, w, frames, **options):
    """(y in fp32, the frames of the next chunk) of a chunk, frames in front of it instead of as many zeros."""
    kept = problem.depth.window - 1
    ahead = kept - (0 if frames is None else frames.shape[2])
    places = {"stride": problem.stride, "dilation": problem.rhs_dilation, "groups": problem.groups}
    options |= {"initial_frames": frames, "return_final_frames": True, "out_dtype": "fp32"}
    return nkiconv.conv3d(x, w, padding=((ahead, 0), *problem.padding[1:]), **places, **options)


def check(problem, sizes, seed=1, **options):
    """Whether all chunks have the bits of one run."""
    x, w = values(problem, seed)
    whole, _ = run(problem, x, w, None, **options)
    frames, z, step = None, 0, problem.depth.stride
    for size in sizes:
        part = np.ascontiguousarray(x[:, :, z * step : (z + size) * step])
        y, frames = run(problem, part, w, frames, **options)
        np.testing.assert_array_equal(y, whole[:, :, z : z + size])
        z += size


@draws(4, 500)
@given(video=videos(), seed=st.integers(0, 2**31))
def test_any_chunks_have_the_bits_of_the_whole(video, seed):
    check(*video, seed)


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


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", NAMED)
def test_chunks_of_every_algorithm(name):
    check(NAMED[name], [1, 4, 4], algorithm=name.split(",")[0])
