"""Prices of GpSimd. Only affine_select and iota have published figures; elementwise work is an inferred rate."""

from __future__ import annotations

from ..memory import Region
from .prices import Price
from .rates import Rates
from .vector import free_elems


def gpsimd_price(op: str, writes: tuple[Region, ...], reads: tuple[Region, ...], rates: Rates) -> Price:
    """Price of an instruction that runs on GpSimd."""
    elems = free_elems(writes[0])
    if op == "affine_select":
        busy = rates("gpsimd.affine_select_ns_per_elem") * elems
        issue, latency = rates("gpsimd.affine_select_issue_fixed_ns"), rates("gpsimd.affine_select_lat_ns")
    elif op == "iota":
        busy = (rates("gpsimd.iota_fixed_cycles") + elems) * rates.cycle_ns("gpsimd")
        issue = latency = 0.0
    elif op == "tensor_partition_reduce":
        busy = rates("gpsimd.partition_reduce_ns_per_elem") * free_elems(reads[0])
        issue, latency = rates("gpsimd.issue_fixed_ns"), rates("gpsimd.lat_fixed_ns")
    else:
        busy = rates("gpsimd.elementwise_ns_per_elem") * elems
        issue, latency = rates("gpsimd.issue_fixed_ns"), rates("gpsimd.lat_fixed_ns")
    return Price(issue + busy, latency + busy, op, rates.take_read())
