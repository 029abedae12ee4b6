"""Races between the two cores of a launch: who touched which element of shared HBM since the last barrier on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .dtypes import Array
from .errors import RaceWarning
from .memory import ElementMap, Region, StorageInfo, first_index
from .rules import fail, kernel_frame
from .running import running

if TYPE_CHECKING:
    from .tensor import NkiTensor

#: Of one element: a write and a read by core 0 (core 1: the next bit), and a write of other bytes after one.
_WRITE, _READ, _REWRITTEN = 1, 4, 16
_WRITES = _WRITE | _WRITE << 1


class _Access(NamedTuple):
    region: Region
    core: int
    writing: bool
    file: str
    line: int

    def verb(self) -> str:
        return "writes" if self.writing else "reads"


class SharedAccess:
    """Accesses to one shared storage since its last barrier.

    Two accesses conflict if different cores touch one element and one of them writes another value: in kernels that do
    not share work both cores write the same results, and any order leaves the same bytes. So a core may also read the
    other's bytes if it wrote the same bytes itself and no core wrote others. Reads cost a list entry until the first
    write; from then on a byte an element records who wrote, who read, and whether it was written again.

    Args:
        allowed: a conflict is a RaceWarning, one for each line of the kernel, instead of NKI028.
    """

    def __init__(self, info: StorageInfo, *, allowed: bool = False) -> None:
        self._info = info
        self._allowed = allowed
        self._told: set[tuple[str, int]] = set()
        self._log: list[_Access] = []
        self._touched: ElementMap | None = None

    def clear(self) -> None:
        """A barrier on the storage: everything before it is ordered."""
        self._log.clear()
        self._touched = None

    def touch(self, tensor: NkiTensor, *, writing: bool, changed: Callable[[], Array] | None = None) -> None:
        """Record an access of the running core; refuse it when it conflicts (NKI028).

        changed: of a write, says which elements it gives other bytes than they have; None: perhaps all.
        """
        frame, _ = kernel_frame()
        program = running()
        assert program is not None
        file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
        access = _Access(tensor.region(), program.core, writing, file, line)
        if self._touched is None and writing:
            self._touched = ElementMap(self._info, np.uint8)
            for earlier in self._log:
                self._mark(self._touched, earlier)
        if self._touched is not None:
            self._check(self._touched, access, tensor, changed)
            self._mark(self._touched, access)
        self._log.append(access)

    def _mark(self, touched: ElementMap, access: _Access) -> None:
        cells = touched.view(access.region)
        np.bitwise_or(cells, (_WRITE if access.writing else _READ) << access.core, out=cells)

    def _check(
        self, touched: ElementMap, access: _Access, tensor: NkiTensor, changed: Callable[[], Array] | None
    ) -> None:
        other = 1 - access.core
        seen = touched.view(access.region)
        if not seen.any():  # as most: each core's part is its own
            return
        if access.writing:
            clash: Array = (seen & ((_WRITE | _READ) << other)) != 0
            again = (seen & _WRITES) != 0
            if changed is not None and (clash.any() or again.any()):
                differs = changed()
                differs = differs if clash.ndim == differs.ndim else differs[..., None]
                clash, again = clash & differs, again & differs
            np.bitwise_or(seen, np.uint8(_REWRITTEN), out=seen, where=again)
        else:
            own = (seen & (_WRITE << access.core | _REWRITTEN)) == _WRITE << access.core
            clash = ((seen & (_WRITE << other)) != 0) & ~own
        if not clash.any() or (access.file, access.line) in self._told:
            return
        index = first_index(clash, len(access.region.shape))
        earlier = self._culprit(access, clash)
        detail = (
            f"core {access.core} {access.verb()} element {index} of the view here, "
            f"core {other} {earlier.verb()} it at {earlier.file}:{earlier.line}"
        )
        if not self._allowed:
            fail("NKI028", detail, tensor=tensor)
        self._told.add((access.file, access.line))
        warnings.warn_explicit(f"NKI028: {detail}: {tensor.describe()}", RaceWarning, access.file, access.line)

    def _culprit(self, access: _Access, clash: Array) -> _Access:
        """The other core's first access that `access` conflicts with."""
        shape = access.region.shape
        for earlier in self._log:
            if earlier.core != access.core and (earlier.writing or access.writing):
                probe = ElementMap(self._info)
                probe.view(earlier.region).fill(True)
                hits = probe.view(access.region)
                if (_by_element(hits, shape) & _by_element(clash, shape)).any():
                    return earlier
        raise AssertionError("a conflict without an earlier access")


def _by_element(cells: Array, shape: tuple[int, ...]) -> Array:
    """Whether any cell of each element of a view is true."""
    found: Array = np.any(cells.reshape(*shape, -1), axis=-1)
    return found
