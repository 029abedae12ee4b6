"""One convolution for `nkiconv run`, and the reports of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...problem import ConvProblem
from ...reference import AnyArray

if TYPE_CHECKING:
    from ...api.epilogue import Epilogue
    from ..verify import Report


@dataclass(frozen=True)
class Work:
    """A convolution to run: arrays as the kernel takes them, and everything checked."""

    name: str
    operation: str  # the caller's name; all but depthwise_conv1d run as conv2d
    x: AnyArray
    w: AnyArray
    problem: ConvProblem
    epilogue: Epilogue
    filter_layout: str | None = None

    def verify(
        self, verify: Any, *, keep: bool, channels: int | str, **how: Any
    ) -> tuple[list[Report], AnyArray | None]:
        """A report for each LNC degree, and y of the first as the kernel returns it; None unless `keep`.

        verify: the module of that name. channels: how many to check; all of a y that is kept. how: as its functions
        take it.
        """
        how["channels"] = "all" if keep else channels
        arguments = self.name, self.x, self.w, self.problem, self.epilogue
        if self.operation == "depthwise_conv1d":
            found: tuple[list[Report], AnyArray | None] = verify.verify_depthwise_conv1d(*arguments, keep=keep, **how)
            return found
        reports, y = verify.verify_conv(*arguments, filter_layout=self.filter_layout, **how)
        return [dataclasses.replace(report, operation=self.operation) for report in reports], y if keep else None
