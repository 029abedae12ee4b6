"""Prices of GpSimd. Few of its instructions have published figures; elementwise work is an inferred rate."""

from __future__ import annotations

from math import ceil
from typing import Any

from ..memory import Region
from .prices import Price
from .rates import Rates
from .vector import free_elems


def gpsimd_price(
    op: str, writes: tuple[Region, ...], reads: tuple[Region, ...], params: dict[str, Any], rates: Rates
) -> Price:
    """Price of an instruction that runs on GpSimd."""
    elems = free_elems((*writes, *reads)[0])
    if op == "affine_select":
        busy = rates("gpsimd.affine_select_ns_per_elem") * elems
        issue, latency = rates("gpsimd.affine_select_issue_fixed_ns"), rates("gpsimd.affine_select_lat_ns")
    elif op == "iota":
        busy = (rates("gpsimd.iota_fixed_cycles") + elems) * rates.cycle_ns("gpsimd")
        issue = latency = 0.0
    elif op == "local_gather":
        busy = _local_gather_cycles(params["count"], params["width"], writes[0].itemsize, rates)
        busy *= rates.cycle_ns("gpsimd")
        issue = latency = 0.0
    else:
        busy = _elements_ns(op, elems, reads, params, rates)
        issue, latency = rates("gpsimd.issue_fixed_ns"), rates("gpsimd.lat_fixed_ns")
    return Price(issue + busy, latency + busy, op, rates.take_read())


def _elements_ns(op: str, elems: int, reads: tuple[Region, ...], params: dict[str, Any], rates: Rates) -> float:
    """Time on top of the fixed part that GpSimd takes for most instructions."""
    if op == "tensor_partition_reduce":
        return rates("gpsimd.partition_reduce_ns_per_elem") * free_elems(reads[0])
    if op == "topk":
        n, k = float(params["n"]), float(params["k"])
        cycles = rates("gpsimd.topk_cycles_per_elem") * n + rates("gpsimd.topk_cycles_per_result") * k
        return cycles * rates.cycle_ns("gpsimd")
    if op == "nc_n_gather":  # one instruction for every 512 elements
        more = ceil(elems / rates("gpsimd.n_gather_group_elems")) - 1
        return rates("gpsimd.n_gather_ns_per_elem") * elems + more * rates("gpsimd.issue_fixed_ns")
    return rates("gpsimd.elementwise_ns_per_elem") * elems


def _local_gather_cycles(count: int, width: int, itemsize: int, rates: Rates) -> float:
    """Cycles of a core that gathers `width` elements for each of `count` indices."""
    streamed = rates("gpsimd.local_gather_t") * width
    packed = min(rates("gpsimd.local_gather_lane_bytes") / itemsize, width)
    each = (rates("gpsimd.local_gather_overhead") + streamed) / streamed / packed
    return rates("gpsimd.local_gather_fixed_cycles") + count * width * each
