"""What nkiconv takes of one model's convolutions, and why not the rest."""

import warnings
from dataclasses import dataclass, field

from zoo import Model

from nkiconv.errors import NkiconvError
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.pytorch.models.model_plan import kept_of
from nkiconv.pytorch.models.recording import Convolved, Recording, record
from nkiconv.simulator.timing import Rates


@dataclass
class Found:
    """Flops of one run: nkiconv's, and by reason the others'; `error`: why there was no run."""

    model: Model
    nkiconv: int = 0
    rest: dict[str, int] = field(default_factory=dict)
    kernels: int = 0  # distinct convolutions, each of which has a kernel
    error: str = ""

    @property
    def flops(self) -> int:
        """Of all convolutions."""
        return self.nkiconv + sum(self.rest.values())

    @property
    def fraction(self) -> float:
        """nkiconv's part, 0 to 1; 0 where the model did not run or nothing convolves."""
        return self.nkiconv / self.flops if self.flops else 0.0

    def take_off(self, reason: str, flops: int) -> None:
        """Count flops as not nkiconv's."""
        self.rest[reason] = self.rest.get(reason, 0) + flops


def measure(model: Model) -> Found:
    """Build a model, convert it and run it once. Errors of its own are in the result."""
    found = Found(model)
    try:
        made, inputs = model.made(), model.given()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            recording = record(made, (), inputs)
        _count(found, recording, [str(one.message) for one in told])
    except Exception as error:  # the model's own code, which may raise whatever it likes
        found.error = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def _count(found: Found, recording: Recording, told: list[str]) -> None:
    """Sort the flops of a run: a convolution is nkiconv's only where there is a kernel for it, too."""
    found.nkiconv = recording.share.nkiconv
    for one in kept_of(recording, functional=True):
        refused = [text for text in told if text.startswith("nkiconv.pytorch.intercept")]
        reason = "; ".join([one.reason, *refused]) if one.reason.startswith("is called") else one.reason
        found.take_off(reason, one.calls * one.other.flops)
    for convolved, layers in recording.convolved.items():
        reason = _refusal(convolved)
        found.kernels += not reason
        if reason:
            flops = convolved.problem.flops * len(layers)
            found.nkiconv -= flops
            found.take_off(reason, flops)


def _refusal(convolved: Convolved) -> str:
    """Why no kernel runs a convolution, or ""."""
    request = Request(problem=convolved.problem, asked=convolved.asked, operation=convolved.operation)
    try:
        operation = operation_for(request)
        operation.choice(request, operation.shape(request, Rates()))
    except NkiconvError as error:
        return str(error)
    return ""
