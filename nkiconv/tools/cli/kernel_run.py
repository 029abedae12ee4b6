"""`nkiconv run FILE.py:KERNEL`: the caller's kernel in the simulator, its results and its modelled time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ... import simulator
from ...errors import NkiconvError, UnsupportedError
from ...simulator.hardware import PSUM_BANKS, SBUF_USABLE_BYTES_PER_PARTITION
from ...whole_file import whole_file
from ..tables.readme import Columns
from .grid import Grid
from .kernels import KernelCall, keywords
from .paths import unwritable
from .shell import notes, say
from .show import cores, quantity


@dataclass(frozen=True)
class KernelRun:
    """One run of a kernel with data."""

    call: KernelCall
    outputs: tuple[Any, ...]
    instructions: dict[str, int]
    dma_bytes: int
    sbuf_peak_bytes: int
    psum_peak_banks: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; arrays as `told` describes them."""
        return {
            "kernel": self.call.target,
            "lnc": self.call.lnc,
            "outputs": [told(one) for one in self.outputs],
            **{name: value for name, value in vars(self).items() if name not in ("call", "outputs", "seconds")},
            "simulated_seconds": self.seconds,
        }


def run_kernel(call: KernelCall, seed: int) -> KernelRun:
    """Run a kernel in the simulator, with every rule checked.

    Raises NkiError: it breaks one. UnsupportedError: it raises something else, with the line of its file.
    """
    arrays, arguments = call.arrays(seed), keywords(call.arguments)
    began = time.perf_counter()
    with call.kernel() as kernel:
        execution = call.guarded(lambda: simulator.execute(kernel, arrays, arguments))
    return KernelRun(
        call=call,
        outputs=tuple(_each(execution.outputs)),
        instructions=dict(sorted(Counter(one.engine for one in execution.instructions).items())),
        dma_bytes=sum(one.bytes for one in execution.instructions if one.engine == "dma"),
        sbuf_peak_bytes=execution.sbuf_peak_bytes,
        psum_peak_banks=execution.psum_peak_banks,
        seconds=time.perf_counter() - began,
    )


def _each(returned: Any) -> Iterator[Any]:
    """The arrays, and other values, in tuples, lists and dicts that a kernel returned."""
    if isinstance(returned, (tuple, list, dict)):
        for one in returned.values() if isinstance(returned, dict) else returned:
            yield from _each(one)
    elif returned is not None:
        yield returned


def told(array: Any) -> dict[str, Any]:
    """The description of an array that a kernel returned: shape, dtype, range, mean, and the count of NaN and Inf."""
    if not isinstance(array, np.ndarray):
        return {"value": repr(array)}
    found = {"shape": list(array.shape), "dtype": str(array.dtype)}
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    numbers = {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.size else {}
    return (
        found | {name: float(value) for name, value in numbers.items()} | {"nonfinite": int(values.size - finite.size)}
    )


def same_bits(one: KernelRun, other: KernelRun) -> bool:
    """Whether two runs returned the same bits."""
    return [np.asarray(a).tobytes() for a in one.outputs] == [np.asarray(a).tobytes() for a in other.outputs]


def show(screen: Console, runs: list[KernelRun]) -> None:
    """Print the results and the modelled times."""
    _outputs(runs).show(screen)
    for one in runs:
        for line in _lines(one):
            say(screen, line)
        notes(screen, f"simulated in {one.seconds:.2f} s")


def verdict(runs: list[KernelRun]) -> tuple[str, bool]:
    """One line: that no rule is broken, whether one core and two agree, and whether all that came is 0 or no number;
    and whether all is right."""
    if len(runs) == 2 and not same_bits(*runs):
        return "WRONG: one core and two return DIFFERENT bits", False
    both = "; one core and two return the same bits" if len(runs) == 2 else ""
    name, but = runs[0].call.name, _doubtful(runs[0].outputs)
    return f"all right: {name} breaks no rule of NKI{both}{but}; compare what it returned with your reference", True


def _doubtful(outputs: tuple[Any, ...]) -> str:
    """A warning for results that are missing, all 0 or not finite, without a reference."""
    if not outputs:
        return ", but it returned nothing: results are the tensors in nl.shared_hbm that a kernel returns"
    arrays = [one.astype(np.float64) for one in outputs if isinstance(one, np.ndarray) and one.size]
    if arrays and not any(one.any() for one in arrays):
        return ", but every element that it returned is 0"
    lost = sum(int(np.sum(~np.isfinite(one))) for one in arrays)
    return f", but {lost:,} of the elements that it returned are NaN or Inf" if lost else ""


def _outputs(runs: list[KernelRun]) -> Grid:
    numbers = (("min", "min", ".4g"), ("mean", "mean", ".4g"), ("max", "max", ".4g"), ("NaN, Inf", "nonfinite", ",d"))
    columns: Columns = (("returned", "value", ""), ("dtype", "dtype", ""), ("cores", "lnc", "d"), *numbers)
    grid = Grid.of(f"{runs[0].call.name} returned", columns)
    for one in runs:
        for found in map(told, one.outputs):
            shape = " x ".join(map(str, found.get("shape", ())))
            grid.put({"value": shape, "lnc": one.call.lnc, **found})
    return grid


def _lines(one: KernelRun) -> Iterator[str]:
    counts = ", ".join(f"{engine} {count:,}" for engine, count in one.instructions.items())
    yield f"{cores(one.call.lnc)}: {sum(one.instructions.values()):,} instructions: {counts}"
    share = one.sbuf_peak_bytes / SBUF_USABLE_BYTES_PER_PARTITION
    yield (
        f"DMA {quantity(one.dma_bytes, 'B')}; SBUF {one.sbuf_peak_bytes:,} B per partition ({share:.0%}), PSUM "
        f"{one.psum_peak_banks} of {PSUM_BANKS} banks"
    )


def refused_out(path: Path, force: bool) -> Iterator[NkiconvError]:
    """Why a kernel's results cannot go to a file."""
    yield from unwritable("--out", path, "an .npy or .npz file", force=force)
    if path.suffix not in (".npy", ".npz"):
        yield UnsupportedError(f"--out={path}: arrays of a kernel go to .npy or .npz; name it so")


def write(one: KernelRun, path: Path) -> str:
    """Write a kernel's results to .npy or .npz; returns a description of the file.

    Raises UnsupportedError: several arrays for a .npy, or a value that is no array.
    """
    others = [type(array).__name__ for array in one.outputs if not isinstance(array, np.ndarray)]
    if others:
        raise UnsupportedError(f"--out={path}: the kernel returned {', '.join(others)}, no array; return tensors")
    if path.suffix == ".npy" and len(one.outputs) != 1:
        raise UnsupportedError(f"--out={path}: {len(one.outputs)} arrays were returned, .npy holds one; use .npz")
    with whole_file(path) as part, open(part, "wb") as file:
        if path.suffix == ".npy":
            np.save(file, one.outputs[0])
        else:
            np.savez(file, **{f"y{index}" if index else "y": array for index, array in enumerate(one.outputs)})
    return f"wrote {path}"
