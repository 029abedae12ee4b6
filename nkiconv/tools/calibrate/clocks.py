"""Clocks for probes: chains of calls on a device, or a NEFF's time on the device itself.

The second is `nrtpy.NrtpyModel.benchmark` in device mode, as AWS documents it. Its wheel and nki's cannot share a
Python environment, so it has its own, whose interpreter NKICONV_NRTPY names. Written from the documents, and never run
there; the runtime in nki's own wheel is undocumented, and not used.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...errors import UnsupportedError
from ...launches import DEGREE, on_cores
from ...simulator.dtypes import DTYPES
from ..doctor import diagnose
from ..measure.device import Call, Device
from ..measure.neffs import ARTIFACTS
from ..measure.own_process import in_own_process
from . import nrtpy_process
from .probe import LNC, Probe

#: Names the interpreter of nrtpy's environment.
VARIABLE = "NKICONV_NRTPY"
#: Calls of a kernel in a graph that is timed.
CALLS = 16
#: Runs of a NEFF whose median is one time.
RUNS = 10


class Clock(Protocol):
    """A clock for probes."""

    name: str  # the kind of its seconds
    description: str  # of the machine, with versions
    rounds: int  # that it takes for noise of a few per cent

    def seconds(self, probe: Probe, count: int) -> float:
        """Seconds of a launch of the probe's kernel, with the cost of the launch."""

    def forget(self) -> None:
        """Drop compiled graphs of earlier calls."""


class Chains:
    """Calls of a kernel, one after another in one graph; a call's time is its share of the graph's."""

    rounds = 100

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name, self.description = device.clock, device.description
        self._arrays: dict[str, list[Call]] = {}
        self._launched: dict[str, Any] = {}

    def seconds(self, probe: Probe, count: int) -> float:
        """Of a call in the graph."""
        if probe.name not in self._launched:
            self._launched[probe.name] = on_cores(probe.kernel, LNC)
            self._arrays[probe.name] = [(zeros(probe),) for _ in range(CALLS)]
        launched, calls = self._launched[probe.name], self._arrays[probe.name]
        return self._device.seconds(launched, calls, probe.arguments(count)) / CALLS

    def forget(self) -> None:
        """Drop graphs and arrays."""
        self._device.forget()
        self._arrays.clear()
        self._launched.clear()


class Neffs:
    """A NEFF for each kernel, which another environment's nrtpy runs; the time is the NeuronCore's.

    Args: python: that environment's interpreter.
    Raises: UnsupportedError, where it has no nrtpy.
    """

    name = "device time, nrtpy"
    rounds = 10

    def __init__(self, python: str) -> None:
        self._python, pipe = python, subprocess.PIPE
        command, environment = [python, nrtpy_process.__file__], {**os.environ, DEGREE: str(LNC)}
        try:
            self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        except OSError as error:
            raise UnsupportedError(f"{VARIABLE}={python}: {error.strerror}; name a Python interpreter") from error
        try:
            version = self._asked({})["version"]
        except RuntimeError as error:
            raise UnsupportedError(f"{VARIABLE}={python}: has no nrtpy ({error}); install it there") from error
        versions = {package.name: package.version for package in diagnose().packages}
        self.description = f"nrtpy {version}, nki {versions['nki']}, neuronx-cc {versions['neuronx-cc']}"
        self._folder = tempfile.TemporaryDirectory(prefix="nkiconv-calibrate-")
        self._neffs: dict[tuple[str, int], str] = {}

    def seconds(self, probe: Probe, count: int) -> float:
        """The median of `RUNS` executions."""
        key = probe.name, count
        if key not in self._neffs:
            folder = Path(self._folder.name) / f"{probe.name}-{count}"
            folder.mkdir()
            environment = {ARTIFACTS: str(folder), DEGREE: str(LNC)}
            request, what = {"probe": probe.name, "count": count}, f"{probe.name}: its compilation"
            self._neffs[key] = in_own_process(f"{__package__}.compiling", request, what, **environment)["neff"]
        return float(statistics.median(self._asked({"neff": self._neffs[key], "runs": RUNS})["seconds"]))

    def forget(self) -> None:
        """Drop loaded models; their NEFFs go with the process."""
        self._asked({"forget": True})
        self._neffs.clear()

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The process's answer. Raises UnsupportedError where it ended, RuntimeError where it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and says no more
            print(json.dumps(request), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(nrtpy_process.MARK):
                answer: dict[str, Any] = json.loads(line[len(nrtpy_process.MARK) :])
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer
        raise UnsupportedError(f"{VARIABLE}={self._python}: ended with status {self._process.wait()}")


def zeros(probe: Probe) -> Any:
    """An array for the probe's kernel."""
    return np.zeros(probe.shape, DTYPES[probe.dtype].numpy)
