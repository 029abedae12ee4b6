"""Frames of conv3d: planes that precede x's, in an array of their own, and the last ones, which the next call needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import rules
from ..errors import DtypeError, GeometryError, NkiconvError, UnsupportedError, raise_all, refuse, refused
from ..planner.request import X_PERMS
from ..problem import ConvProblem
from ..rules import CONV2D_DTYPES
from .calls import one_array, with_extents


@dataclass(frozen=True)
class Frames:
    """initial_frames and return_final_frames of a call."""

    initial: Any = None
    wanted: bool | int = False

    @property
    def asked(self) -> bool:
        """Whether a call says anything of frames."""
        return self.initial is not None or self.wanted is not False

    def count(self, layout: str) -> int:
        """Planes in front of x's."""
        return 0 if self.initial is None else int(self.initial.shape[X_PERMS[layout][2]])

    def whole(self, x: Any, layout: str) -> Any:
        """In place of x, an array without data of both one after the other; x itself where nothing is in front."""
        if self.initial is None:
            return x
        axis = X_PERMS[layout][2]
        return with_extents(x, {axis: x.shape[axis] + self.count(layout)})

    def returned(self, problem: ConvProblem) -> int:
        """How many planes a call returns. Raises GeometryError: more than there are."""
        planes = problem.depth.size
        count = min(problem.depth.window - 1, planes) if self.wanted is True else int(self.wanted)
        refuse(GeometryError, rules.frame_count(count, planes))
        return count

    def last(self, x: Any, layout: str, count: int) -> Any:
        """The last planes of both."""
        axis = X_PERMS[layout][2]
        both = x if self.initial is None else np.concatenate([self.initial, x], axis)
        return np.take(both, range(both.shape[axis] - count, both.shape[axis]), axis)

    def check(self, x: Any, layout: str, batch_group_count: int) -> None:
        """Refuse frames that do not go with x, which is checked, naming all that is wrong."""
        if self.asked:
            raise_all("conv3d cannot run this call", self._violations(x, layout, batch_group_count))

    def _violations(self, x: Any, layout: str, batch_group_count: int) -> Iterator[NkiconvError]:
        yield from refused(GeometryError, rules.frame_count(self.wanted))
        if batch_group_count != 1:
            yield UnsupportedError(
                f"batch_group_count={batch_group_count}: frames in front go with 1; split the batch before the call"
            )
        if self.initial is None:
            return
        found = list(one_array("initial_frames", self.initial, ", ".join(layout), CONV2D_DTYPES, empty="NCD"))
        yield from found
        if found:
            return
        axis = X_PERMS[layout][2]
        yield from refused(GeometryError, rules.frames(self.initial.shape, x.shape, axis))
        yield from refused(DtypeError, rules.same("initial_frames", "dtype", self.initial.dtype, "x", x.dtype))
