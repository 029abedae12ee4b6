"""Exceptions of the simulator: one class for a broken rule, carrying everything that its message says."""

from __future__ import annotations

from collections.abc import Iterable


class NkiValidationError(Exception):
    """Base name that AWS's `nki.isa` gives to violations of hardware constraints."""


class NkiError(NkiValidationError, ValueError):
    """A kernel broke a rule of NKI or of trn2.

    Attributes: `rule` (stable id such as ``NKI104``), `op` (the call), `detail` (what was seen and what is allowed),
    `operands` (name -> description), `location` (``file:line`` of the kernel's source), `remedy` (what to do).
    """

    def __init__(
        self,
        rule: str,
        op: str,
        detail: str,
        operands: dict[str, str] | None = None,
        location: str = "",
        remedy: str = "",
    ) -> None:
        self.rule = rule
        self.op = op
        self.detail = detail
        self.operands = operands or {}
        self.location = location
        self.remedy = remedy
        super().__init__(self._message())

    def _message(self) -> str:
        lines = [f"{self.rule}: {self.op}: {self.detail}"]
        lines += [f"  {name} = {text}" for name, text in self.operands.items()]
        if self.location:
            lines.append(f"  at {self.location}")
        if self.remedy:
            lines.append(f"  {self.remedy}")
        return "\n".join(lines)


class KernelAssertionError(NkiError, AssertionError):
    """An `assert` in the kernel's own source failed: the kernel refused its arguments."""


class TraceLimitError(Exception):
    """A kernel has more instructions than its caller let it record: no rule of NKI is broken."""


class MeetingError(Exception):
    """A core that is run alone is to meet the other one: no rule of NKI is broken."""


class TensorTruthWarning(UserWarning):
    """`if tensor:` tests whether there is a tensor, not its values; write `is not None`."""


class CapacityWarning(UserWarning):
    """A kernel holds more than SBUF or PSUM has room for, in program order, in a launch that allows it."""


class OverwriteWarning(UserWarning):
    """A matmul with accumulate=None overwrites the result of another instruction: hardware does not add to it."""


class RaceWarning(UserWarning):
    """Two cores race, in a launch that allows it: the result is one of several."""


class NotSimulatedError(NotImplementedError):
    """A documented NKI call, or use of one, that the simulator does not run."""

    def __init__(self, name: str, supported: Iterable[str]) -> None:
        self.name = name
        runs = ", ".join(supported)
        super().__init__(f"{name} is documented NKI that this simulator does not run yet; it runs: {runs}")
