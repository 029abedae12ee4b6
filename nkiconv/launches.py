"""Launches on a device: the number of cores, on which three settings must agree, and a variable that shortens them.

Facts of SDK 2.33 ("Using Logical NeuronCores with NKI", NCC_EVRF066, "Logical NeuronCore configuration", nki.jit). A
kernel's LNC degree is that of its bracket grid, deprecated in NKI 0.7, else NEURON_LOGICAL_NC_CONFIG, else 1; a graph's
is neuronx-cc's --lnc, which NEURON_CC_FLAGS may hold; the runtime's is NEURON_LOGICAL_NC_CONFIG, on trn2 2 where that
is unset. The compiler refuses a graph with kernels of another degree. Never run on a device.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

from .errors import LaunchWarning, UnsupportedError, raise_all
from .rules import accepted

DEGREE, FLAGS, TARGET = "NEURON_LOGICAL_NC_CONFIG", "NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE"
#: --lnc and its other names, as neuronx-cc's reference has them.
_FLAG = re.compile(r"(?:^|[\s'\"])--?(?:lnc|logical-nc-config)(?:=|\s+)([^\s'\"]+)")
#: How torch launches kernels: one by one, in graphs of torch.compile, or recorded by torch_xla.
MODES = ("eager", "compiled", "xla")
#: Cost of a launch under torch_xla with TARGET unset, reported for whn09/xpu-perf; its public files lack the figure.
TARGET_MS = 52


def launch_mode(value: Any, name: str = "mode") -> str:
    """Why a mode of launching is refused; "" for one of MODES or None."""
    return accepted(name, value, (None, *MODES), "use one of these")


def degree(asked: int | None = None, unset: int = 2) -> int:
    """The number of cores of a launch, on which its three settings must agree.

    Args: asked: the launch's own argument, or None. unset: the value of DEGREE if it is unset.

    Raises: UnsupportedError, naming all three, if they differ or one is neither 1 nor 2.
    """
    flags = _FLAG.findall(os.environ.get(FLAGS, ""))
    settings = {
        DEGREE: os.environ.get(DEGREE),
        f"--lnc in {FLAGS}": flags[-1] if flags else None,
        "the launch's LNC degree": None if asked is None else str(asked),
    }
    given = {name: value for name, value in settings.items() if value is not None}
    wrong = [name for name, value in given.items() if value not in ("1", "2")]
    raise_all(
        "a kernel cannot be launched",
        [UnsupportedError(f"{name}={given[name]!r}: must be 1 or 2 (LNC degrees of trn2)") for name in wrong],
    )
    found = {int(value) for value in given.values()} | ({unset} if settings[DEGREE] is None else set())
    if len(found) == 1:
        return found.pop()
    said = [f"{name} is {value or 'unset'}" for name, value in settings.items()]
    said[0] += f", taken for {unset}" if settings[DEGREE] is None else ""
    raise UnsupportedError(
        f"{'; '.join(said)}: these must agree, as a graph and its kernels have one LNC degree and neuronx-cc refuses "
        f"another (NCC_EVRF066); set {DEGREE} to the one you mean and leave the other two out"
    )


def other_degree(lnc: int) -> Iterator[UnsupportedError]:
    """Why a process cannot launch on `lnc` cores once DEGREE is set; empty if it can."""
    try:
        degree(lnc, unset=lnc)
    except UnsupportedError as error:
        yield error


def on_cores(kernel: Any, lnc: int) -> Any:
    """A callable that launches a kernel on `lnc` cores: with a bracket grid, or the kernel itself if it takes none.

    Raises: UnsupportedError if it takes none and DEGREE differs.
    """
    if hasattr(kernel, "__getitem__"):
        return kernel[lnc]
    found = os.environ.get(DEGREE)
    if (found or "1") != str(lnc):
        raise UnsupportedError(
            f"{DEGREE} is {found or 'unset, which kernels take for 1'}: must be {lnc}, the launch's LNC degree, as "
            f"kernels of this nki take no grid; set it to {lnc} before the process starts"
        )
    return kernel


@functools.cache
def advise_target() -> None:
    """Warn, once a process, where TARGET is unset; for kernels that AWS's nki launches under torch_xla."""
    if TARGET not in os.environ:
        warnings.warn(slow_without_target(), LaunchWarning, stacklevel=2)


def slow_without_target() -> str:
    """The cost of an unset TARGET, and the remedy."""
    return (
        f"{TARGET}: is unset, so that under torch_xla each launch of a kernel starts a process to ask for the "
        f"platform, about {TARGET_MS} ms (reported by others); set it to trn2"
    )
