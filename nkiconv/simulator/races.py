"""Races between the two cores of a launch: who touched which element of shared HBM since the last barrier on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .memory import ElementMap, StorageInfo
from .rules import fail, kernel_frame
from .running import running

if TYPE_CHECKING:
    from .tensor import NkiTensor

_WRITE, _READ = 1, 4


class _Access(NamedTuple):
    tensor: NkiTensor
    core: int
    writing: bool
    location: str


class SharedAccess:
    """Accesses to one shared storage since its last barrier.

    Two accesses conflict when different cores touch one element and one of them writes. Reads cost a list entry until
    something is written; then a byte an element says who wrote and who read.
    """

    def __init__(self, info: StorageInfo) -> None:
        self._info = info
        self._log: list[_Access] = []
        self._touched: ElementMap | None = None

    def clear(self) -> None:
        """A barrier on the storage: everything before it is ordered."""
        self._log.clear()
        self._touched = None

    def touch(self, tensor: NkiTensor, *, writing: bool) -> None:
        """Record an access of the running core; refuse it when it conflicts (NKI028)."""
        frame, _ = kernel_frame(sys._getframe(1))
        location = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        program = running()
        access = _Access(tensor, program.core if program else 0, writing, location)
        if self._touched is None and writing:
            self._touched = ElementMap(self._info.num_bytes, tensor.itemsize)
            for earlier in self._log:
                self._mark(self._touched, earlier)
        if self._touched is not None:
            self._check(self._touched, access)
            self._mark(self._touched, access)
        self._log.append(access)

    def _mark(self, touched: ElementMap, access: _Access) -> None:
        cells = touched.view(access.tensor)
        np.bitwise_or(cells, (_WRITE if access.writing else _READ) << access.core, out=cells)

    def _check(self, touched: ElementMap, access: _Access) -> None:
        other = 1 - access.core
        enemy = (_WRITE | _READ if access.writing else _WRITE) << other
        clash = touched.view(access.tensor) & enemy
        if not clash.any():
            return
        index = tuple(int(i) for i in np.argwhere(clash)[0][: len(access.tensor.shape)])
        earlier = self._culprit(access, index, other)
        verb, before = ("writes", "writes") if access.writing else ("reads", "writes")
        if earlier and not earlier.writing:
            before = "reads"
        where = earlier.location if earlier else "an earlier line"
        fail(
            "NKI028",
            f"core {access.core} {verb} element {index} of the view, which core {other} {before} at {where}",
            tensor=access.tensor,
        )

    def _culprit(self, access: _Access, index: tuple[int, ...], other: int) -> _Access | None:
        byte = (access.tensor.offset + sum(i * s for i, s in zip(index, access.tensor.strides, strict=True))) * (
            access.tensor.itemsize
        )
        for earlier in self._log:
            if earlier.core != other or not (earlier.writing or access.writing):
                continue
            probe = ElementMap(self._info.num_bytes, earlier.tensor.itemsize)
            probe.view(earlier.tensor).fill(1)
            if probe.cells[byte // probe.unit]:
                return earlier
        return None
