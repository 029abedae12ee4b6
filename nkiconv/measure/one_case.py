"""One case on a device: the prediction, the check against float64, then the timing; whatever fails stays as a row."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import numpy as np

from ..cases import Case
from ..floors import ROW_BYTES
from ..kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from ..kernels.floors import copy_floor, launch_floor
from ..ops import kernel_arguments
from ..planner.candidates import kernel_choice
from ..planner.request import Asked, extras_of, geometry_of
from ..problem import DTYPES, ConvProblem
from ..reference import AnyArray
from ..verify import SAMPLE_ABOVE_INSTRUCTIONS, SAMPLE_CHANNELS, Comparison, case_arrays, compare
from .device import Call, Device
from .interleave import AGAIN, CHAIN_CALLS, COPY_FLOOR, LAUNCH_FLOOR, THIS, Advance, Variant, interleave, timing
from .modelled import Modelled, model
from .rows import Row

#: Decides the data.
SEED = 0


class WrongResult(Exception):
    """What the device computed is not within its bound of the float64 reference, or is not even of its shape."""


def measure_case(
    device: Device,
    case: Case,
    *,
    dtype: str | None,
    lnc: int,
    algorithm: str | None,
    rounds: int,
    advance: Advance,
    chain_calls: tuple[int, ...] = CHAIN_CALLS,
) -> Row:
    """Measure a case that `profiles.case_violations` has nothing against.

    Args: dtype: instead of the case's own. rounds: at least 1.
    Returns: a row; with the reason and without a measured number where model, kernel, check or timing failed.
    """
    if dtype is not None:
        case = dataclasses.replace(case, problem=case.problem.replace(dtype=dtype))
    row = Row(case.name, case.problem, lnc, algorithm or _kernel_choice(case.problem), device.description)
    try:
        advance("modelling", None)
        predicted = model(case.name, case.problem.dtype, lnc, algorithm, advance)
        row = dataclasses.replace(row, modelled=predicted)
        x, w = case_arrays(case, SEED)
        advance("checking", None)
        arguments = kernel_arguments(case.problem, algorithm=algorithm)
        comparison, checked = _check(device, case.problem, lnc, arguments, x, w, predicted.instructions)
        row = dataclasses.replace(row, comparison=comparison, channels_checked=checked)
        if comparison.num_wrong:
            raise WrongResult(_wrong(comparison))
        variants = _variants(case.problem, lnc, arguments, x, w, predicted, max(chain_calls))
        slopes = interleave(device, variants, rounds, chain_calls, advance)
        return dataclasses.replace(row, timing=timing(slopes, chain_calls))
    except Exception as error:  # the row stays, with its reason
        return dataclasses.replace(row, reason=_reason(error))
    finally:
        device.forget()


def _kernel_choice(problem: ConvProblem) -> str:
    return kernel_choice(geometry_of(problem), extras_of(problem, Asked()))[0]


def _check(
    device: Device,
    problem: ConvProblem,
    lnc: int,
    arguments: dict[str, Any],
    x: AnyArray,
    w: AnyArray,
    instructions: int,
) -> tuple[Comparison, int]:
    """Run the whole problem once and compare all of its channels, or of a big one a sample; and how many."""
    args = x[:, :, np.newaxis], w[:, np.newaxis, np.newaxis]
    y4 = device.run(depthwise_conv1d_implicit_gemm[lnc], args, arguments)
    expected = (problem.N, problem.C, 1, problem.Q), DTYPES[problem.dtype]
    if (y4.shape, y4.dtype) != expected:
        raise WrongResult(f"wrong: the result is {y4.dtype} {y4.shape}, not {expected[1]} {expected[0]}")
    y = y4[:, :, 0]
    if instructions <= SAMPLE_ABOVE_INSTRUCTIONS or problem.C <= SAMPLE_CHANNELS:
        return compare(y, x, w, problem), problem.C
    sample = sorted({round(c) for c in np.linspace(0, problem.C - 1, SAMPLE_CHANNELS)})
    of_sample = problem.replace(C=len(sample), K=len(sample), groups=len(sample))
    found = compare(y[:, sample], x[:, sample], w[sample], of_sample)
    n, c, q = found.worst
    return dataclasses.replace(found, worst=(n, sample[c], q)), len(sample)


def _wrong(comparison: Comparison) -> str:
    n, c, q = comparison.worst
    return (
        f"wrong: {comparison.num_wrong:,} of {comparison.num_elems:,} outputs are beyond their bound, worst at "
        f"n={n} c={c} q={q} by a factor of {comparison.worst_ratio:.3g}"
    )


def _reason(error: Exception) -> str:
    """One line: what a wrong result says of itself, or the error's class and the first line of its text."""
    text = (str(error).strip().splitlines() or ["no message"])[0]
    return text if isinstance(error, WrongResult) else f"{type(error).__name__}: {text}"


def _variants(
    problem: ConvProblem,
    lnc: int,
    arguments: dict[str, Any],
    x: AnyArray,
    w: AnyArray,
    predicted: Modelled,
    count: int,
) -> list[Variant]:
    """This kernel, itself again, and the two floors; `count` calls of each, every one with arrays of its own."""
    kernel = depthwise_conv1d_implicit_gemm[lnc]
    xs = [np.roll(x, i, axis=-1) for i in range(1, count + 1)]
    w4 = w[:, np.newaxis, np.newaxis]
    calls: list[Call] = [(one[:, :, np.newaxis], w4) for one in xs]
    flat: list[Call] = [(np.concatenate([one.ravel(), w.ravel()]),) for one in xs]
    tile: dict[str, Any] = {
        "out_elems": prod(problem.output_shape),
        "tile_elems": predicted.copy_tile_bytes // problem.itemsize,
    }
    row_elems = ROW_BYTES // problem.itemsize
    rows: list[Call] = [(np.full((1, row_elems), i, x.dtype),) for i in range(count)]
    return [
        Variant(THIS, kernel, calls, arguments),
        Variant(AGAIN, kernel, calls, arguments),
        Variant(COPY_FLOOR, copy_floor[lnc], flat, tile),
        Variant(LAUNCH_FLOOR, launch_floor[lnc], rows, {}),
    ]
