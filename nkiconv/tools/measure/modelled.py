"""The model's prediction for a case, also where AWS's NKI runs the kernels.

One process has one NKI. Where that is AWS's, which records no instructions, `python -m nkiconv.tools.measure.modelled`
profiles the case in a process of its own, in which the kernels run on nkiconv's simulator.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Any

from ... import cases
from ..._nki import CHOICE
from ...simulator.profiling import Advance, ignore
from ..suites.profiles import profile_case
from .own_process import in_own_process


@dataclass(frozen=True)
class Modelled:
    """A case's profile in the numbers that a measurement is held against; times in us, all modelled."""

    algorithm: str
    tiles: dict[str, int]
    modelled_us: float  # mean over the phases of the throttle's grid
    phase0_us: float
    worst_us: float
    bound_by: str
    copy_floor_us: float
    copy_tile_bytes: int  # a partition of the best tile of `copy_floor`
    launch_floor_us: float
    roofline_us: float
    hbm_bytes: int
    instructions: int

    @property
    def x_copy_floor(self) -> float:
        """Modelled time over that of moving the same bytes."""
        return self.modelled_us / self.copy_floor_us

    @property
    def roofline_fraction(self) -> float:
        """Share of the roofline that the modelled time reaches."""
        return self.roofline_us / self.modelled_us

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        derived = ("x_copy_floor", "roofline_fraction")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}


def model(
    name: str, dtype: str | None, lnc: int, algorithm: str | None, advance: Advance, precision: str | None = None
) -> Modelled:
    """The prediction for the case of this name.

    Args: dtype: instead of the case's own. algorithm: None takes the estimate. precision: `nkiconv.conv2d`'s.
    Raises: UnsupportedError, for what cannot be profiled.
    """
    how: dict[str, Any] = {"dtype": dtype, "lnc": lnc, "algorithm": algorithm, "precision": precision}
    if CHOICE.provider != "simulator":
        return Modelled(**in_own_process(__name__, {"name": name, **how}, f"case={name!r}: its model"))
    one, _ = profile_case(cases.get(name), **how, advance=advance)
    found = one.profile
    return Modelled(
        algorithm=one.algorithm,
        tiles=one.tiles,
        modelled_us=found.modelled_us,
        phase0_us=found.phases.phase0_us,
        worst_us=found.phases.worst_us,
        bound_by=found.bound_by,
        copy_floor_us=one.floors.copy_us,
        copy_tile_bytes=one.floors.copy_tile_bytes,
        launch_floor_us=one.floors.launch_us,
        roofline_us=found.roofline_us,
        hbm_bytes=found.hbm_bytes,
        instructions=found.instructions,
    )


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(dataclasses.asdict(model(**asked, advance=ignore))))
