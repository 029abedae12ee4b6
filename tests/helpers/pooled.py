"""A function of many arguments, computed in several processes."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from typing import Any

from rich.console import Console
from rich.progress import track


def each(work: Callable[..., Any], given: Sequence[tuple[Any, ...]], what: str, jobs: int) -> list[Any]:
    """work(*one) of all that is given, in its order, while a bar on stderr counts; one job is this process."""
    found, screen = starmap(work, given), Console(stderr=True)
    if jobs == 1:
        return list(track(found, what, len(given), console=screen))
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        return list(track(pool.map(work, *zip(*given, strict=True)), what, len(given), console=screen))
