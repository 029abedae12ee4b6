"""One convolution for `nkiconv run`, and the reports of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...problem import ConvProblem
from ...reference import AnyArray

if TYPE_CHECKING:
    from ..verify import Report


@dataclass(frozen=True)
class Work:
    """A convolution to run: arrays as the kernel takes them, and everything checked."""

    name: str
    operation: str  # as the caller calls it; what is not depthwise_conv1d runs as conv2d
    x: AnyArray
    w: AnyArray
    problem: ConvProblem
    #: what `verify_depthwise_conv1d` or `verify_conv` takes besides: bias, activation, and so on
    extra: dict[str, Any] = field(default_factory=dict)

    def verify(
        self, verify: Any, *, keep: bool, channels: int | str, **how: Any
    ) -> tuple[list[Report], AnyArray | None]:
        """A report for each LNC degree, and y of the first as the kernel returns it; None unless `keep`.

        verify: the module of that name. channels: how many to check; all of a y that is kept. how: as its functions
        take it.
        """
        how["channels"] = "all" if keep else channels
        if self.operation == "depthwise_conv1d":
            found: tuple[list[Report], AnyArray | None] = verify.verify_depthwise_conv1d(
                self.name, self.x, self.w, self.problem, keep=keep, **self.extra, **how
            )
            return found
        reports, y = verify.verify_conv(self.name, self.x, self.w, self.problem, **self.extra, **how)
        return [dataclasses.replace(report, operation=self.operation) for report in reports], y if keep else None
