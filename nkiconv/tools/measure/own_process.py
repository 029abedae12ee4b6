"""Work that needs nkiconv's simulator, for a process whose NKI is AWS's: one process has one NKI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from ...errors import UnsupportedError


def in_own_process(module: str, request: dict[str, Any], what: str) -> Any:
    """What `python -m module` prints, as JSON, for a request that it reads from stdin as JSON.

    Args: what: to name in the error. Raises: UnsupportedError, with the last line of what the process said.
    """
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        env={**os.environ, "NKICONV_NKI": "simulator"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UnsupportedError(f"{what} failed in a process of its own ({reason})")
    return json.loads(done.stdout)
