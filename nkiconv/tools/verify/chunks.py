"""A conv3d of a video, run chunk by chunk, each from the frames that the one before returned.

Every chunk is held against the float64 reference, and against one run of all frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._nki import CHOICE
from ...api.calls import KernelRun
from ...api.conv import run_conv
from ...api.epilogue import Epilogue
from ...planner.operations import OPERATIONS
from ...planner.request import Config, Request
from ...problem import ConvProblem
from ...reference import AnyArray
from .choice import settings_of
from .comparison import compare_channels
from .report import Advance, Report, ignore


def verify_chunks(
    name: str,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    whole: AnyArray,
    sizes: Sequence[int],
    *,
    lnc: int = 2,
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
        run, algorithm, tiles = _run(cache, _frames(x, begin + kept, end + kept), w, part, lnc)
        y, cache = run.y
        counted = CHOICE.provider != "aws"
        reports.append(
            Report(
                name=title,
                operation="conv3d",
                problem=part,
                lnc=lnc,
                strict_nonfinite=False,
                algorithm=algorithm,
                config=None,
                provider=CHOICE.provider,
                tiles=tiles if counted else None,
                trace=run if counted else None,
                seconds=run.seconds,
                num_blocks=1,
                channels_checked=problem.K,
                comparison=compare_channels(y, _frames(x, begin, end + kept), w, part, range(problem.K)),
                same_as_whole=_same(y, _frames(whole, begin, end)) and _same(cache, _frames(x, end, end + kept)),
            )
        )
        begin = end
    return reports


def _run(
    cache: AnyArray, x: AnyArray, w: AnyArray, problem: ConvProblem, lnc: int
) -> tuple[KernelRun, str, dict[str, int]]:
    """A launch, whose y are the outputs and the frames of the next; the estimate's algorithm and its tiles."""
    kept, operation = cache.shape[2], OPERATIONS["conv3d"]
    epilogue = Epilogue(initial_frames=cache, num_frames=kept, return_final_frames=kept)
    request = Request(problem=problem, lnc=lnc, asked=epilogue.asked(), operation=operation.name)
    settings: Config
    shape, algorithm, settings = settings_of(operation, request, None, None)
    run = run_conv(x, w, problem, lnc=lnc, epilogue=epilogue, algorithm=algorithm, config=settings)
    return run, algorithm, operation.symbols(shape, algorithm, settings)


def _frames(array: AnyArray, begin: int, end: int) -> AnyArray:
    return np.ascontiguousarray(array[:, :, begin:end])


def _same(a: AnyArray, b: AnyArray) -> bool:
    return a.tobytes() == b.tobytes()
