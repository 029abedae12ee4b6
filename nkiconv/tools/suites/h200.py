"""cuDNN's share of the limit on one H200 for some of the cases: measured elsewhere, kept in data/h200_cudnn.csv."""

from __future__ import annotations

import functools

from .csv_rows import measured

#: Of fp32 arrays cuDNN was timed with products in tf32 where it has such a kernel.
_DTYPES = {"tf32": "fp32"}


@functools.cache
def fractions() -> dict[tuple[str, str], float]:
    """(case, dtype) -> share of the H200's own limit that cuDNN reaches, of nkiconv's cases of that shape. Measured."""
    return {
        (name, _DTYPES.get(row["dtype"], row["dtype"])): float(row["fraction"])
        for row in measured("h200_cudnn.csv")
        for name in row["cases"].split()
    }
