"""A conv3d of a video, run chunk by chunk, each from the frames that the one before returned.

Every chunk is held against the float64 reference, and against one run of all frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...api.conv import run_conv
from ...api.epilogue import Epilogue
from ...planner.operations import OPERATIONS
from ...planner.request import Request
from ...problem import ConvProblem
from ...reference import AnyArray
from ...simulator.profiling import Advance, ignore
from .choice import settings_of
from .comparison import compare_channels
from .report import Report

OPERATION = OPERATIONS["conv3d"]


def verify_chunks(
    name: str,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    whole: AnyArray,
    sizes: Sequence[int],
    advance: Advance = ignore,
) -> list[Report]:
    """Run a problem in chunks, whose sums are exact in fp32, so that their order does not show.

    Args:
        x: [N, C, D, H, W], the first chunk's cache of (T - 1) * dilation frames, and the frames of the chunks.
        w: [K, C / groups, T, R, S].
        problem: the convolution of all of x, NCDHW, with neither stride nor padding in time.
        whole: y of one run of it.
        sizes: how many frames of y each chunk gives, Z together.

    Returns: a report for each chunk, the frames of whose problem are those of the cache and its own.
    """
    kept = problem.depth.window - 1
    cache, begin, reports = _frames(x, 0, kept), 0, []
    for size in sizes:
        end = begin + size
        title = f"{name}, frames {begin + 1}-{end}" if size > 1 else f"{name}, frame {end}"
        part = problem.replace(D=kept + size)
        advance(f"running {title} in chunks", None)
        epilogue = Epilogue(initial_frames=cache, num_frames=kept, return_final_frames=kept)
        request = Request(problem=part, lnc=2, asked=epilogue.asked(), operation=OPERATION.name)
        choice, report = settings_of(title, OPERATION, request, None, None)
        run = run_conv(_frames(x, begin + kept, end + kept), w, part, epilogue=epilogue, **choice)
        y, cache = run.y
        reports.append(
            report(
                lnc=2,
                trace=run if run.provider == "simulator" else None,
                seconds=run.seconds,
                channels_checked=problem.K,
                comparison=compare_channels(y, _frames(x, begin, end + kept), w, part, range(problem.K)),
                same_as_whole=_same(y, _frames(whole, begin, end)) and _same(cache, _frames(x, end, end + kept)),
            )
        )
        begin = end
    return reports


def _frames(array: AnyArray, begin: int, end: int) -> AnyArray:
    return np.ascontiguousarray(array[:, :, begin:end])


def _same(a: AnyArray, b: AnyArray) -> bool:
    return a.tobytes() == b.tobytes()
