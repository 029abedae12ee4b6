"""One case on a device: the prediction, the check against float64, then the timing; a failure is a row too."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import numpy as np

from ...cases import Case
from ...kernels.floors import copy_floor, launch_floor
from ...launches import on_cores
from ...planner.estimate import chosen
from ...planner.floors import ROW_BYTES
from ...planner.plan import Estimate
from ...planner.request import Asked, Request
from ...simulator.profiling import Advance
from ..verify.launched import CaseLaunch, WrongResult, case_launch, in_a_line, wrong
from .device import Call, Device
from .interleave import AGAIN, CHAIN_CALLS, COPY_FLOOR, LAUNCH_FLOOR, THIS, Variant, interleave, timing
from .modelled import Modelled, model
from .rows import Row


def measure_case(
    device: Device,
    case: Case,
    *,
    dtype: str | None,
    lnc: int,
    algorithm: str | None,
    rounds: int,
    advance: Advance,
    precision: str | None = None,
    chain_calls: tuple[int, ...] = CHAIN_CALLS,
) -> Row:
    """Measure a case that `profiles.case_violations` has nothing against.

    Args: dtype: instead of the case's own. rounds: at least 1. precision: as in `nkiconv.conv2d`.
    Returns: a row; with the reason and without a measured number where model, kernel, check or timing failed.
    """
    if dtype is not None:
        case = dataclasses.replace(case, problem=case.problem.replace(dtype=dtype))
    request = Request(problem=case.problem, lnc=lnc, asked=Asked(precision=precision))
    taken = Estimate(algorithm, None) if algorithm else chosen(request)
    row = Row(case.name, case.problem, lnc, taken.algorithm, device.description, precision=precision)
    try:
        advance("modelling", None)
        predicted = model(case.name, case.problem.dtype, lnc, algorithm, advance, precision)
        row = dataclasses.replace(row, modelled=predicted)
        launch = case_launch(case, lnc, taken, precision)
        advance("checking", None)
        y = device.run(launch.kernel, launch.args, launch.kwargs)
        comparison, checked = launch.check(y, predicted.instructions)
        row = dataclasses.replace(row, comparison=comparison, channels_checked=checked)
        if comparison.num_wrong:
            raise WrongResult(wrong(comparison))
        variants = _variants(launch, lnc, predicted, max(chain_calls))
        slopes = interleave(device, variants, rounds, chain_calls, advance)
        return dataclasses.replace(row, timing=timing(slopes, chain_calls))
    except Exception as error:  # the row stays, with its reason
        return dataclasses.replace(row, reason=in_a_line(error))
    finally:
        device.forget()


def _variants(launch: CaseLaunch, lnc: int, predicted: Modelled, count: int) -> list[Variant]:
    """This kernel, itself again, and the two floors; `count` calls of each, every one with arrays of its own."""
    problem, (x, w), kernel, arguments = launch.problem, launch.args, launch.kernel, launch.kwargs
    xs = [np.roll(x, i, axis=-1) for i in range(1, count + 1)]
    calls: list[Call] = [(one, w) for one in xs]
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
        Variant(COPY_FLOOR, on_cores(copy_floor, lnc), flat, tile),
        Variant(LAUNCH_FLOOR, on_cores(launch_floor, lnc), rows, {}),
    ]
