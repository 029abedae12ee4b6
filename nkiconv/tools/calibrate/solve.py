"""Estimates, in this process or, where its NKI is AWS's, in one of its own: they rest on the timing model."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence

from ..._nki import CHOICE
from ...simulator.profiling import Advance, ignore
from ..measure.own_process import in_own_process
from .estimate import Estimate, Fit, estimate
from .measured import Slope
from .model import shared
from .suite import PROBES


def solve(
    slopes: Sequence[Slope], advance: Advance, start: Mapping[str, float] | None = None
) -> tuple[list[Estimate], list[Fit]]:
    """The constants that measured slopes tell, and how the model then fits them; start: as in `estimate`."""
    if CHOICE.provider == "simulator":
        probes = {probe.name: probe for probe in PROBES}
        return estimate([probes[one.probe] for one in slopes], slopes, shared(), start or {}, advance)
    advance("solving", None)
    found = in_own_process(
        __name__, {"slopes": [dataclasses.asdict(one) for one in slopes]}, "solving for the constants"
    )
    return [Estimate(**one) for one in found["estimates"]], [
        Fit(**{**one, "slope": Slope(**one["slope"])}) for one in found["fits"]
    ]


if __name__ == "__main__":
    estimates, fits = solve([Slope(**one) for one in json.load(sys.stdin)["slopes"]], ignore)
    print(
        json.dumps(
            {
                "estimates": [dataclasses.asdict(one) for one in estimates],
                "fits": [dataclasses.asdict(one) for one in fits],
            }
        )
    )
