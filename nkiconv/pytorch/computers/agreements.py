"""How many kernels agreed with torch under NKICONV_CPU=compare: one line on stderr when the program ends."""

from __future__ import annotations

import atexit
import sys
from collections import Counter

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
