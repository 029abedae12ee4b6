"""AWS's tutorial kernels (nki-samples, and the SDK's nki/examples) in the simulator, against references in NumPy.

Only kernels written for `import nki` (NKI 0.3 on) can run; files that import neuronxcc.nki are counted as older, and
those of trn3's dtypes (mx_kernels.py) are left out. Inputs are those of the tutorials, the large ones shrunk to the
least that the kernel's blocking takes.
"""

import math
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nkiconv import simulator
from nkiconv.simulator import NkiError

Arguments = tuple[Any, ...]
#: Of Mamba's scan, shrunk: the length of one of v3's tiles, and a quarter of the tutorial's states.
LENGTH, STATES = 512, 4
#: The variable by which a program asks for a chip.
TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"
#: What an error tells of its reason: (pattern, reason); the first that is found.
REASONS = (
    (r"tensor_copy\(\) got an unexpected keyword argument 'dtype'", "theirs: tensor_copy(dtype=), of NKI before 0.3"),
    (r"No module named 'torch_neuronx'", "theirs: torch_neuronx.nki_jit, of NKI before 0.3"),
    (r"SyntaxError: (.*)", r"theirs: does not parse: \1"),
)


@dataclass(frozen=True)
class Tutorial:
    """A kernel, by the end of its file's path and its name, with inputs and what should come of them."""

    file: str
    kernel: str
    inputs: Callable[[np.random.Generator], Arguments]
    reference: Callable[..., Any]
    #: numbers added up in one result: each adds a rounding in fp32
    terms: int = 1
    #: the rule that must refuse it: a tutorial of what NKI does not take
    refused: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a kernel: the largest difference over the largest number, or why there is none."""

    file: str
    kernel: str
    status: str
    difference: float | None = None


def _matmul(k: int, m: int, n: int) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: (rng.random((k, m)).astype(ml_dtypes.bfloat16), rng.random((k, n)).astype(ml_dtypes.bfloat16))


def _mamba(rng: np.random.Generator) -> Arguments:
    delta, u = (rng.random((1, 128, LENGTH)).astype(np.float32) for _ in range(2))
    decay = -rng.random((128, STATES)).astype(np.float32)
    b, c = (rng.random((1, STATES, LENGTH)).astype(np.float32) for _ in range(2))
    return delta, u, decay, b, c


def _scan(delta: np.ndarray, u: np.ndarray, decay: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    state = np.zeros((*delta.shape[:2], decay.shape[1]))
    out = np.zeros(delta.shape)
    for t in range(delta.shape[2]):
        now = delta[:, :, t, None].astype(np.float64)
        state = np.exp(now * decay) * state + now * u[:, :, t, None] * b[:, None, :, t]
        out[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    return out


def _pooled(x: np.ndarray, size: int, how: Callable[..., Any]) -> np.ndarray:
    c, h, w = x.shape
    windows = x.astype(np.float64).reshape(c, h // size, size, w // size, size)
    return np.asarray(how(windows, axis=(2, 4)))


def _two(shape: tuple[int, ...]) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: (rng.random(shape).astype(np.float32), rng.random(shape).astype(np.float32))


def _one(shape: tuple[int, ...]) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: (rng.random(shape).astype(np.float32),)


TUTORIALS = (
    *(
        Tutorial("matrix_multiplication_nki_kernels.py", name, _matmul(*shape),
                 lambda lhs_t, rhs: lhs_t.astype(np.float64).T @ rhs.astype(np.float64), terms=shape[0])
        for name, shape in (
            ("nki_matmul_basic_", (128, 64, 512)),
            ("nki_matmul_tiled_", (256, 256, 1024)),
            ("nki_matmul_hoist_load_", (256, 256, 1024)),
            ("nki_matmul_block_free_dimension_", (256, 512, 2048)),
            ("nki_matmul_fully_optimized_", (1024, 2048, 1024)))),
    *(Tutorial("mamba_nki_kernels.py", name, _mamba, _scan, terms=STATES * LENGTH)
        for name in ("mamba_v1", "mamba_v2", "mamba_v3")),
    Tutorial("average_pool2d_nki_kernels.py", "tensor_avgpool_kernel",
     lambda rng: (rng.random((2, 6, 6)).astype(np.float16), 2), lambda x, size: _pooled(x, size, np.mean)),
    Tutorial("index-case-3.py", "tensor_maxpool_kernel_",
     lambda rng: (rng.random((2, 6, 6)).astype(ml_dtypes.bfloat16), 2), lambda x, size: _pooled(x, size, np.max)),
    Tutorial("transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_",
     lambda _rng: (np.arange(60, dtype=np.int8).reshape(5, 12), (3, 4)),
     lambda x, shape: x.reshape(5, *shape).transpose(0, 2, 1).reshape(5, 12)),
    Tutorial("tensor_addition_nki_kernels.py", "nki_tensor_add", _two((256, 1024)), np.add),
    *(Tutorial(f"getting_started_{name}.py", "nki_tensor_add_kernel", _two((4, 3)), np.add)
        for name in ("baremetal", "jax", "torch")),
    Tutorial("nki_simulate_example.py", "add_kernel", _two((128, 512)), np.add),
    Tutorial("index-case-1.py", "tensor_split_kernel_", _one((4, 5)), lambda x: (x[:, ::2], x[:, 1::2])),
    Tutorial("layout-pass.py", "tensor_exp_kernel_", _one((128, 512)), np.exp),
    Tutorial("layout-loop.py", "tensor_exp_kernel_", _one((256, 512)), np.exp),
    Tutorial("layout-dynamic-loop.py", "tensor_exp_kernel_", _one((200, 512)), np.exp),
    Tutorial("layout-violation.py", "tensor_exp_kernel_", _one((256, 512)), np.exp, refused="NKI003"),
)  # fmt: skip


def difference(found: Any, wanted: Any) -> float:
    """The largest difference over the largest number wanted; of several results the largest; of other shapes inf."""
    if isinstance(wanted, tuple):
        if not isinstance(found, tuple) or len(found) != len(wanted):
            return math.inf
        return max(difference(one, other) for one, other in zip(found, wanted, strict=True))
    if np.shape(found) != np.shape(wanted):
        return math.inf
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def tolerance(arguments: Arguments, terms: int) -> float:
    """The largest difference that rounding explains, over the largest result; integers have none.

    Results of one sign: one rounding to the dtype of the inputs, half a unit in its last place, and of each term added
    in fp32 another half unit of fp32's; one unit each is allowed for the functions (exp) on the way.
    """
    dtypes = [one.dtype for one in arguments if isinstance(one, np.ndarray)]
    if all(dtype.kind in "iu" for dtype in dtypes):
        return 0.0
    return max(float(ml_dtypes.finfo(dtype).eps) for dtype in dtypes) + terms * float(np.finfo(np.float32).eps)


def reason_of(error: Exception) -> str:
    """Why a kernel gave no result, in few words; of what is no broken rule, also where it began."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    for pattern, reason in REASONS:
        match = re.search(pattern, text)
        if match:
            return match.expand(reason)
    text = text[:120].replace("|", "/")
    if isinstance(error, NkiError):  # which names its rule
        return text
    begun = traceback.extract_tb(error.__traceback__)[-1:]
    return " ".join([text, *(f"({Path(frame.filename).name}:{frame.lineno})" for frame in begun)])


def run(path: Path, tutorial: Tutorial) -> Outcome:
    """What came of a tutorial's kernel in this file."""

    def outcome(status: str, found: float | None = None) -> Outcome:
        return Outcome(path.name, tutorial.kernel, status, found)

    sys.path.insert(0, str(path.parent))
    try:
        kernel = runpy.run_path(str(path))[tutorial.kernel]
    except (ImportError, SyntaxError, TypeError) as error:  # it is not of the NKI that is here
        return outcome(reason_of(error))
    finally:
        sys.path.remove(str(path.parent))
    os.environ.pop(TARGET, None)  # one tutorial names trn1, and holds for trn2 as well
    launched = simulator.simulate(kernel, sentinels=True)
    arguments = tutorial.inputs(np.random.default_rng(0))
    try:
        result = launched(*arguments)
    except Exception as error:  # of their kernel or of the simulator: the table says where, and the others still run
        if isinstance(error, NkiError) and error.rule == tutorial.refused:
            return outcome(f"refused, as it says: {tutorial.refused}")
        return outcome(reason_of(error))
    if tutorial.refused:
        return outcome(f"not refused: {tutorial.refused}")
    found = difference(result, tutorial.reference(*arguments))
    close = found <= tolerance(arguments, tutorial.terms)
    return outcome("passed" if close else "differs from the reference", found)


def outcomes(checkout: Path) -> Iterator[Outcome]:
    """Of every file that holds a tutorial written for `import nki`."""
    target = os.environ.get(TARGET)
    try:
        with simulator.install(nki="0.6"):
            for tutorial in TUTORIALS:
                for path in sorted(checkout.rglob(tutorial.file)):
                    if "neuronxcc" not in path.read_text(encoding="utf-8"):
                        yield run(path, tutorial)
    finally:
        if target is not None:
            os.environ[TARGET] = target


def older(checkout: Path) -> list[str]:
    """Files with kernels for NKI before 0.3 (neuronxcc.nki), which neither AWS's compiler nor this takes."""
    return sorted(
        path.relative_to(checkout).as_posix()
        for path in checkout.rglob("*.py")
        if "neuronxcc" in (text := path.read_text(errors="replace")) and "nki.jit" in text
    )
