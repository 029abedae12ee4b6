"""Candidate settings as a table: a NumPy column for each setting, a row for each candidate, priced all at once."""

from __future__ import annotations

import functools
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
    """ns of a core's DMA engines, or of HBM, for `elements` a partition in runs of `run`, as `prices.moved_ns`."""
    sizes, at = np.unique(run * itemsize, return_inverse=True)
    run_ns, byte_ns = (
        np.array([ns(size) for size in sizes.tolist()])[at].reshape(np.shape(run))
        for ns in (target.run_ns, functools.partial(target.hbm_ns, 1))
    )
    return np.maximum(target.rows_an_engine * elements / run * run_ns, partitions * elements * itemsize * byte_ns)
