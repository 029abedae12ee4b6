"""What each depthwise algorithm is for, written from its docstring, not asked of it: tests hold refusals against this.

An algorithm must run whatever lies in its scope, so that a refusal which spreads fails a test instead of skipping one.
"""

from epilogue import PLAIN, Request, check, refused, window

from nkiconv.problem import ConvProblem

#: What a call is to an algorithm. MEMORY: it lies in its scope if what it needs fits SBUF or PSUM.
RUNS, REFUSES, MEMORY = "runs", "refuses", "memory decides"
#: Columns that `dot` takes of any filter, and taps up to which it takes no more than half as many columns where there
#: are more of them; most elements of a row (or a state) of `update`.
DOT_COLUMNS, DOT_TAPS, UPDATE_ROW = 64, 8192, 128
#: Taps whose diagonals, 128 columns each, `mixed` holds whatever else a row needs.
MIXED_TAPS = 64
#: Largest block of `banded`, which its stride must fit.
BLOCK = 128


def scope(algorithm: str | None, problem: ConvProblem, request: Request = PLAIN, strict: bool = False) -> str:
    """RUNS, REFUSES or MEMORY; None is the kernel's own choice, which runs everything."""
    stride, gaps = problem.stride[1], problem.lhs_dilation[1]
    dilation = problem.rhs_dilation[1] if problem.S > 1 else 1  # of a single tap the kernel has none
    if algorithm == "mixed":
        if strict:
            return REFUSES
        return MEMORY if problem.S > MIXED_TAPS else RUNS
    if algorithm == "banded":
        if strict or gaps > 1 or stride > BLOCK or (dilation > 1 and stride > 1):
            return REFUSES
        return MEMORY if dilation > 1 else RUNS
    if algorithm == "dot":
        many = dilation == 1 and problem.S <= DOT_TAPS and problem.Q > max(DOT_COLUMNS, problem.S // 2)
        if strict or gaps > 1 or many:
            return REFUSES
        return MEMORY if stride > 1 or dilation > 1 else RUNS
    if algorithm == "update":
        longest = max(problem.W, window(problem) if request.state else 0)
        if gaps > 1 or longest > UPDATE_ROW:
            return REFUSES
        return MEMORY if problem.Q > UPDATE_ROW else RUNS
    return RUNS


def runs(
    algorithm: str | None, problem: ConvProblem, request: Request = PLAIN, *, strict_nonfinite: bool = False
) -> bool:
    """Whether the algorithm runs this; fails if its scope says otherwise or the kernel refuses in other words."""
    if algorithm is None:
        return True
    reason = refused(algorithm, problem, request, strict_nonfinite=strict_nonfinite)
    expected = scope(algorithm, problem, request, strict_nonfinite)
    assert expected in (MEMORY, REFUSES if reason else RUNS), f"{algorithm} {expected} by its scope, but: {reason!r}"
    return reason == ""


def check_in_scope(
    algorithm: str | None,
    problem: ConvProblem,
    request: Request = PLAIN,
    seed: int = 1,
    *,
    whole: bool,
    strict_nonfinite: bool = False,
) -> None:
    """`epilogue.check` where the algorithm runs this, and its refusal held against its scope where it does not."""
    if runs(algorithm, problem, request, strict_nonfinite=strict_nonfinite):
        check(problem, request, seed, whole=whole, algorithm=algorithm, strict_nonfinite=strict_nonfinite)
