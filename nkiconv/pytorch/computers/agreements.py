"""How many kernels agreed with torch under NKICONV_CPU=compare: one line on stderr when the program ends."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from typing import Any

import numpy as np
import torch

from ..errors import ComparisonError
from .arrays import to_numpy

#: Comparisons by whether they agreed.
_seen: Counter[bool] = Counter()


def note(agrees: bool) -> None:
    """Count one comparison of a kernel with torch."""
    if not _seen:
        atexit.register(lambda: print(text(_seen), file=sys.stderr))
    _seen[agrees] += 1


def text(seen: Counter[bool]) -> str:
    """The final report."""
    total = seen.total()
    results = "1 kernel's result" if total == 1 else f"{total:,} kernels' results"
    verdict = f"{seen[False]:,} DIFFER" if seen[False] else "all agree within their error bounds"
    return f"nkiconv: NKICONV_CPU=compare held {results} against torch: {verdict}"


def require(agrees: bool, words: str) -> None:
    """Count a comparison. Raises ComparisonError with these words where the kernel is off."""
    note(agrees)
    if not agrees:
        raise ComparisonError(words)


def require_near(
    expected: torch.Tensor, found: torch.Tensor, bound: Any, which: str, given: str, spreads: bool = False
) -> None:
    """Raise ComparisonError where torch's and the kernel's results differ by more than both may be off.

    bound: of one of them; values that are not finite must be equal. spreads: or, where there are such, a found filter
    may not be all finite where the expected one is not. which, given: results and arguments, for the message.
    """
    one, other = (to_numpy(tensor).astype(np.float64).reshape(bound.shape) for tensor in (expected, found))
    finite = np.isfinite(one) & np.isfinite(other) & np.isfinite(bound)
    if spreads:
        whole, found_whole = (np.isfinite(some).all(axis=tuple(range(1, some.ndim))) for some in (one, other))
        is_lost = bool((found_whole & ~whole).any())
    else:
        is_lost = not np.array_equal(one[~finite], other[~finite], equal_nan=True)
    near = (np.abs(one[finite] - other[finite]) / (2 * bound[finite])).max(initial=0.0)
    worst = float("inf") if is_lost else float(near)
    require(
        worst <= 1,
        f"{which} differ by {2 * worst:.3g} times what one of them may be off by, on {given}; at most 2 is right. "
        f"Report it with the tensors",
    )


def require_within(
    found: Any, truth: Any, limit: Any, x: torch.Tensor, where: str | None, spreads: bool = True
) -> None:
    """Raise ComparisonError where an array is not within a limit of the truth in float64; spreads: NaN of x may reach
    other elements."""
    with np.errstate(invalid="ignore"):
        off = np.isfinite(truth) & ~(np.abs(found - truth) <= limit)
    if spreads and not x.isfinite().all():
        off &= np.isfinite(found)
    off |= np.isfinite(found) & ~np.isfinite(truth)
    require(
        not off.any(),
        f"{where}: {int(off.sum())} of {off.size} elements of the kernel are further from float64 than they may be, on "
        f"x {tuple(x.shape)}; report it with the tensors",
    )
