"""A profile as data. Every time in it is modelled."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compare import Comparison
from .show import text_of
from .usage import EngineUse

if TYPE_CHECKING:
    from .timed import Timed


class NoTimelineError(ValueError):
    """A trace or picture is asked of a profile without its timeline."""


@dataclass(frozen=True)
class Phases:
    """Totals over the phases of the throttle's grid, in us; one phase where the Tensor Engine does nothing."""

    at_us: Mapping[float, float]

    @property
    def phase0_us(self) -> float:
        return self.at_us[0.0]

    @property
    def mean_us(self) -> float:
        return sum(self.at_us.values()) / len(self.at_us)

    @property
    def worst_us(self) -> float:
        return max(self.at_us.values())


@dataclass(frozen=True)
class Share:
    """One entry of the critical path: its name, source line, time in us, and share of the total."""

    what: str
    us: float
    share: float


@dataclass(frozen=True)
class Sensitivity:
    """Totals (phase 0, in us) with one inferred constant at the ends of its range."""

    constant: str
    low: float
    high: float
    low_us: float
    high_us: float

    def spread_us(self, base_us: float) -> float:
        """The largest change of the total."""
        return max(abs(self.low_us - base_us), abs(self.high_us - base_us))


@dataclass(frozen=True)
class Profile:
    """Where a kernel's modelled time goes. Times in us; details are of throttle phase 0, program order."""

    kernel: str
    lnc: int
    phases: Phases  # program order
    lookahead_us: float  # phase 0, look-ahead order
    standalone: bool  # whether the totals include a NEFF's preamble and postamble
    launch_us: float  # how much of the totals those are
    before_us: float  # work before the first DMA's issue and after the last DMA's end: not in the totals
    after_us: float
    instructions: int
    engines: tuple[EngineUse, ...]
    bound_by: str
    path_kinds: tuple[Share, ...]
    path_lines: tuple[Share, ...]
    inferred_share: float  # of the critical path, as far as it moves with inferred constants
    inferred_constants: tuple[str, ...]  # that it moves with
    dma_transfers: int
    dma_bytes: int
    hbm_bytes: int
    hbm_fraction: float  # of the bytes that the HBM can carry in the span
    hbm_bound_share: float  # of the span in which more was asked of the HBM than it can carry
    dma_efficiency: float  # time that the bytes need at the engines' full rate / the engines' busy time
    dma_elements: tuple[tuple[int, int], ...]  # (bytes of an element, how many), by size
    matmul_flops: int
    mfu: float  # useful flops (where given, else matmul flops) / peak of the dtype in the span
    flops: int | None  # useful flops, where the caller gave them
    min_bytes: int
    roofline_us: float
    roofline_limit: str  # "bytes" or "flops"
    dtype: str
    sbuf_peak_bytes: int  # a partition
    psum_peak_banks: int
    space_stall_us: float  # SBUF and PSUM, longest of the cores' engines
    table_loads: int
    full_rate_share: float | None  # of the span, Tensor Engine at full rate (phase 0); None without Tensor work
    #: of the phase-0 total, iterations of device loops that were not recorded: the total is extrapolated, while shares
    #: and times of engines and of the critical path are of the recorded instructions
    extrapolated_us: float = 0.0
    sensitivity: tuple[Sensitivity, ...] = ()
    #: the source of traces and pictures; None for a profile that was read from a file
    timed: Timed | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return text_of(self)

    def save_trace(self, path: str | Path, title: str = "") -> None:
        """Write the timeline (program order, phase 0) as a trace that Perfetto (ui.perfetto.dev) loads.

        Raises NoTimelineError: the profile was read from a file. OSError: the file cannot be written.
        """
        perfetto = importlib.import_module(f"{__package__}.perfetto")
        Path(path).write_text(json.dumps(perfetto.trace(self._timeline(), title)), encoding="utf-8")

    def plot(self, path: str | Path, title: str = "") -> None:
        """Draw the timeline, the engines, the critical path and the roofline into a PNG.

        Raises NoTimelineError: the profile was read from a file. ModuleNotFoundError: matplotlib is not installed.
        """
        picture = importlib.import_module(f"{__package__}.picture").picture
        picture(self, self._timeline(), Path(path), title)

    def compare(self, other: Profile) -> Comparison:
        """The changes from this profile to another one: `print` it, or take its rows."""
        return Comparison(self, other)

    def _timeline(self) -> Timed:
        if self.timed is None:
            raise NoTimelineError(
                f"{self.kernel}: this profile holds no timeline, as those read from files do; profile the kernel again"
            )
        return self.timed

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Profile:
        """The profile of an `as_dict` or its JSON; other entries of the document are ignored.

        Raises ValueError: something is missing, or no number.
        """
        names = {one.name for one in dataclasses.fields(Profile)} - {"timed"}
        missing = sorted(names - set(document))
        if missing:
            raise ValueError(f"a profile lacks {', '.join(missing)}; write it with --json or as_dict()")
        values = {name: document[name] for name in names}
        try:
            values["phases"] = Phases({float(at): float(us) for at, us in document["phases"]["at_us"].items()})
            values["engines"] = tuple(EngineUse(**one) for one in document["engines"])
            for name in ("path_kinds", "path_lines"):
                values[name] = tuple(Share(**one) for one in document[name])
            values["sensitivity"] = tuple(Sensitivity(**one) for one in document["sensitivity"])
            values["dma_elements"] = tuple((int(size), int(count)) for size, count in document["dma_elements"])
            values["inferred_constants"] = tuple(document["inferred_constants"])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no profile: {error}; write it with --json or as_dict()") from error
        return Profile(**values)

    @property
    def modelled_us(self) -> float:
        """First DMA issue to last DMA done; the mean over the throttle's phases."""
        return self.phases.mean_us

    @property
    def roofline_fraction(self) -> float:
        """The limit over the modelled time without the launch: 1 is as fast as the hardware can be."""
        return self.roofline_us / (self.modelled_us - self.launch_us)

    @property
    def order_gap(self) -> float:
        """How much longer program order takes than look-ahead order, as a share of the former."""
        return 1.0 - self.lookahead_us / self.phases.phase0_us

    @property
    def leans_on_compiler(self) -> bool:
        """Whether scheduling that is left to the compiler is worth more than 5 %."""
        return self.order_gap > ORDER_GAP

    def sensitivity_range_us(self) -> tuple[float, float]:
        """Least and most total (phase 0) over all constants tried."""
        ends = [us for one in self.sensitivity for us in (one.low_us, one.high_us)]
        return min([self.phases.phase0_us, *ends]), max([self.phases.phase0_us, *ends])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = dataclasses.asdict(dataclasses.replace(self, timed=None))
        del plain["timed"]
        plain["phases"] = {
            "phase0_us": self.phases.phase0_us,
            "mean_us": self.phases.mean_us,
            "worst_us": self.phases.worst_us,
            "at_us": {f"{phase:g}": us for phase, us in self.phases.at_us.items()},
        }
        return {
            "modelled_us": self.modelled_us,
            "roofline_fraction": self.roofline_fraction,
            "order_gap": self.order_gap,
            "leans_on_compiler": self.leans_on_compiler,
            **plain,
        }


#: A gap between the orders above this says that a kernel leaves its scheduling to the compiler.
ORDER_GAP = 0.05
