"""What the timing model says of published measurements: by kernels of ours that make the same moves, by kernels in a
checkout, and by hardware traces in a checkout."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import moves
from measured import Row, Source

from nkiconv import simulator
from nkiconv.simulator.profiling import profile
from nkiconv.simulator.replay import compare, read_trace
from nkiconv.simulator.timing import Rates


@dataclass(frozen=True)
class Outcome:
    """One measurement beside the model, in us: in program order, and with instructions moved ahead."""

    what: str
    how: str
    seen_us: float
    modelled_us: float
    ahead_us: float

    @property
    def error(self) -> float:
        return self.modelled_us / self.seen_us - 1.0

    @property
    def ahead_error(self) -> float:
        return self.ahead_us / self.seen_us - 1.0


def outcomes(source: Source, checkout: Path | None, constants: dict[str, float]) -> Iterator[Outcome]:
    """Every row of a source that can be had: those of checkouts only where there is one. Raises as the kernels do."""
    adds_us = Rates(constants)(source.adds) / 1e3 if source.adds else 0.0
    for row in source.rows:
        if row.moves is not None:
            yield _timed(row, getattr(moves, row.moves)[source.cores], "ours", adds_us, constants)
        elif checkout is not None:
            with simulator.install():
                kernel = getattr(_module(checkout / str(row.file)), str(row.kernel))
                yield _timed(row, kernel, "theirs", adds_us, constants)
    if source.traces is not None and checkout is not None:
        yield from _replayed(checkout / str(source.folder), source.traces, constants)


def _timed(row: Row, kernel: Any, how: str, adds_us: float, constants: dict[str, float]) -> Outcome:
    found = [profile(kernel, constants=constants)(*args) for args in row.args]
    modelled, ahead = (sum(getattr(one, name) + adds_us for one in found) for name in ("modelled_us", "lookahead_us"))
    return Outcome(row.what, how, row.us, modelled, ahead)


def _module(path: Path) -> ModuleType:
    """The module in a file, which is named as no module may be; it is forgotten again."""
    name = f"validated_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _replayed(folder: Path, pattern: str, constants: dict[str, float]) -> Iterator[Outcome]:
    """Traces: every queue in its order, and with DMA triggers that overtake what waits."""
    for path in sorted(folder.glob(pattern)):
        found = compare(read_trace(path), Rates(constants))
        us = (found.in_order.seen_ns / 1e3, found.in_order.predicted_ns / 1e3, found.overtaking.predicted_ns / 1e3)
        yield Outcome(path.parent.parent.name, "replayed", *us)
