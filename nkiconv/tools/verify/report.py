"""`Report`: the result of a verified convolution."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ...api.calls import KernelRun
from ...planner.request import Asked, Config
from ...problem import ConvProblem
from .comparison import Comparison

#: How many output channels are checked.
Channels = int | Literal["auto", "all"]
#: Channels of a sample, the first and the last among them.
SAMPLE_CHANNELS = 16


@dataclass(frozen=True)
class Report:
    """One convolution on one LNC degree: its counts, and whether it is right."""

    name: str
    operation: str
    problem: ConvProblem
    lnc: int
    asked: Asked
    algorithm: str
    config: Config  # settings that were asked for
    tiles: dict[str, int] | None  # None where AWS's NKI ran
    trace: KernelRun | None  # a run with counts of the whole problem; None where AWS's NKI ran
    seconds: float  # of all blocks, without reference and trace
    channels_checked: int  # of the output
    comparison: Comparison
    num_blocks: int = 1
    same_as_lnc: int | None = None  # the degree that these outputs were compared with, bit for bit
    identical: bool | None = None
    same_as_whole: bool | None = None  # of a chunk: whether it equals one run of all, bit for bit

    @property
    def provider(self) -> str:
        """Whose NKI ran: "aws" or "simulator"."""
        return "simulator" if self.trace else "aws"

    @property
    def ok(self) -> bool:
        """Whether every output is within its bound and, if compared, identical in the other run."""
        return self.verdict == "pass"

    @property
    def verdict(self) -> str:
        """One of "pass", "fail", "lnc differs", "chunk differs"."""
        if self.comparison.num_wrong:
            return "fail"
        if self.identical is False:
            return "lnc differs"
        return "chunk differs" if self.same_as_whole is False else "pass"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; byte counts and instructions are None where AWS's NKI ran."""
        trace = self.trace
        return {
            "name": self.name,
            "operation": self.operation,
            "problem": dataclasses.asdict(self.problem),
            "P": self.problem.P,
            "Q": self.problem.Q,
            "lnc": self.lnc,
            "strict_nonfinite": self.asked.strict_nonfinite,
            "precision": self.asked.precision,
            "algorithm": self.algorithm,
            "config": self.config,
            "provider": self.provider,
            "tiles": self.tiles,
            "instructions": trace.instructions if trace else None,
            "dma_bytes": trace.dma_bytes if trace else None,
            "sbuf_peak_bytes_per_partition": trace.sbuf_peak_bytes if trace else None,
            "psum_peak_bytes_per_partition": trace.psum_peak_bytes if trace else None,
            "run_seconds": self.seconds,
            "num_blocks": self.num_blocks,
            "channels_checked": self.channels_checked,
            **{name: value for name, value in vars(self.comparison).items() if name != "letters"},
            "same_as_lnc": self.same_as_lnc,
            "identical": self.identical,
            "same_as_whole": self.same_as_whole,
            "verdict": self.verdict,
        }
