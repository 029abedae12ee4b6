"""Prices of the Vector Engine: fixed costs and a rate an element that depends on dtypes, memories and contiguity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from .. import hardware as hw
from ..memory import PSUM, Region
from ..views import merged_runs
from .prices import Price
from .rates import Rates

_HALF = ("bfloat16", "float16")
_Regions = tuple[Region, ...]
_Pricer = Callable[[str, _Regions, _Regions, Rates], Price]


def free_elems(region: Region) -> int:
    """Elements of one partition."""
    return prod(region.shape[1:])


def contiguous(region: Region) -> bool:
    """Whether neighbours in the innermost free dim that has more than one element are neighbours in memory."""
    runs = merged_runs(region.shape[1:], region.strides[1:])
    return not runs or runs[-1][1] == 1


def _copy_rate(dst: Region, src: Region, rates: Rates) -> float:
    """ns an element of tensor_copy and tensor_scalar: the 4x and 2x modes as the hardware detects them."""
    in_psum = dst.info.buffer is PSUM or src.info.buffer is PSUM
    if dst.dtype in _HALF and src.dtype in _HALF:
        dense = contiguous(dst) and contiguous(src)
        if in_psum:
            return rates("vector.ns_per_elem_2x" if dense else "vector.ns_per_elem_1x")
        return rates("vector.ns_per_elem_4x" if dense else "vector.ns_per_elem_2x")
    if in_psum or not {dst.dtype, src.dtype} <= {*_HALF, "float32"}:
        return rates("vector.ns_per_elem_1x")
    return rates("vector.bf16_to_fp32_copy_ns_elem" if src.dtype in _HALF else "vector.ns_per_elem_2x")


def _fixed(regions: _Regions, rates: Rates) -> tuple[float, float]:
    """(ISSUE, LAT) before the first element."""
    psum = any(region.info.buffer is PSUM for region in regions)
    where = "psum" if psum else "sbuf"
    return rates(f"vector.issue_fixed_{where}_ns"), rates(f"vector.lat_fixed_{where}_ns")


def _made(op: str, issue: float, latency: float, busy: float, rates: Rates) -> Price:
    """A price with `busy` ns for the elements on top of both fixed parts."""
    cold = rates("vector.cold_start_ns")
    return Price(issue + busy, latency + busy, op, rates.take_read(), cold_ns=cold)


def _plain(op: str, rate: float, elems: int, regions: _Regions, rates: Rates, operands: int = 0) -> Price:
    issue, latency = _fixed(regions, rates)
    cold = rates("vector.cold_start_ns")
    if operands:
        issue += rates("vector.issue_fixed_ptrscalar_extra_ns")
        if any(region.info.buffer is PSUM for region in regions):
            latency += rates("vector.lat_fixed_ptrscalar_extra_ns")
        else:
            cold = rates("vector.cold_start_ptrscalar_ns")
            latency = rates("vector.lat_fixed_ptrscalar_ns") + cold
    return Price(issue + rate * elems, latency + rate * elems, op, rates.take_read(), cold_ns=cold)


def _copy(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
    rate = _copy_rate(writes[0], reads[0], rates)
    return _plain(op, rate, free_elems(writes[0]), (writes[0], reads[0]), rates, len(reads) - 1)


def _tensor_tensor(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
    half = all(region.dtype in _HALF for region in (*writes, *reads))
    fast = half and not any(region.info.buffer is PSUM for region in reads)
    rate = "vector.ns_per_elem_2x" if fast else "vector.ns_per_elem_1x"
    return _written(rate, "vector.lat_fixed_tensor_tensor_ns")(op, writes, reads, rates)


def _scalar_tensor_tensor(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
    rate, elems, operands = rates("vector.ns_per_elem_scalar_tensor_tensor"), free_elems(writes[0]), len(reads) - 2
    price = _plain(op, rate, elems, (*writes, *reads[:2]), rates, operands)
    if not operands:
        return price
    issue = rates("vector.issue_fixed_scalar_tensor_tensor_ns") + rate * elems
    return replace(price, issue_ns=issue, constants=price.constants | rates.take_read())


def _scan(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
    rate = rates.cycle_ns("vector") * rates("vector.scan_cycles_per_elem")
    issue, _ = _fixed((*writes, *reads), rates)
    latency = rates("vector.scan_lat_fixed_ns") + (rates("vector.scan_seed_ns") if len(reads) > 2 else 0.0)
    return _made(op, issue, latency, rate * free_elems(writes[0]), rates)


def _transpose(op: str, _writes: _Regions, reads: _Regions, rates: Rates) -> Price:
    kind = f"{op} of quadrant {reads[0].first_partition // hw.QUADRANT_PARTITIONS}"
    issue, first = rates("vector.transpose32_issue_ns"), rates("vector.transpose32_quadrant_ns")
    return Price(issue, rates("vector.transpose32_lat_ns"), kind, rates.take_read(), first_issue_ns=first)


def _bn_aggr(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
    busy = rates.cycle_ns("vector") * rates("vector.bn_aggr_cycles_per_triple") * free_elems(reads[0]) / 3
    issue, latency = _fixed((*writes, *reads), rates)
    return _made(op, issue, latency, busy, rates)


def _written(rate: str, *latency: str, issue: str = "") -> _Pricer:
    """A rate for each element written, a latency, and an issue: its own, or that of the operands' memories."""

    def priced(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
        first = rates(issue) if issue else _fixed((*writes, *reads), rates)[0]
        return _made(op, first, sum(map(rates, latency)), rates(rate) * free_elems(writes[0]), rates)

    return priced


def _reduced(rate: str) -> _Pricer:
    """A rate for each element of the first operand; the others are of one element a partition."""

    def priced(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
        return _plain(op, rates(rate), free_elems(reads[0]), (*writes, reads[0]), rates, len(reads) - 1)

    return priced


def _walked(rate: str) -> _Pricer:
    """A rate for each element of the larger of the first operands."""

    def priced(op: str, writes: _Regions, reads: _Regions, rates: Rates) -> Price:
        elems = max(free_elems(region) for region in (*writes[:1], *reads[:1]))
        return _plain(op, rates(rate), elems, (*writes, *reads), rates)

    return priced


_PRICES: dict[str, _Pricer] = {
    "tensor_copy": _copy,
    "tensor_scalar": _copy,
    "tensor_tensor": _tensor_tensor,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_tensor_scan": _scan,
    "nc_transpose": _transpose,
    "bn_aggr": _bn_aggr,
    "memset": _written("vector.memset_ns_per_elem", "vector.memset_lat_fixed_ns", issue="vector.memset_issue_fixed_ns"),
    "reciprocal": _written(
        "vector.reciprocal_ns_per_elem", "vector.reciprocal_lat_fixed_ns", issue="vector.reciprocal_issue_fixed_ns"
    ),
    "tensor_copy_predicated": _written("vector.predicated_copy_ns_per_elem", "vector.predicated_copy_lat_fixed_ns"),
    "nc_stream_shuffle": _written(
        "vector.stream_shuffle_ns_per_elem", "vector.stream_shuffle_lat_ns", "vector.stream_shuffle_mask_ns"
    ),
    "tensor_reduce": _reduced("vector.ns_per_elem_1x"),
    "tensor_scalar_reduce": _reduced("vector.ns_per_elem_1x"),
    "bn_stats": _reduced("vector.ns_per_elem_1x"),
    "range_select": _reduced("vector.ns_per_elem_1x"),
    "dropout": _reduced("vector.ns_per_elem_1x"),
    "tensor_scalar_cumulative": _reduced("vector.ns_per_elem_cumulative"),
    "select_reduce": _walked("vector.ns_per_elem_select_reduce"),
    "max8": _walked("vector.ns_per_elem_1x"),  # one cycle for each element that is looked at
    "nc_find_index8": _walked("vector.ns_per_elem_1x"),
    "nc_match_replace8": _walked("vector.ns_per_elem_1x"),
    "rng": _walked("vector.ns_per_elem_rng"),
    "set_rng_seed": _walked("vector.ns_per_elem_1x"),
}


def vector_price(op: str, writes: _Regions, reads: _Regions, _params: dict[str, Any], rates: Rates) -> Price:
    """Price of an instruction that runs on the Vector Engine."""
    return _PRICES[op](op, writes, reads, rates)
