"""The one import of NKI: AWS's `nki` where it is really installed, else `nkiconv.simulator`.

Kernels take `nki`, `nisa` and `nl` from here. ``NKICONV_NKI=aws|simulator|auto`` (default auto) overrides the choice,
which `providers.choose` makes; one that cannot be satisfied, or an `nki` older than 0.7, raises UnsupportedError on
import.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import simulator
from .providers import choose

CHOICE = choose()

nki: Any
nisa: Any
nl: Any
if CHOICE.provider == "aws":
    nki = CHOICE.aws.module
    nisa = importlib.import_module("nki.isa")
    nl = importlib.import_module("nki.language")
else:
    nki, nisa, nl = simulator, simulator.isa, simulator.language

simulate = nki.simulate
