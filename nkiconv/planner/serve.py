"""The planner's process, which `child` starts: one request a line on stdin, progress and a reply on stdout.

It ends at the end of stdin, that is when the asking process ends, or if its output is closed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from ..errors import NkiconvError, PlanningError
from ..simulator.constants import VARIABLE
from ..simulator.hardware import CONSTANTS
from .entry import answer
from .estimate import chosen
from .plan import Estimate, Plan
from .request import Request


def serve(asked: TextIO, told: TextIO) -> None:
    """Answer until stdin ends."""

    def tell(what: dict[str, Any]) -> None:
        told.write(json.dumps(what) + "\n")
        told.flush()

    def advance(what: str, share: float | None) -> None:
        tell({"advance": [what, share]})

    for line in asked:
        question = json.loads(line)
        request = Request.from_dict(question["request"])
        try:
            if question["target"] != CONSTANTS.key:
                rule = "the file was changed after the process that asks has read it"
                raise PlanningError(f"{VARIABLE}={CONSTANTS.target}: {rule}; start that process again")
            if "estimate" in question:
                found: Estimate | Plan = chosen(request)
            else:
                wide, quick = question["wide"], question["quick"]
                found = answer(request, wide=wide, use_cache=False, advance=advance, quick=quick)
        except NkiconvError as error:
            said = {"kind": type(error).__name__, "message": str(error), "violations": list(error.violations)}
            tell({"error": said})
        else:
            tell({"plan" if isinstance(found, Plan) else "estimate": found.as_dict()})


def _replies() -> TextIO:
    """The original stdout; other prints go to stderr from now on."""
    found = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return found


if __name__ == "__main__":
    try:
        serve(sys.stdin, _replies())
    except BrokenPipeError:
        os._exit(0)  # no output is left to flush
