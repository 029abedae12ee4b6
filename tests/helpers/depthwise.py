"""What the tests of depthwise_conv1d share: rows of geometry, inputs, calls of the public kernel and its traces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nkiconv
from nkiconv.problem import ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref


@dataclass(frozen=True)
class Row:
    """One geometry, and why it is in the table."""

    why: str
    N: int
    C: int
    W: int
    S: int
    stride: int = 1
    pad: tuple[int, int] = (0, 0)
    dilation: int = 1
    lhs: int = 1
    #: taps run backwards, as the gradient by x reads them
    flipped: bool = False

    @property
    def id(self) -> str:
        return self.why.replace(" ", "_")

    def problem(self, dtype: str) -> ConvProblem:
        return ConvProblem(
            N=self.N, C=self.C, W=self.W, S=self.S, groups=self.C, stride=(1, self.stride), padding=((0, 0), self.pad),
            rhs_dilation=(1, self.dilation), lhs_dilation=(1, self.lhs), dtype=dtype, transposed=self.flipped,
        )  # fmt: skip


EDGE = [
    #   why                             N    C     W     S  stride  pad          dil  lhs
    Row("one tap", 2, 5, 7, 1),
    Row("one everything", 1, 1, 1, 1),
    Row("one column", 3, 130, 2, 2),
    Row("window is the row", 2, 3, 31, 31),
    Row("two channels share a tile", 1, 3, 90, 64, 1, (3, 7)),
    Row("one tap more than half the rows", 1, 3, 90, 65, 1, (3, 7)),
    Row("exactly 128 taps", 1, 3, 300, 128, 1, (0, 5)),
    Row("S crosses 128", 1, 3, 300, 129, 1, (7, 2)),
    Row("S crosses 128 twice", 2, 5, 400, 260, 3, (100, 31)),
    Row("taps of several filter loads", 1, 2, 2300, 2200, 1, (11, 4)),
    Row("odd channels", 2, 129, 13, 3, 1, (1, 0)),
    Row("channels of several tiles", 1, 300, 20, 7, 2, (2, 1)),
    Row("last group of a tile is partial", 2, 127, 33, 5, 1, (1, 3)),
    Row("columns cross 512", 1, 2, 515, 4),
    Row("columns cross one load", 1, 3, 2100, 6, 1, (5, 0)),
    Row("causal", 2, 70, 65, 4, 1, (3, 0)),
    Row("padding wider than the row", 1, 3, 4, 3, 1, (9, 14)),
    Row("whole tiles of padding", 1, 2, 10, 3, 1, (1500, 600)),
    Row("padding on the right only", 1, 7, 19, 6, 2, (0, 4)),
    Row("crop both sides", 2, 7, 40, 5, 1, (-3, -2)),
    Row("crop left pad right", 1, 7, 40, 5, 3, (-4, 6)),
    Row("crop inside a gap", 1, 3, 9, 2, 1, (-2, -1), 1, 3),
    Row("stride 2", 1, 5, 300, 200, 2, (7, 1)),
    Row("stride wider than the window", 1, 5, 100, 3, 7),
    Row("stride 64 loads runs", 1, 3, 3000, 5, 64, (2, 3)),
    Row("stride 65 steps in the DMA", 1, 3, 3000, 5, 65),
    Row("stride 100 with padding", 1, 4, 2000, 3, 100, (5, 5)),
    Row("stride beyond a tile", 1, 2, 50_000, 3, 20_000, (1, 1)),
    Row("dilation", 2, 9, 50, 5, 1, (4, 4), 3),
    Row("dilation 512", 1, 5, 3000, 2, 1, (512, 0), 512),
    Row("dilation beyond a tile", 1, 2, 30_000, 3, 1, (10, 0), 9000),
    Row("lhs dilation", 2, 9, 31, 4, 1, (2, 1), 1, 2),
    Row("lhs dilation without padding", 1, 3, 40, 5, 1, (0, 0), 1, 5),
    Row("all three together", 1, 3, 50, 5, 3, (2, 4), 2, 3),
    Row("all three, S over 128", 1, 2, 300, 150, 2, (5, 9), 3, 2),
]


def row_of(rows: Sequence[Row], why: str) -> Row:
    """The row of a table by what it is there for."""
    return next(row for row in rows if row.why == why)


def arguments(problem: ConvProblem) -> dict[str, Any]:
    """The public kernel's keyword arguments of a problem."""
    places = {name: getattr(problem, name) for name in ("padding", "stride", "rhs_dilation", "lhs_dilation")}
    return {**places, "feature_group_count": problem.C, **({"flipped": True} if problem.transposed else {})}


def run(x: Any, w: Any, problem: ConvProblem, lnc: int, **more: Any) -> Any:
    """y of the public kernel on `lnc` cores."""
    kernel = nkiconv.depthwise_conv1d_implicit_gemm
    return nkiconv.simulate(kernel[lnc])(x, w, **arguments(problem), **more)


def trace(problem: ConvProblem, algorithm: str | None = None, lnc: int = 2, **more: Any) -> Any:
    """The records of a launch of the public kernel on `lnc` cores, without data."""
    args = nkiconv.spec(problem.input_shape, problem.dtype), nkiconv.spec(problem.filter_shape, problem.dtype)
    kwargs = arguments(problem) | {"algorithm": algorithm} | more
    return nkiconv.simulator.execute(nkiconv.depthwise_conv1d_implicit_gemm[lnc], args, kwargs, trace_only=True)


def truth(x: Any, w: Any, problem: ConvProblem) -> tuple[Any, Any]:
    """(y, sum|w||x|) in float64."""
    return conv_ref(x, w, problem), abs_sum_ref(x, w, problem)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are equal bit for bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
