"""Every edge of the geometry: exact on integers, within the bound on normals, the same bits on 1 and 2 cores."""

import numpy as np
import pytest
from depthwise import EDGE, arguments, integers, normals, run, same_bits, truth
from draws import cores
from scope import runs
from tolerances import assert_exact, assert_within

import nkiconv
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.reference import num_terms


@pytest.mark.cover(14)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", EDGE, ids=lambda row: row.id)
def test_exact_on_integers(row, dtype):
    problem = row.problem(dtype)
    x, w = integers(np.random.default_rng(1), problem)
    y, _ = truth(x, w, problem)
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc), y, dtype)


@pytest.mark.cover(14)
@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.slow), "fp32"])
@pytest.mark.parametrize("row", EDGE, ids=lambda row: row.id)
def test_within_the_bound_on_normals(row, dtype):
    problem = row.problem(dtype)
    x, w = normals(np.random.default_rng(2), problem)
    y, abs_sum = truth(x, w, problem)
    one, two = run(x, w, problem, 1), run(x, w, problem, 2)
    assert_within(one, y, abs_sum, num_terms(problem), dtype)
    assert same_bits(one, two)


class Counted(int):
    """An int that stays one through arithmetic and refuses // and % of negative numbers."""


def _arithmetic(name):
    def operation(self, other):
        if "floordiv" in name or "mod" in name:
            assert self >= 0, f"{name}({int(self)}, {other})"
            assert other >= 0, f"{name}({int(self)}, {other})"
        result = getattr(int, name)(self, other)
        return Counted(result) if type(result) is int else result

    return operation


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    for _side in (f"__{_name}__", f"__r{_name}__"):
        setattr(Counted, _side, _arithmetic(_side))


def test_negative_numbers_are_refused_by_the_probe():
    with pytest.raises(AssertionError, match="floordiv"):
        (Counted(2) - 5) // 2
    with pytest.raises(AssertionError, match="floordiv"):
        7 // Counted(-2)


@pytest.mark.cover(10)
@pytest.mark.simulator_only
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "row"),
    [(None, row) for row in EDGE] + [(algorithm, row) for algorithm in ALGORITHMS for row in EDGE[::3]],
    ids=lambda value: getattr(value, "id", value),
)
def test_no_division_of_negative_numbers(algorithm, row, strict):
    """How NKI's own compilers round // below 0 is not documented, so the kernel must not depend on it."""
    problem = row.problem("bf16")
    if not runs(algorithm, problem, strict_nonfinite=strict):
        return
    kwargs = arguments(problem) | {
        "padding": ((0, 0), tuple(Counted(pad) for pad in row.pad)),
        "strict_nonfinite": strict,
        "algorithm": algorithm,
    }
    args = nkiconv.spec(problem.input_shape, "bf16"), nkiconv.spec(problem.filter_shape, "bf16")
    nkiconv.simulator.execute(nkiconv.depthwise_conv1d_implicit_gemm[2], args, kwargs, trace_only=True)


def test_row_of_a_million_samples():
    problem = EDGE[0].problem("bf16").replace(N=1, C=1, K=1, groups=1, W=1_000_000, S=9, padding=((0, 0), (4, 4)))
    x, w = integers(np.random.default_rng(4), problem)
    y, _ = truth(x, w, problem)
    assert_exact(run(x, w, problem, 2), y, "bf16")
