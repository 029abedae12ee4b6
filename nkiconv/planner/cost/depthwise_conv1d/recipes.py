"""Recipes for `mixed` and `vector` under given constants: which engine takes which taps, by a balance of prices.

The kernel's own rule balances with constants of its own; here they come from the model, so that a plan follows them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ....kernels.depthwise_conv1d.call import Extras
from ....kernels.depthwise_conv1d.geometry import Geometry
from ....kernels.depthwise_conv1d.rows import recipes as kernel_rule
from ....simulator.hardware import PARTITIONS
from ....simulator.timing import Rates, hbm_ns

#: Taps on Tensor, by Vector, whether Scalar heads a second chain, taps by Vector in that.
Recipe = tuple[int, int, int, int]
Recipes = tuple[Recipe, ...]
#: Pieces after which recipes repeat, at most.
CYCLE_MAX = 5
#: Columns of a piece that fixed costs are spread over where none is named.
PIECE = 2048


@dataclass(frozen=True)
class ColumnPrices:
    """ns a column of 128 channels: a tap on each engine, the data's way through HBM; all with fixed costs spread."""

    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    hbm: float
    half_rate: float
    busy_min: float


def column_prices(geometry: Geometry, extras: Extras, cores: int, rates: Rates, piece: int = PIECE) -> ColumnPrices:
    """Prices under the constants of `rates`."""
    fp32 = geometry.itemsize == 4
    bank = rates("pe.max_moving_free")
    cycles = rates("pe.cyc_per_row_16bit") + rates("pe.issue_overhead_ns") / bank / rates.cycle_ns("pe")
    if fp32:
        overhead = rates("pe.issue_overhead_fp32_ns") / bank / rates.cycle_ns("pe")
        cycles = rates("pe.fp32_passes") * (rates("pe.cyc_per_row_fp32_pass") + overhead)
    vector_fixed = rates("vector.issue_fixed_scalar_tensor_tensor_ns")
    byte_ns = max(1 / rates("dma.steady_core_gbps"), cores * hbm_ns(1, piece * geometry.itemsize, rates))
    return ColumnPrices(
        tensor=cycles * rates.cycle_ns("pe"),
        vector=rates("vector.ns_per_elem_scalar_tensor_tensor") + vector_fixed / piece,
        scalar=rates("scalar.ns_per_elem") + rates("scalar.act_bias_issue_sbuf_ns") / piece,
        gpsimd=rates("gpsimd.elementwise_ns_per_elem") + rates("gpsimd.issue_fixed_ns") / piece,
        hbm=128 * (geometry.stride * geometry.itemsize + extras.epilogue.y_itemsize) * byte_ns,
        half_rate=rates("throttle.half_rate"),
        busy_min=rates("throttle.threshold"),
    )


def recipe_lists(
    geometry: Geometry, extras: Extras, cores: int, rates: Rates, *, on_tensor: bool, most: int, piece: int = PIECE
) -> list[Recipes]:
    """Up to `most` lists of recipes that balance the engines best: the kernel's own, then the best of all.

    on_tensor: lists with a tap on Tensor somewhere, else such without any. piece: columns of a piece.
    """
    prices = column_prices(geometry, extras, cores, rates, piece)
    columns = max(1.0, geometry.N * geometry.Q * geometry.C / (PARTITIONS * cores))
    late_ns = float(kernel_rule.tensor_late_ns(geometry))
    known = kernel_rule.candidates(geometry.S, on_tensor)
    work = {recipe: _work(recipe, extras, prices) for recipe in known}
    ranked: dict[Recipes, float] = {}
    for first, second in itertools.combinations_with_replacement(known, 2):
        for of in range(2, CYCLE_MAX + 1) if first != second else (1,):
            for times in range(1, of) if first != second else (0,):
                found = kernel_rule.spread(first, second, times, of)
                mixed = [(a * (of - times) + b * times) / of for a, b in zip(work[first], work[second], strict=True)]
                unlike = kernel_rule.UNLIKE_WEIGHT * abs(first[0] - second[0])
                ranked[_shortest(found)] = _bound(mixed, prices, columns, late_ns) + unlike
    own = kernel_rule.default_recipes(geometry, extras, piece, on_tensor)
    best = sorted(ranked, key=lambda one: ranked[one])
    found = [own, *[one for one in best if one != own]]
    return [one for one in found if on_tensor == any(recipe[0] > 0 for recipe in one)][:most]


def _shortest(recipes: Recipes) -> Recipes:
    """The shortest list that, repeated, gives this one."""
    sizes = [size for size in range(1, len(recipes)) if len(recipes) % size == 0]
    return next((recipes[:size] for size in sizes if recipes[:size] * (len(recipes) // size) == recipes), recipes)


def _work(recipe: Recipe, extras: Extras, prices: ColumnPrices) -> tuple[float, float, float, float]:
    """ns a column of Tensor, Vector, Scalar and GpSimd."""
    on_tensor, chain, head, second = recipe
    tensor, gpsimd = on_tensor * prices.tensor, head * prices.gpsimd
    vector = (chain + second) * prices.vector
    scalar = (head + (on_tensor == 0)) * prices.scalar
    if on_tensor > 0 and chain == 0:
        vector, gpsimd = vector + head * prices.vector, 0.0
        if not head:  # sums only have to be read out, by Vector and Scalar in turns
            vector, scalar = vector + prices.vector / 2, scalar + prices.scalar / 2
    vector += prices.vector * (extras.epilogue.residual != "")
    scalar += prices.scalar * (extras.epilogue.activation != "")
    return tensor, vector, scalar, gpsimd


def _bound(work: list[float], prices: ColumnPrices, columns: float, late_ns: float) -> float:
    """ns a column of the busiest of the engines and HBM; the array is slow where it has too little to do, and engines
    that begin late have fewer of all the columns' time. As the kernel's rule weighs them."""
    tensor, vector, scalar, gpsimd = work
    if tensor < prices.busy_min * max(vector, scalar, gpsimd, prices.hbm):
        tensor /= prices.half_rate
    late = [
        tensor + (tensor > 0) * late_ns / columns,
        vector + (vector > 0) * kernel_rule.VECTOR_LATE_NS / columns,
        gpsimd + (gpsimd > 0) * kernel_rule.GPSIMD_LATE_NS / columns,
    ]
    busiest = max(scalar, *late)
    engines = max(kernel_rule.ENGINE_MARGIN * busiest, prices.hbm) + kernel_rule.BUSY_WEIGHT * busiest
    return float(engines + kernel_rule.WORK_WEIGHT * sum(work))
