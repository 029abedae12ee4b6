"""Convolutions whose x comes in chunks: inputs, truth and the kernel's answer; see `epilogue` of all else."""

import dataclasses
from typing import Any

import numpy as np
from depthwise import run, same_bits
from epilogue import NL, Request, draw, keywords, sums, window
from tolerances import assert_exact, assert_within_limit

from nkiconv.bounds import epilogue_bound, factor_bound, gated_bound
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, chunks_ref, epilogue_ref, num_terms
from nkiconv.schedules.depthwise import Options, RowGeometry
from nkiconv.schedules.depthwise_algorithms import unsupported_reason

from nkiconv.kernels._epilogue import read_epilogue  # isort: skip
from nkiconv.kernels.depthwise_conv1d.geometry import read_geometry  # isort: skip

#: Every order matters alike; these have each chunk in each place.
CHUNKS = ("BCx", "xG", "xBC", "Cx", "GxC")


def takes(chunks: str, problem: ConvProblem) -> bool:
    """Whether a factor of y, if there is one, has y's extents."""
    return "C" not in chunks or problem.Q == problem.W


def gated_view(problem: ConvProblem, chunks: str, request: Request) -> tuple[RowGeometry, Options]:
    """(RowGeometry, Options) as the kernel reads them."""
    tensor = dataclasses.make_dataclass("Tensor", ["shape", "dtype"])
    N, C, H, W = problem.input_shape
    geometry, _ = read_geometry(
        tensor((N, C * len(chunks), H, W), NL[problem.dtype]),
        tensor(problem.filter_shape, NL[problem.dtype]),
        (problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation),
        (problem.C, 1),
        (None, None, None),
        False,
        chunks,
    )
    itemsize = DTYPES[request.out(problem)].itemsize
    epilogue = read_epilogue(request.activation, request.bias, None, request.residual_position, itemsize, chunks)
    return geometry, Options(epilogue=epilogue, state=request.state, strict_nonfinite=False)


def refusal(algorithm: str, problem: ConvProblem, chunks: str, request: Request, lnc: int = 2) -> str:
    """Why an algorithm does not run this, "" if it does."""
    return str(unsupported_reason(algorithm, *gated_view(problem, chunks, request), None, lnc))


def check_gated(problem: ConvProblem, chunks: str, request: Request, seed: int, *, whole: bool, **more: Any) -> None:
    """Hold the kernel on 1 and 2 cores against the truth: exact where whole inputs stay integers, within the bound
    elsewhere, the same bits on both; the final state is the product, rounded once."""
    rng, dtype, out_dtype = np.random.default_rng(seed), problem.dtype, request.out(problem)
    inputs = draw(rng, problem, request, whole)
    shape = (problem.N, problem.C * len(chunks), 1, problem.W)
    values = rng.integers(-2, 3, shape) if whole else rng.standard_normal(shape)
    x = values.astype(DTYPES[dtype])
    product, factor = chunks_ref(x, chunks)

    exact = dataclasses.replace(inputs, x=product)
    conv, abs_sum = sums(exact, problem)
    error = gated_bound(x, chunks, dtype)
    z = epilogue_ref(conv, inputs.bias, request.activation)
    inexact = abs_sum_ref(error, inputs.w, problem)
    terms, asked = num_terms(problem), (inputs.bias, request.activation)
    if factor is None:
        y, limit = z, epilogue_bound(terms, abs_sum, conv, out_dtype, *asked, inexact=inexact)
    else:
        limit = epilogue_bound(terms, abs_sum, conv, "fp32", *asked, inexact=inexact)
        y = z * factor
        limit = factor_bound(limit, factor, y, out_dtype)

    given = keywords(inputs, request)
    answers = [run(x, inputs.w, problem, lnc, chunks=chunks, **given, **more) for lnc in (1, 2)]
    (one, one_final), (two, two_final) = (answer if request.final else (answer, None) for answer in answers)
    assert one.dtype == DTYPES[out_dtype]
    assert same_bits(one, two)
    if whole and "G" not in chunks and request.activation is None:
        assert_exact(one, y, out_dtype)
    else:
        assert_within_limit(one, y, limit)
    if request.final:
        size = window(problem)
        before = np.zeros((problem.N, problem.C, size)) if inputs.state is None else inputs.state.astype(np.float64)
        final = np.concatenate([before, product[:, :, 0]], axis=2)[:, :, -size:]
        allowed = np.concatenate([np.zeros_like(before), error[:, :, 0]], axis=2)[:, :, -size:]
        assert same_bits(one_final, two_final)
        if "G" in chunks:
            assert_within_limit(one_final, final, allowed)
        else:
            assert same_bits(one_final, np.ascontiguousarray(final.astype(DTYPES[dtype])))
