"""The NEFF of a probe's kernel, in a process of its own: its name and count as JSON on stdin, the path on stdout."""

from __future__ import annotations

import json
import sys

from ...launches import on_cores
from ..measure.neffs import compiled
from .clocks import zeros
from .probe import LNC
from .suite import PROBES

if __name__ == "__main__":
    asked = json.load(sys.stdin)
    probe = next(one for one in PROBES if one.name == asked["probe"])
    kernel = on_cores(probe.kernel, LNC)
    print(json.dumps({"neff": str(compiled(lambda: kernel(zeros(probe), **probe.arguments(asked["count"]))))}))
