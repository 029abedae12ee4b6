"""The caller's kernel: FILE.py:KERNEL, its arguments as typed, and its errors with the lines of that file first."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ... import rules, simulator
from ...errors import DtypeError, GeometryError, NkiconvError, UnsupportedError, refused
from ...launches import on_cores
from ...simulator.dtypes import DTYPES, canonical
from .files import load, source
from .options import assigned
from .scripts import attribute_of, guarded

#: Elements of one random input, at most: 4 GiB of fp32.
ELEMENTS_MAX = 1 << 30
_SHAPE = re.compile(r"\d+(x\d+)*")
#: Texts that look like a shape in another notation.
_LIKE_SHAPE = re.compile(r"[(\[]?\d+(\s*[,*X]\s*\d+)+[)\]]?")
#: Prefix of names that `--arg NAME=VALUE` takes besides Python's literals.
_LANGUAGE = "nl."


def is_kernel(name: str) -> bool:
    """Whether an argument names a kernel in a file, not a case."""
    script, colon, _ = name.rpartition(":")
    return bool(colon) and Path(script).suffix == ".py"


def unnamed(names: Sequence[str]) -> Iterator[NkiconvError]:
    """Refusals of Python files without the name of a kernel in them; the message names what they define."""
    for name in names:
        path = Path(name)
        if path.suffix == ".py" and not is_kernel(name):
            try:
                parsed = ast.parse(path.read_text(encoding="utf-8"))
                found = [one.name for one in parsed.body if isinstance(one, ast.FunctionDef)]
            except (OSError, ValueError, SyntaxError):
                found = []
            remedy = f"write {name}:{found[-1] if found else 'KERNEL'}"
            defined = f", which defines {', '.join(found)}" if found else ""
            yield UnsupportedError(f"{name}: is a file{defined}, and no kernel of it is named; {remedy}")


@dataclass(frozen=True)
class KernelCall:
    """A kernel and its arguments: arrays as specs, or files, and keyword arguments."""

    target: str
    inputs: tuple[str, ...]
    arguments: tuple[str, ...]
    lnc: int

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.target.rpartition(":")[2]

    def violations(self) -> Iterator[NkiconvError]:
        """Errors of the options, before anything is loaded."""
        yield from refused(UnsupportedError, rules.lnc(self.lnc, "--lnc"))
        for text in self.inputs:
            try:
                spec_of(text)
            except NkiconvError as error:
                yield error
        try:
            keywords(self.arguments)
        except NkiconvError as error:
            yield error

    def specs(self) -> tuple[Any, ...]:
        """Inputs without data, for a trace."""
        found = []
        for text in self.inputs:
            spec = spec_of(text)
            if spec is None:
                array = load(source("--input", text), None).array
                spec = simulator.ArraySpec(array.shape, str(array.dtype))
            found.append(spec)
        return tuple(found)

    def arrays(self, seed: int) -> tuple[Any, ...]:
        """Inputs with data: files as they are, the others random.

        Raises GeometryError: more data than a laptop holds.
        """
        rng = np.random.default_rng(seed)
        return tuple(self._array(text, rng) for text in self.inputs)

    @contextlib.contextmanager
    def kernel(self) -> Iterator[Any]:
        """The kernel, launched on `lnc` cores, while the block runs; `import nki` finds the simulator there."""
        with _our_nki(), attribute_of(self.target) as found:
            kernel = found if hasattr(found, "function") else simulator.jit(found)
            self._bind(kernel.function)
            yield kernel[self.lnc]

    @contextlib.contextmanager
    def aws_kernel(self) -> Iterator[Any]:
        """The same for AWS's nki, which the file imports."""
        with attribute_of(self.target) as found:
            kernel = importlib.import_module("nki").jit(found) if inspect.isfunction(found) else found
            yield on_cores(kernel, self.lnc)

    def _bind(self, function: Any) -> None:
        """Raise UnsupportedError unless the inputs and the named arguments are those that a kernel takes."""
        signature = inspect.signature(function)
        try:
            signature.bind(*self.inputs, **keywords(self.arguments))
        except TypeError as error:
            takes = f"it takes {', '.join(signature.parameters) or 'nothing'}"
            remedy = "give one --input for each array, in order, and --arg NAME=VALUE for each other argument"
            raise UnsupportedError(f"{self.target}: {error}; {takes}: {remedy}") from error

    def guarded(self, call: Any) -> Any:
        """The result of a call of the kernel; an error that is no rule of NKI's gets the file's line."""
        return guarded(f"{self.target}", Path(self.target.rpartition(":")[0]), call, passing=(simulator.NkiError,))

    def _array(self, text: str, rng: np.random.Generator) -> Any:
        spec = spec_of(text)
        if spec is None:
            return load(source("--input", text), None).array
        count = int(np.prod(spec.shape, dtype=object))
        if count > ELEMENTS_MAX:
            raise GeometryError(f"--input={text}: {count:,} elements, at most {ELEMENTS_MAX:,} are made; profile it")
        dtype = DTYPES[spec.dtype].numpy
        if DTYPES[spec.dtype].is_float:
            return rng.standard_normal(spec.shape, dtype=np.float32).astype(dtype)
        return rng.integers(0, 8, spec.shape).astype(dtype)


def spec_of(text: str) -> Any:
    """The ArraySpec of 1x512x5000:bf16, or None if the text names a file.

    Raises DtypeError, GeometryError: there is no such dtype, an extent of 0, or neither a shape nor a file's name.
    """
    shape, colon, dtype = text.partition(":")
    if _LIKE_SHAPE.fullmatch(shape) and not Path(text).exists():
        wanted = "x".join(re.findall(r"\d+", shape))
        raise GeometryError(f"--input={text}: {shape} is no shape; write {wanted}{colon}{dtype}")
    if not _SHAPE.fullmatch(shape):
        if not (Path(shape).suffix or Path(text).exists()):
            raise GeometryError(f"--input={text}: must be a shape, as 1x512x5000:bf16, or a file, as x.npy; write one")
        return None
    name = canonical(dtype or "float32") or canonical(_SHORT.get(dtype, ""))
    if name is None:
        accepted = ", ".join([*_SHORT, *DTYPES])
        raise DtypeError(f"--input={text}: {dtype or colon} is no dtype; write SHAPE:DTYPE with one of {accepted}")
    sizes = tuple(int(one) for one in shape.split("x"))
    if 0 in sizes:
        raise GeometryError(f"--input={text}: every extent must be at least 1; write 1x512x5000:bf16, say")
    return simulator.ArraySpec(sizes, name)


_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
}


def keywords(texts: Sequence[str]) -> dict[str, Any]:
    """{name: value} of NAME=VALUE options: Python literals, and nl.NAME of nki.language.

    Raises UnsupportedError: one of them is neither, or two have one name.
    """
    rule = ", where VALUE must be a Python literal or nl.NAME; write --arg eps=1e-6, or --arg kind='\"text\"'"
    return assigned("--arg", texts, _value, rule, str.isidentifier)


def _value(text: str) -> Any:
    if text.startswith(_LANGUAGE):
        return getattr(importlib.import_module("nkiconv._nki").nl, text.removeprefix(_LANGUAGE))
    return ast.literal_eval(text)


@contextlib.contextmanager
def _our_nki() -> Iterator[None]:
    """`import nki` gives the simulator while the block runs.

    Raises UnsupportedError: AWS's own is installed.
    """
    try:
        installation = simulator.install()
    except simulator.NkiInstalledError as error:
        raise UnsupportedError(f"{error}; kernels in files run in nkiconv's simulator only") from error
    with installation:
        yield
