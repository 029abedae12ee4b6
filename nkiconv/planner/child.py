"""The search in a separate process, under nkiconv's simulator, if this process runs AWS's NKI, which times nothing.

`python -m nkiconv.planner.serve` starts with the first search, answers all searches of this process, and ends with it:
a request, progress and a reply are JSON, a line each, over its standard streams. This module imports no NKI.
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

#: Seconds without a line after which the process counts as stuck; between two lines it times one candidate.
SILENCE_S = 600.0
#: Seconds for the process to end after its last answer.
END_S = 5.0
#: The module of the process.
MODULE = f"{__package__}.serve"


def search(request: Request, *, wide: bool, advance: Advance, quick: bool = False) -> Plan:
    """The answer of `entry.answer` in the process, without the cache.

    Raises: the planner's errors, unchanged; PlanningError if the process cannot start, ends, or is stuck.
    """
    return Plan.from_dict(_answer(request, advance, wide=wide, quick=quick)["plan"])


def estimate(request: Request) -> Estimate:
    """The answer of `estimate.chosen` in the process. Raises as `search`."""
    return Estimate.from_dict(_answer(request, lambda *told: None, estimate=True)["estimate"])


def _answer(request: Request, advance: Advance, **how: bool) -> dict[str, Any]:
    """The process's answer to one question."""
    with _lock:
        process = _running()
        try:
            asked = {"request": dataclasses.asdict(request), "target": CONSTANTS.key, **how}
            reply = process.ask(asked, advance)
        except BaseException:  # in the middle of an answer: the process takes no further question
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
    """A running `serve`, and the lines of its output."""

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
                    start_new_session=True,  # a Ctrl-C reaches this process, which ends that one
                )
            except (OSError, TypeError) as error:  # TypeError: there is no sys.executable
                raise PlanningError(f"the planner's process cannot start ({type(error).__name__}: {error})") from error
            failed.pop_all()
        self._busy = False
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="nkiconv planner").start()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._popen.poll() is not None

    def ask(self, question: dict[str, Any], advance: Advance) -> dict[str, Any]:
        """The reply to a question; passes its progress to `advance`. Raises PlanningError."""
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
        """Let the process end; kill it if it is busy or does not end."""
        self.disown()
        try:
            self._popen.wait(0 if self._busy else END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._stderr.close()

    def disown(self) -> None:
        """Close the process's input, at whose end of file it ends."""
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
        """The end of the process in words, with its last line of stderr."""
        try:
            status = self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            return "the planner's process has closed its streams"
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace").strip().splitlines() or ["without a word"]
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the planner's process {how} ({words[-1]})"


def environment(nki: str) -> dict[str, str]:
    """This process's environment, so that the child finds the same nkiconv and constants, with NKICONV_NKI=nki; without
    its number of cores, which requests have."""
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
    """The error that the process raised."""
    known = getattr(errors, kind, None)
    if not (isinstance(known, type) and issubclass(known, NkiconvError)):
        raise PlanningError(f"the planner's process says {kind}, which is no error of nkiconv ({message})")
    return known(message, violations)


def _forget() -> None:
    """Drop the parent's planner in a forked process: it must see the end of file when the parent ends."""
    global _lock, _process
    if _process is not None:
        _process.disown()
        _inherited.append(_process)
    _lock, _process = threading.Lock(), None


_process: _Process | None = None
#: Held while the process is asked, as it answers one question at a time.
_lock = threading.Lock()
#: Kept, as Python would reap a process without references, which only the parent does.
_inherited: list[_Process] = []
atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
