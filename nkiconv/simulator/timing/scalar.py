"""Prices of the Scalar Engine: 0.83 ns an element in every dtype, fixed costs by source memory and operands."""

from __future__ import annotations

from typing import Any

from ..memory import PSUM, Region
from .prices import Price
from .rates import Rates
from .vector import free_elems

#: Activation tables that serve several functions; every other function has one of its own (traces: trn2.toml, AK).
_SHARED_TABLE = ("copy", "square", "rsqrt")


def table_of(function: str) -> str:
    """The activation table that a function needs; functions of one table follow each other without a load."""
    return "+".join(_SHARED_TABLE) if function in _SHARED_TABLE else function


def scalar_price(
    op: str, writes: tuple[Region, ...], reads: tuple[Region, ...], params: dict[str, Any], rates: Rates
) -> Price:
    """Price of tensor_copy, tensor_scalar or activation on the Scalar Engine.

    The first per-partition operand (a scale or bias tile) has a price of its own, each further one adds to the latency.
    A read-out of the accumulator is an instruction more on the engine.
    """
    source = "psum" if reads[0].info.buffer is PSUM else "sbuf"
    operands = len(reads) - 1
    if operands:
        issue, latency = rates(f"scalar.act_bias_issue_{source}_ns"), rates(f"scalar.act_lat_{source}_ns")
        if operands > 1:
            issue += (operands - 1) * rates("scalar.act_operand_issue_ns")
            latency += (operands - 1) * rates("scalar.per_broadcast_operand_ns")
    else:
        issue, latency = rates("scalar.copy_issue_ns"), rates(f"scalar.copy_lat_{source}_ns")
    busy = rates("scalar.ns_per_elem") * free_elems(reads[0])
    issue, latency = issue + busy, latency + busy
    if len(writes) > 1:
        issue, latency = (
            issue + rates("scalar.accumulator_issue_ns"),
            max(latency, issue + rates("scalar.accumulator_completion_ns")),
        )
    table, first = None, None
    if op == "activation":
        table, first = table_of(params["op"]), issue + rates("scalar.act_first_issue_extra_ns")
    return Price(issue, latency, op, rates.take_read(), table, first)
