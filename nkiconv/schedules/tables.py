"""Candidate settings as a table: a NumPy column for each setting, a row for each candidate, priced all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..simulator.timing.target import Target

Table = dict[str, Any]


def table(**values: Sequence[int]) -> Table:
    """The table of all combinations of values."""
    columns = np.meshgrid(*(np.array(one, np.int64) for one in values.values()), indexing="ij")
    return {name: one.ravel() for name, one in zip(values, columns, strict=True)}


def some(rows: Table, which: Any) -> Table:
    """Rows of a table, by mask or by number."""
    return {name: column[which] for name, column in rows.items()}


def joined(tables: Sequence[Table]) -> Table:
    """The rows of all tables, in order."""
    return {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}


def ceil(a: Any, b: Any) -> Any:
    """a / b, rounded up."""
    return -(-a // b)


def dma_ns(target: Target, partitions: Any, elements: Any, run: Any, itemsize: int) -> Any:
    """ns of a core's DMA engines, or of HBM, for `elements` a partition in runs of `run`, as `prices.dma_ns`."""
    size = run * itemsize
    least = np.where(size <= target.sure_run_bytes, target.small_run_ns, 0.0)
    run_ns = np.maximum(target.element_ns + size * target.byte_ns, least)
    run_ns = np.where(size <= target.tiny_run_bytes, target.tiny_run_ns, run_ns)
    byte_ns = target.hbm_long_byte_ns + target.hbm_element_ns / np.maximum(size, target.hbm_run_bytes)
    return np.maximum(target.rows_an_engine * elements / run * run_ns, partitions * elements * itemsize * byte_ns)
