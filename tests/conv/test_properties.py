"""Random problems, every parameter together: exact on integers, epilogues against float64, 1 and 2 cores alike."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from conv_calls import FLOATS, NL, run
from depthwise import same_bits
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_exact, assert_within_limit

from nkiconv.bounds import epilogue_bound, products_bound
from nkiconv.errors import GeometryError
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, apply_out_perm, conv_ref, epilogue_ref, num_terms
from nkiconv.rules import ACTIVATIONS, PRECISIONS, RESIDUAL_POSITIONS
from nkiconv.schedules.conv_algorithms import ALGORITHMS
from nkiconv.simulator import KernelAssertionError

NORMAL, SLOW = 100, 1000
SEEDS = st.integers(0, 2**32 - 1)
FP8 = ["fp8_e4m3", "fp8_e5m2"]
PERMS = st.one_of(st.none(), st.permutations(range(4)).map(tuple))
#: of x, of a filter and of y; those of NHWC often, which algorithms of their own take
ALL_PERMS = st.one_of(
    st.tuples(PERMS, PERMS, PERMS),
    st.tuples(st.just((0, 3, 1, 2)), st.sampled_from([None, (3, 2, 0, 1), (0, 3, 1, 2)]), st.just((0, 2, 3, 1))),
)
#: Activations that keep integers integers.
EXACT_ACTIVATIONS = (None, "relu")


#: Precisions of fp32; winograd is one of 16 bits.
OF_FP32 = [None, *(one for one in PRECISIONS if one != "winograd")]


@dataclass(frozen=True)
class Epilogue:
    """What is asked for beside the convolution: dtypes by their short names, None for what there is not."""

    bias: str | None = None
    activation: str | None = None
    residual: str | None = None
    residual_position: str = "pre_activation"
    beta: float = 1.0
    out_dtype: str | None = None
    strict_nonfinite: bool = False
    precision: str | None = None
    algorithm: str | None = None  # which may refuse the rest by its name


PLAIN = Epilogue()


@st.composite
def axes(draw, largest, most_taps):
    """(size, taps, stride, padding, dilation, lhs_dilation) of one axis."""
    return (
        draw(st.integers(1, largest)), draw(st.integers(1, most_taps)),
        draw(st.one_of(st.integers(1, 3), st.integers(1, 11))), (draw(st.integers(-4, 9)), draw(st.integers(-4, 9))),
        draw(st.integers(1, 4)), draw(st.integers(1, 4)),
    )  # fmt: skip


@st.composite
def problems(draw, largest=14, most_taps=5, most_channels=7):
    """A ConvProblem with an output; those that have none are drawn again. Rows and columns are drawn apart."""
    groups = draw(st.one_of(st.just(1), st.integers(1, most_channels)))
    most = max(1, most_channels * 3 // groups)
    fields = {
        "N": draw(st.integers(1, 3)),
        "C": groups * draw(st.integers(1, most)),
        "K": groups * draw(st.integers(1, most)),
        "groups": groups,
        "dtype": draw(st.sampled_from([*FLOATS, *FP8])),
    }
    both = st.tuples(axes(largest, most_taps), axes(largest, most_taps))
    return draw(both.map(lambda pair: _built(fields, *pair)).filter(lambda problem: problem is not None))


def _built(fields: dict[str, Any], rows: tuple[Any, ...], columns: tuple[Any, ...]) -> ConvProblem | None:
    names = ("stride", "padding", "rhs_dilation", "lhs_dilation")
    pairs = {name: (rows[2 + i], columns[2 + i]) for i, name in enumerate(names)}
    try:
        return ConvProblem(H=rows[0], R=rows[1], W=columns[0], S=columns[1], **fields, **pairs)
    except GeometryError:
        return None


@st.composite
def epilogues(draw, problem):
    """An Epilogue that fits the problem, most of it left out half of the time."""
    tensor = st.one_of(st.none(), st.sampled_from(FLOATS))
    return Epilogue(
        bias=draw(tensor),
        activation=draw(st.one_of(st.none(), st.sampled_from(ACTIVATIONS))),
        residual=draw(tensor),
        residual_position=draw(st.sampled_from(RESIDUAL_POSITIONS)),
        beta=draw(st.sampled_from([1.0, 2.0, -0.5, 0.0])),  # products with the residual are exact
        out_dtype=draw(tensor),
        strict_nonfinite=draw(st.booleans()),
        precision=draw(st.sampled_from(OF_FP32)) if problem.dtype == "fp32" else None,
        algorithm=draw(st.sampled_from([None, *ALGORITHMS])),
    )


@st.composite
def calls(draw, **sizes):
    """(problem, epilogue, dtype of the filter, the three permutations) of one call."""
    problem = draw(problems(**sizes))
    epilogue = draw(st.one_of(st.just(PLAIN), epilogues(problem)))
    w_dtypes = next(kind for kind in (["fp32"], ["bf16", "fp16"], FP8) if problem.dtype in kind)
    w_dtype = draw(st.sampled_from(w_dtypes))
    return problem, epilogue, w_dtype, draw(ALL_PERMS)


def stored(values: Any, perm: tuple[int, ...] | None) -> Any:
    """A canonical input as it lies in memory, so that its transpose by `perm` is canonical."""
    return values if perm is None else np.ascontiguousarray(np.transpose(values, np.argsort(perm)))


def check(call: Any, seed: int, *, whole: bool) -> None:
    """Hold the kernel against float64: exact where integers stay integers, else within the bound."""
    problem, epilogue, w_dtype, (in_perm, kern_perm, out_perm) = call
    rng = np.random.default_rng(seed)

    def array(shape: tuple[int, ...], dtype: str | None, scale: float = 1.0) -> Any:
        if dtype is None:
            return None
        values = rng.integers(-2, 3, shape) if whole else rng.standard_normal(shape) * scale
        return values.astype(DTYPES[dtype])

    x = array(problem.input_shape, problem.dtype)
    w = array(problem.filter_shape, w_dtype, num_terms(problem) ** -0.5)
    bias, residual = array((problem.K,), epilogue.bias), array(problem.output_shape, epilogue.residual)
    conv, abs_sum = conv_ref(x, w, problem), abs_sum_ref(x, w, problem)
    scaled = None if residual is None else np.asarray(residual, np.float64) * epilogue.beta
    after = (bias, epilogue.activation, scaled, epilogue.residual_position)
    out_dtype = epilogue.out_dtype or problem.out_dtype
    y = apply_out_perm(epilogue_ref(conv, *after), out_perm)

    given = {"bias": bias, "activation": epilogue.activation, "in_perm": in_perm, "kern_perm": kern_perm}
    given |= {"out_perm": out_perm, "beta": epilogue.beta}
    given |= {"residual_position": epilogue.residual_position, "out_dtype": NL.get(epilogue.out_dtype)}
    given["residual"] = None if residual is None else np.ascontiguousarray(apply_out_perm(residual, out_perm))
    given["strict_nonfinite"] = epilogue.strict_nonfinite
    given["precision"] = epilogue.precision
    given["config"] = None if epilogue.algorithm is None else (("algorithm", epilogue.algorithm),)
    arrays = stored(x, in_perm), stored(w, kern_perm)
    try:
        one, two = (run(*arrays, problem, lnc, **given) for lnc in (1, 2))
    except KernelAssertionError as refused:
        if epilogue.algorithm in (None, "implicit_gemm") or epilogue.algorithm not in str(refused):
            raise
        one, two = (run(*arrays, problem, lnc, **given | {"config": None}) for lnc in (1, 2))
    assert one.dtype == DTYPES[out_dtype]
    if whole and epilogue.activation in EXACT_ACTIVATIONS:
        assert_exact(one, y, out_dtype)
    else:
        inexact = products_bound(epilogue.precision, x, w, problem)
        limit = epilogue_bound(num_terms(problem), abs_sum, conv, out_dtype, *after, inexact=inexact)
        assert_within_limit(one, y, apply_out_perm(limit, out_perm))
    assert same_bits(one, two)


@pytest.mark.timeout(1800)
@draws(NORMAL, SLOW)
@given(call=calls(), seed=SEEDS, whole=st.booleans())
def test_calls(call, seed, whole):
    check(call, seed, whole=whole)


@draws(NORMAL // 2)
@given(call=calls(most_channels=40), seed=SEEDS, whole=st.booleans())
def test_calls_by_fp16_pairs(call, seed, whole):
    problem, epilogue, _, perms = call
    pairs = replace(epilogue, precision="fp16x3", algorithm="implicit_gemm")
    check((problem.replace(dtype="fp32"), pairs, "fp32", perms), seed, whole=whole)


@pytest.mark.timeout(1800)
@draws(NORMAL // 5, SLOW // 4)
@given(call=calls(largest=40, most_taps=9, most_channels=60), seed=SEEDS)
def test_larger_calls(call, seed):
    check(call, seed, whole=True)


BASE = ConvProblem(N=2, C=5, H=8, W=9, K=6, R=3, S=2, padding=((1, 1), (1, 0)), dtype="fp32")


@pytest.mark.cover(9)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("position", RESIDUAL_POSITIONS)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_every_activation_with_bias_and_residual(activation, position, dtype):
    epilogue = Epilogue("fp32", activation, "bf16", position, 0.5, "fp32")
    check((BASE.replace(dtype=dtype), epilogue, dtype, (None, None, None)), 3, whole=False)
