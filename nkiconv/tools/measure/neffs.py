"""NEFFs of kernels: NKI_ARTIFACTS_DIR, set before nki is imported, keeps that of a kernel that is called on arrays.

It is kept also if the execution fails, as it does without a device. Each kernel runs in its own process. Written from
AWS's documents of NKI 0.7, and never run there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Where compiled kernels go; AWS's nki reads it when it is imported.
ARTIFACTS = "NKI_ARTIFACTS_DIR"
#: Has NEFFs tell Neuron Explorer the source line of each instruction.
DEBUG = "NKI_DEBUG_INFO"


class NotCompiled(Exception):
    """A call of a kernel came back and has left no NEFF."""


def compiled(launch: Callable[[], Any]) -> Path:
    """The NEFF that a launch leaves. If there is none, raises the launch's error or NotCompiled."""
    raised = None
    try:
        launch()
    except Exception as error:  # the execution may raise any exception without a device
        raised = error
    neffs = sorted(Path(os.environ[ARTIFACTS]).rglob("*.neff"))
    if not neffs:
        raise raised or NotCompiled(f"the call returned and left no .neff file in {ARTIFACTS}")
    return neffs[0]
