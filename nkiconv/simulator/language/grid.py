"""The launch grid, asked from inside a kernel."""

from __future__ import annotations

from typing import Any

from ..program import current
from ..rules import fail


def program_id(axis: int = 0) -> int:
    """Which core this is."""
    if axis != 0:
        fail("NKI026", f"program_id({axis}); a launch grid has one axis")
    return current().core


def num_programs(axes: Any = 0) -> int:
    """How many cores run the kernel."""
    if axes not in (0, None, (0,), [0]):
        fail("NKI026", f"num_programs({axes!r}); a launch grid has one axis")
    return current().num_programs


def program_ndim() -> int:
    """Dimensions of the launch grid: 0 without one."""
    return current().launch.grid_dims
