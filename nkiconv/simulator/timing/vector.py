"""Prices of the Vector Engine: fixed costs and a rate an element that depends on dtypes, memories and contiguity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from .. import hardware as hw
from ..memory import PSUM, Region
from .prices import Price
from .rates import Rates

_HALF = ("bfloat16", "float16")


def free_elems(region: Region) -> int:
    """Elements of one partition."""
    return prod(region.shape[1:])


def contiguous(region: Region) -> bool:
    """Whether neighbours in the innermost free dim that has more than one element are neighbours in memory."""
    for n, stride in zip(reversed(region.shape[1:]), reversed(region.strides[1:]), strict=True):
        if n > 1:
            return stride == 1
    return True


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


def _fixed(regions: tuple[Region, ...], rates: Rates) -> tuple[float, float]:
    """(ISSUE, LAT) before the first element."""
    psum = any(region.info.buffer is PSUM for region in regions)
    where = "psum" if psum else "sbuf"
    return rates(f"vector.issue_fixed_{where}_ns"), rates(f"vector.lat_fixed_{where}_ns")


def _made(op: str, issue: float, latency: float, busy: float, rates: Rates) -> Price:
    """A price with `busy` ns for the elements on top of both fixed parts."""
    cold = rates("vector.cold_start_ns")
    return Price(issue + busy, latency + busy, op, rates.take_read(), cold_ns=cold)


def _plain(op: str, rate: float, elems: int, regions: tuple[Region, ...], rates: Rates, operands: int = 0) -> Price:
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


def _copy(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    rate = _copy_rate(writes[0], reads[0], rates)
    return _plain(op, rate, free_elems(writes[0]), (writes[0], reads[0]), rates, len(reads) - 1)


def _tensor_tensor(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    half = all(region.dtype in _HALF for region in (*writes, *reads))
    fast = half and not any(region.info.buffer is PSUM for region in reads)
    rate, elems = rates("vector.ns_per_elem_2x" if fast else "vector.ns_per_elem_1x"), free_elems(writes[0])
    issue, _ = _fixed((*writes, *reads), rates)
    latency = rates("vector.lat_fixed_tensor_tensor_ns")
    return _made(op, issue, latency, rate * elems, rates)


def _scalar_tensor_tensor(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    rate, elems, operands = rates("vector.ns_per_elem_scalar_tensor_tensor"), free_elems(writes[0]), len(reads) - 2
    price = _plain(op, rate, elems, (*writes, *reads[:2]), rates, operands)
    if not operands:
        return price
    issue = rates("vector.issue_fixed_scalar_tensor_tensor_ns") + rate * elems
    return replace(price, issue_ns=issue, constants=price.constants | rates.take_read())


def _reduce(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    return _plain(op, rates("vector.ns_per_elem_1x"), free_elems(reads[0]), (*writes, reads[0]), rates, len(reads) - 1)


def _select_reduce(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    rate = rates("vector.ns_per_elem_select_reduce")
    return _plain(op, rate, free_elems(writes[0]), (*writes, *reads), rates)


def _scan(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    rate = rates.cycle_ns("vector") * rates("vector.scan_cycles_per_elem")
    issue, _ = _fixed((*writes, *reads), rates)
    latency = rates("vector.scan_lat_fixed_ns") + (rates("vector.scan_seed_ns") if len(reads) > 2 else 0.0)
    elems = free_elems(writes[0])
    return _made(op, issue, latency, rate * elems, rates)


def _memset(op: str, writes: Any, _reads: Any, _params: Any, rates: Rates) -> Price:
    busy = rates("vector.memset_ns_per_elem") * free_elems(writes[0])
    issue, latency = rates("vector.memset_issue_fixed_ns"), rates("vector.memset_lat_fixed_ns")
    return _made(op, issue, latency, busy, rates)


def _reciprocal(op: str, writes: Any, _reads: Any, _params: Any, rates: Rates) -> Price:
    busy = rates("vector.reciprocal_ns_per_elem") * free_elems(writes[0])
    issue, latency = rates("vector.reciprocal_issue_fixed_ns"), rates("vector.reciprocal_lat_fixed_ns")
    return _made(op, issue, latency, busy, rates)


def _predicated(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    busy = rates("vector.predicated_copy_ns_per_elem") * free_elems(writes[0])
    issue, _ = _fixed((*writes, *reads), rates)
    return _made(op, issue, rates("vector.predicated_copy_lat_fixed_ns"), busy, rates)


def _shuffle(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    busy = rates("vector.stream_shuffle_ns_per_elem") * free_elems(writes[0])
    issue, _ = _fixed((*writes, *reads), rates)
    latency = rates("vector.stream_shuffle_lat_ns") + rates("vector.stream_shuffle_mask_ns")
    return _made(op, issue, latency, busy, rates)


def _transpose(op: str, _writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    partition = reads[0].offset * reads[0].itemsize // reads[0].info.bytes_per_partition
    kind = f"{op} of quadrant {partition // hw.QUADRANT_PARTITIONS}"
    issue, first = rates("vector.transpose32_issue_ns"), rates("vector.transpose32_quadrant_ns")
    return Price(issue, rates("vector.transpose32_lat_ns"), kind, rates.take_read(), first_issue_ns=first)


def _bn_aggr(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    busy = rates.cycle_ns("vector") * rates("vector.bn_aggr_cycles_per_triple") * free_elems(reads[0]) / 3
    issue, latency = _fixed((*writes, *reads), rates)
    return _made(op, issue, latency, busy, rates)


def _cumulative(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    rate = rates("vector.ns_per_elem_cumulative")
    return _plain(op, rate, free_elems(reads[0]), (*writes, reads[0]), rates, len(reads) - 1)


def _search(op: str, writes: Any, reads: Any, _params: Any, rates: Rates) -> Price:
    """One cycle for each element that is looked at; the 8 values load within the fixed part."""
    return _plain(op, rates("vector.ns_per_elem_1x"), free_elems(reads[0]), (*writes, *reads), rates)


def _random_bits(op: str, writes: Any, _reads: Any, _params: Any, rates: Rates) -> Price:
    return _plain(op, rates("vector.ns_per_elem_rng"), free_elems(writes[0]), writes, rates)


_PRICES: dict[str, Callable[[str, Any, Any, Any, Rates], Price]] = {
    "tensor_copy": _copy,
    "tensor_scalar": _copy,
    "tensor_tensor": _tensor_tensor,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_reduce": _reduce,
    "tensor_scalar_reduce": _reduce,
    "select_reduce": _select_reduce,
    "tensor_tensor_scan": _scan,
    "memset": _memset,
    "reciprocal": _reciprocal,
    "tensor_copy_predicated": _predicated,
    "nc_stream_shuffle": _shuffle,
    "nc_transpose": _transpose,
    "bn_stats": _reduce,
    "range_select": _reduce,
    "dropout": _reduce,
    "tensor_scalar_cumulative": _cumulative,
    "max8": _search,
    "nc_find_index8": _search,
    "nc_match_replace8": _search,
    "rng": _random_bits,
    "set_rng_seed": _search,
    "bn_aggr": _bn_aggr,
}


def vector_price(
    op: str, writes: tuple[Region, ...], reads: tuple[Region, ...], params: dict[str, Any], rates: Rates
) -> Price:
    """Price of an instruction that runs on the Vector Engine."""
    return _PRICES[op](op, writes, reads, params, rates)
