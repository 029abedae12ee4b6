"""Kernels of `nkiconv compile-check`: their processes, their rows, and the file that keeps rows."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cases import Case
from ...launches import DEGREE, TARGET
from ...planner import child
from ...planner.cache import hash_of, sources_hash
from ...simulator.profiling import Advance
from ..measure.neffs import ARTIFACTS, DEBUG
from .compile_stages import first_error, line_of_log, script_of
from .kernels import KernelCall

#: The file of rows in a folder of kernels.
ROWS = "rows.jsonl"
#: The module that runs in a process, and the seconds that it has to write its traceback before it is killed.
MODULE, LAST_WORDS_S = f"{__package__}.compile_stages", 5.0
PASS, RAN, FAILED, TIMEOUT, DIED = "pass", "ran", "failed", "timeout", "died"


@dataclass(frozen=True)
class Kernel:
    """A case, its gradient, or the caller's kernel to check."""

    what: Case | KernelCall
    direction: str
    lnc: int

    @property
    def name(self) -> str:
        """The name of its row."""
        if isinstance(self.what, KernelCall):
            return self.what.target
        return f"{self.what.toward(self.direction).name} {self.what.problem.dtype}"

    @property
    def request(self) -> dict[str, Any]:
        """The request to its processes."""
        if isinstance(self.what, KernelCall):
            return {"target": self.what.target, "inputs": self.what.inputs, "arguments": self.what.arguments,
                    "lnc": self.lnc}  # fmt: skip
        return {"case": self.what.name, "direction": self.direction, "lnc": self.lnc}

    def key(self, versions: dict[str, str | None], sources: str) -> str:
        """Twelve hex digits of everything that its row depends on, files of the caller's too."""
        digest = hashlib.sha256(json.dumps([self.request, versions, sources], sort_keys=True).encode())
        for path in (script_of(self.request), *map(Path, self.request.get("inputs", ()))):
            if path is not None and path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Row:
    """The result for one kernel; times modelled, in us. Figures without a documented way to read them are None."""

    kernel: str
    lnc: int
    key: str
    algorithm: str | None = None
    simulate: str = ""  # PASS, RAN where there is no reference, or why not; "" where it did not come to that
    worst_ratio: float | None = None  # largest error over its bound
    channels_checked: int | None = None
    compile: str = ""
    neff: str | None = None
    neff_bytes: int | None = None
    instructions: int | None = None  # in nkiconv's simulator
    modelled_us: float | None = None
    predicted_us: float | None = None  # by AWS's compiler
    stage: str = ""  # of the first error
    error: str = ""
    line: str = ""
    seconds: float = 0.0
    versions: dict[str, str | None] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether AWS's tools take the kernel, and its result is right."""
        return not self.error

    @property
    def finished(self) -> bool:
        """Whether another run would say the same: a slow or crowded machine may have ended a process."""
        return not {TIMEOUT, DIED} & {self.simulate, self.compile} and not (self.error and self.stage == "model")

    def as_dict(self) -> dict[str, Any]:
        """A value a column."""
        row = dataclasses.asdict(self)
        versions = row.pop("versions")
        return {**row, **versions}


def load(path: Path) -> dict[str, Row]:
    """The finished rows of a file by their keys; of half a line, which a kill leaves, nothing."""
    found: dict[str, Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, TypeError):
            row = Row(**json.loads(line))
            if row.finished:
                found[row.key] = row
    return found


def append(path: Path, row: Row) -> None:
    """Add a row on a new line, also after a broken one."""
    with path.open("a+b") as file:
        broken = file.tell() and path.read_bytes()[-1:] != b"\n"
        file.write((b"\n" if broken else b"") + json.dumps(dataclasses.asdict(row)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


class Checker:
    """Checks kernels, each stage of each in a process with `timeout` seconds; logs and NEFFs go to folders of `out`."""

    def __init__(self, out: Path, timeout: float, versions: dict[str, str | None]) -> None:
        self.out, self.timeout, self.versions, self.sources = out.resolve(), timeout, versions, sources()
        self._lock, self._stopped = threading.Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def rows(self, kernels: Sequence[Kernel], jobs: int, rerun: bool, advance: Advance) -> list[Row]:
        """The rows of kernels, so many at a time; each is kept as soon as it is there, and taken from there unless they
        are to be made again. Ctrl-C ends all processes."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / ROWS
        known = {} if rerun else load(path)
        keys = [kernel.key(self.versions, self.sources) for kernel in kernels]
        todo = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if key not in known}
        advance(f"0 of {len(todo)}", 0.0)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for count, done in enumerate(as_completed([pool.submit(self.check, *one) for one in todo.items()]), 1):
                    row = done.result()
                    append(path, row)
                    known[row.key] = row
                    advance(f"{count} of {len(todo)}: {row.kernel}", count / len(todo))
            except BaseException:
                self._stop()
                pool.shutdown(cancel_futures=True)
                raise
        return [known[key] for key in keys]

    def check(self, key: str, kernel: Kernel) -> Row:
        """The row of a kernel."""
        began = time.monotonic()
        row = Row(kernel.name, kernel.lnc, key, versions=self.versions)
        asked = kernel.request
        if isinstance(kernel.what, Case):
            found = self._run("model", kernel, asked)
            if "taken" not in found:
                return dataclasses.replace(row, **_error("model", found), seconds=time.monotonic() - began)
            asked |= {name: found[name] for name in ("taken", "instructions")}
            numbers = {name: found[name] for name in ("modelled_us", "instructions")}
            row = dataclasses.replace(row, algorithm=found["taken"]["algorithm"], **numbers)
        for stage in ("simulate", "compile"):
            found = self._run(stage, kernel, asked)
            verdict = found.pop("verdict", RAN if stage == "simulate" and "target" in asked else PASS)
            if "error" in found:
                found = {} if row.error else _error(stage, found)
            row = dataclasses.replace(row, **{stage: verdict}, **found)
        return dataclasses.replace(row, seconds=time.monotonic() - began)

    def _stop(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    def _run(self, stage: str, kernel: Kernel, asked: dict[str, Any]) -> dict[str, Any]:
        """A stage's reply; verdict, error and line if it fails, dies, or takes too long."""
        folder = self.out / re.sub(r"[^\w.-]+", "_", f"{kernel.name} lnc{kernel.lnc}")
        artifacts, log, reply = folder / stage, folder / f"{stage}.log", folder / f"{stage}.json"
        folder.mkdir(exist_ok=True)
        reply.unlink(missing_ok=True)
        shutil.rmtree(artifacts, ignore_errors=True)
        if stage == "compile":
            artifacts.mkdir()
        words = [sys.executable, "-X", "faulthandler", "-m", MODULE, json.dumps({**asked, "stage": stage}), str(reply)]
        with log.open("wb") as file, self._lock:
            if self._stopped:
                return {"verdict": DIED, "error": "stopped", "line": ""}
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=os.getcwd(),
                env=_environment(stage, asked["lnc"], artifacts), start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        try:
            late = _is_late(process, self.timeout)
        finally:
            with self._lock:
                self._running.discard(process)
        if reply.exists() and not late:
            found: dict[str, Any] = json.loads(reply.read_text(encoding="utf-8"))
            return {**found, "verdict": FAILED} if "error" in found else found
        said = log.read_text(encoding="utf-8", errors="replace")
        where = {"line": line_of_log(said, script_of(asked))}
        if late:
            return {"verdict": TIMEOUT, "error": f"took more than {self.timeout:g} s", **where}
        how = (
            f"killed by signal {-process.returncode}" if process.returncode < 0 else f"ended with {process.returncode}"
        )
        return {"verdict": DIED, "error": f"{how}: {first_error(said)}", **where}


def _error(stage: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"stage": stage, "error": found["error"], "line": found["line"]}


def _is_late(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process, or end it and all that it started: first by a signal on which it says where it is."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
        return True
    finally:
        _kill(process)
        process.wait()
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(stage: str, lnc: int, artifacts: Path) -> dict[str, str]:
    """A process's environment: the simulator's, or AWS's for trn2."""
    if stage == "model":
        return child.environment("simulator")
    kept = {ARTIFACTS: str(artifacts), DEBUG: "True"} if stage == "compile" else {}
    return {**child.environment("aws"), TARGET: "trn2", DEGREE: str(lnc), **kept}


def sources() -> str:
    """Hex digits of all that rows depend on: kernels, who plans them, the simulator, constants, the reference."""
    names = "planner", "reference", "bounds", "tools.verify"
    return sources_hash() + hash_of(*(importlib.import_module(f"nkiconv.{name}") for name in names))
