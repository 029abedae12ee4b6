"""Work in a process of its own, as one process has one NKI, and AWS's keeps one folder of compiled kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from ...errors import UnsupportedError


def in_own_process(module: str, request: dict[str, Any], what: str, **environment: str) -> Any:
    """The last line that `python -m module` prints, as JSON, for a request that it reads from stdin as JSON.

    Args: what: its name in the error. environment: variables of the process; none: its NKI is nkiconv's simulator.
    Raises: UnsupportedError, with the last line of the process's output.
    """
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        env={**os.environ, **(environment or {"NKICONV_NKI": "simulator"})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UnsupportedError(f"{what} failed in a process of its own ({reason})")
    return json.loads(done.stdout.splitlines()[-1])
