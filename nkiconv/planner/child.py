"""The search in a process of its own, under nkiconv's simulator: where AWS's NKI, which times nothing, runs this one.

`python -m nkiconv.planner.serve` starts with the first search, answers all of this process, and ends with it: one
request, progress and one reply are JSON, a line each, over its standard streams. Nothing here needs any NKI.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from typing import Any

from .. import errors
from ..errors import NkiconvError, PlanningError
from ..simulator.constants import VARIABLE
from ..simulator.hardware import CONSTANTS
from ..simulator.profiling.settings import Advance
from .plan import Estimate, Plan
from .request import Request

#: Seconds without a word after which the process counts as stuck; between two words it times one candidate.
SILENCE_S = 600.0
#: Seconds that it has to end once its last request is answered.
END_S = 5.0
#: What runs there.
MODULE = f"{__package__}.serve"


def search(request: Request, *, wide: bool, advance: Advance, quick: bool = False) -> Plan:
    """What `entry.answer` says there, without the cache.

    Raises: the planner's own errors, as they are; PlanningError where the process cannot start, ends, or is stuck.
    """
    return Plan.from_dict(_answer(request, advance, wide=wide, quick=quick)["plan"])


def estimate(request: Request) -> Estimate:
    """What `estimate.chosen` says there. Raises as `search`."""
    return Estimate.from_dict(_answer(request, lambda *told: None, estimate=True)["estimate"])


def _answer(request: Request, advance: Advance, **how: bool) -> dict[str, Any]:
    """The process's answer to one question."""
    with _lock:
        process = _running()
        try:
            asked = {"request": dataclasses.asdict(request), "target": CONSTANTS.key, **how}
            reply = process.ask(asked, advance)
        except BaseException:  # in the middle of an answer: nothing more can be asked
            stop()
            raise
    if "error" in reply:
        raise _error(**reply["error"])
    return reply


def stop() -> None:
    """End the process, if there is one; the next search starts another."""
    global _process
    process, _process = _process, None
    if process is not None:
        process.end()


class _Process:
    """A running `serve`, and what it says."""

    def __init__(self) -> None:
        with ExitStack() as failed:
            try:
                self._stderr = failed.enter_context(tempfile.TemporaryFile())  # read when it has ended
                self._popen = subprocess.Popen(
                    [sys.executable, "-m", MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    env=environment("simulator"),
                    encoding="utf-8",
                    start_new_session=True,  # a Ctrl-C is for this process, which ends that one
                )
            except (OSError, TypeError) as error:  # TypeError: there is no sys.executable
                raise PlanningError(f"the planner's process cannot start ({type(error).__name__}: {error})") from error
            failed.pop_all()
        self._busy = False
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="nkiconv planner").start()

    @property
    def ended(self) -> bool:
        """Whether it can be asked nothing any more."""
        return self._popen.poll() is not None

    def ask(self, question: dict[str, Any], advance: Advance) -> dict[str, Any]:
        """Its reply; `advance` is told what it tells on the way. Raises PlanningError."""
        assert self._popen.stdin is not None
        self._busy = True
        try:
            self._popen.stdin.write(json.dumps(question) + "\n")
            self._popen.stdin.flush()
        except OSError:
            raise PlanningError(self._epitaph()) from None
        while True:
            try:
                line = self._said.get(timeout=SILENCE_S)
            except queue.Empty:
                raise PlanningError(f"the planner's process has said nothing for {SILENCE_S:g} s") from None
            if not line.endswith("\n"):
                raise PlanningError(self._epitaph())
            reply: dict[str, Any] = json.loads(line)
            if "advance" not in reply:
                self._busy = False
                return reply
            advance(*reply["advance"])

    def end(self) -> None:
        """Let it end; kill it where it is busy, or does not."""
        self.disown()
        try:
            self._popen.wait(0 if self._busy else END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._stderr.close()

    def disown(self) -> None:
        """Ask it nothing any more, by an end of file, on which it ends."""
        assert self._popen.stdin is not None
        with suppress(OSError):  # it has ended, with a request unread
            self._popen.stdin.close()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as said:
            for line in said:
                self._said.put(line)
        self._said.put("")

    def _epitaph(self) -> str:
        """How it ended, and its last words."""
        try:
            status = self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            return "the planner's process has closed its streams"
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace").strip().splitlines() or ["without a word"]
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the planner's process {how} ({words[-1]})"


def environment(nki: str) -> dict[str, str]:
    """That of this process, so that the same nkiconv and constants are found, with this for NKICONV_NKI; cores are as
    requests say."""
    path = os.pathsep.join(one or os.getcwd() for one in sys.path)
    kept = {name: value for name, value in os.environ.items() if name != "NEURON_LOGICAL_NC_CONFIG"}
    kept[VARIABLE] = str(CONSTANTS.path or "")
    return {**kept, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "NKICONV_NKI": nki}


def _running() -> _Process:
    global _process
    if _process is not None and _process.ended:
        stop()
    if _process is None:
        _process = _Process()
    return _process


def _error(kind: str, message: str, violations: list[str]) -> NkiconvError:
    """The error that was raised there."""
    known = getattr(errors, kind, None)
    if not (isinstance(known, type) and issubclass(known, NkiconvError)):
        raise PlanningError(f"the planner's process says {kind}, which is no error of nkiconv ({message})")
    return known(message, violations)


def _forget() -> None:
    """In a process that this one forks: its parent's planner is not its own, and must see the end of its parent."""
    global _lock, _process
    if _process is not None:
        _process.disown()
        _inherited.append(_process)
    _lock, _process = threading.Lock(), None


_process: _Process | None = None
#: Held while the process is asked, which answers one at a time.
_lock = threading.Lock()
#: Kept, as Python ends a process without references, which is for its parent to do.
_inherited: list[_Process] = []
atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
