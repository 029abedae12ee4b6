"""The price of one instruction on trn2: a pure function of its engine, op, operands and settings, and of the constants.

Nothing here sees a kernel's or a tensor's name, or earlier instructions: `timeline` schedules prices. Every price lists
its constants. Sources of all figures: trn2.toml.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..constants import SHARES
from ..memory import PSUM, Region
from ..program import Instruction
from .dma import dma_price, hbm_ns
from .gpsimd import gpsimd_price
from .prices import AnyPrice, DmaPrice, MeetPrice, Price, TensorPrice
from .rates import Rates, UnknownConstantError, inferred
from .scalar import scalar_price
from .tensor import tensor_price
from .vector import vector_price

__all__ = [
    "SHARES",
    "AnyPrice",
    "DmaPrice",
    "MeetPrice",
    "Price",
    "PriceList",
    "Rates",
    "TensorPrice",
    "UnknownConstantError",
    "hbm_ns",
    "inferred",
    "price",
    "price_key",
]

#: The settings of an instruction that a price depends on.
_TENSOR_PARAMS = ("contraction", "columns", "moving_columns", "is_transpose", "onezero", "tile_position", "tile_size")
_OTHER_PARAMS = ("op", "dge_mode", "engine", "count", "width", "n", "k", "indirect", "moved")

_ENGINES = {"vector": vector_price, "scalar": scalar_price, "gpsimd": gpsimd_price}
#: Instructions of registers and sequencers, by the constant that is their time.
_CONTROL = {
    "loop_branch": "control.compare_branch_ns",
    "register_load": "control.tensor_load_reg_ns",
    "register_store": "control.tensor_load_reg_ns",
    "scalar_load": "control.tensor_load_reg_ns",
    "scalar_store": "control.tensor_load_reg_ns",
    "register_move": "gpsimd.register_move_ns",
    "scalar_arithmetic": "gpsimd.register_move_ns",
}


def price(instruction: Instruction, rates: Rates) -> AnyPrice:
    """The price of one instruction.

    Raises NotImplementedError for an op that has none.
    """
    rates.take_read()
    engine, op, params = instruction.engine, instruction.op, instruction.params
    writes, reads = instruction.writes, instruction.reads
    if op in ("core_barrier", "sendrecv"):
        return _meet(op, engine, writes, rates)
    if op in _CONTROL:
        busy = rates(_CONTROL[op])
        return Price(busy, busy, op, rates.take_read())
    if engine == "tensor":
        # fp32 if any operand is; they only meet each other
        dtype = "float32" if any(region.dtype == "float32" for region in reads) else reads[-1].dtype
        return tensor_price(dtype, params, rates)
    if engine == "dma":
        return dma_price(op, writes, reads, params, rates)
    if "moved" in params:
        return _dynamic_copy(engine, op, params, rates)
    if engine not in _ENGINES:
        raise NotImplementedError(f"timing knows no {op} on the {engine} engine")
    return _ENGINES[engine](op, writes, reads, params, rates)


def _dynamic_copy(engine: str, op: str, params: dict[str, Any], rates: Rates) -> Price:
    """A tensor_copy whose place an index decides: as the static one, and no shorter than a documented least."""
    dst, *sources = params["moved"]
    static = _ENGINES[engine](op, (dst,), tuple(sources), {}, rates)
    least = rates("vector.tensor_copy_dynamic_min_cycles") * rates.cycle_ns(engine)
    longer = max(0.0, least - static.issue_ns)
    return replace(
        static,
        issue_ns=static.issue_ns + longer,
        latency_ns=static.latency_ns + longer,
        constants=static.constants | rates.take_read(),
    )


def _meet(op: str, engine: str, writes: tuple[Region, ...], rates: Rates) -> MeetPrice:
    """A barrier's seam; a sendrecv's, 4 KiB as measured, and what is beyond them at the carrier's rate."""
    seam = rates("lnc2.barrier_seam_ns")
    if op == "sendrecv":
        more = max(0.0, writes[0].num_bytes - rates("dma.max_element_bytes_packet"))
        speed = rates("dma.gpsimd_dma_gbps" if engine == "gpsimd" else "dma.steady_core_gbps")
        seam += rates("lnc2.sendrecv_4k_ns") + more / speed
    return MeetPrice(seam, rates.take_read())


class PriceList:
    """Prices of instructions under one set of constants; equal operands are priced once, and each is looked up once."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self._known: dict[Any, AnyPrice] = {}
        self._found: dict[Instruction, AnyPrice] = {}

    def __call__(self, instruction: Instruction) -> AnyPrice:
        found = self._found.get(instruction)
        if found is None:
            key = price_key(instruction)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = price(instruction, self.rates)
            self._found[instruction] = found
        return found


def price_key(instruction: Instruction) -> tuple[Any, ...]:
    """Equal for instructions of equal price."""
    params, engine = instruction.params, instruction.engine
    key: list[Any] = [engine, instruction.op, len(instruction.writes)]
    key += [params.get(name) for name in (_TENSOR_PARAMS if engine == "tensor" else _OTHER_PARAMS)]
    placed = engine == "dma" or engine == "vector"  # where the first partition counts
    for region in instruction.writes + instruction.reads:
        info, dtype, shape, strides, _ = region
        key += (dtype, shape, strides, info.on_chip, info.buffer is PSUM, info.bytes_per_partition)
        if placed and info.on_chip:
            key.append(region.first_partition)
    return tuple(key)
