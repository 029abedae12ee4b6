"""What each depthwise algorithm is for, written from its docstring, not asked of it: tests hold refusals against this.

An algorithm must run whatever lies in its scope, so that a refusal which spreads fails a test instead of skipping one.
"""

from typing import Any

from epilogue import PLAIN, Request, check, refused, window

from nkiconv.problem import ConvProblem

#: What a call is to an algorithm. MEMORY: it lies in its scope if what it needs fits SBUF or PSUM.
RUNS, REFUSES, MEMORY = "runs", "refuses", "memory decides"
#: Columns that `dot` takes, and most elements of a row (or a state) of `update`.
DOT_COLUMNS, UPDATE_ROW = 64, 128
#: Taps whose diagonals, 128 columns each, `mixed` holds whatever else a row needs; columns that taps of it and of
#: `vector` may span.
MIXED_TAPS, SPAN = 64, 4096
#: Largest block of `banded`, which its stride must fit.
BLOCK = 128


def scope(algorithm: str | None, problem: ConvProblem, request: Request = PLAIN, strict: bool = False) -> str:
    """RUNS, REFUSES or MEMORY; None is the kernel's own choice, which runs everything."""
    if algorithm in ("dot", "update") and (request.has_prologue or (problem.transposed and problem.S > 1)):
        return REFUSES
    if (request.chunks or request.has_prologue) and algorithm is not None:
        return MEMORY
    stride, gaps = problem.stride[1], problem.lhs_dilation[1]
    dilation = problem.rhs_dilation[1] if problem.S > 1 else 1  # of a single tap the kernel has none
    if algorithm in ("mixed", "vector"):
        many = algorithm == "mixed" and problem.S > MIXED_TAPS
        if strict and algorithm == "mixed":
            return REFUSES
        return MEMORY if many or window(problem) > SPAN else RUNS
    if algorithm == "banded":
        if strict or gaps > 1 or stride > BLOCK or (dilation > 1 and stride > 1):
            return REFUSES
        return MEMORY if dilation > 1 else RUNS
    if algorithm == "dot":
        if strict or gaps > 1 or problem.Q > DOT_COLUMNS:
            return REFUSES
        return MEMORY if stride > 1 or dilation > 1 else RUNS
    if algorithm == "update":
        longest = max(problem.W, window(problem) if request.state else 0)
        if gaps > 1 or longest > UPDATE_ROW:
            return REFUSES
        return MEMORY if problem.Q > UPDATE_ROW else RUNS
    return RUNS


def runs(
    algorithm: str | None,
    problem: ConvProblem,
    request: Request = PLAIN,
    *,
    strict_nonfinite: bool = False,
    **more: Any,
) -> bool:
    """Whether the algorithm runs this; fails if its scope says otherwise or the kernel refuses in other words."""
    if algorithm is None:
        return True
    reason = refused(algorithm, problem, request, strict_nonfinite=strict_nonfinite, **more)
    expected = scope(algorithm, problem, request, strict_nonfinite)
    assert expected in (MEMORY, REFUSES if reason else RUNS), f"{algorithm} {expected} by its scope, but: {reason!r}"
    return reason == ""


def check_in_scope(
    algorithm: str | None, problem: ConvProblem, request: Request = PLAIN, seed: int = 1, *, whole: bool, **more: Any
) -> None:
    """`epilogue.check` where the algorithm runs this, and its refusal held against its scope where it does not; `more`
    is strict_nonfinite and config."""
    if runs(algorithm, problem, request, **more):
        check(problem, request, seed, whole=whole, algorithm=algorithm, **more)
