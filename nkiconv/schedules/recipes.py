"""Recipes of `mixed` and `vector`: the taps of each engine, their steps, and the lists that balance the engines.

A recipe (tensor, vector_a, head, vector_b) shares out the S taps of a piece of columns, in this order:

    A = taps on Tensor, one diagonal matmul each, accumulated in PSUM (a product on Scalar if Tensor has no tap),
        then vector_a taps by Vector: A = x_s * w_s + A; the first of them evacuates PSUM
    B = with head = 1: a product on Scalar, then vector_b taps by Vector, added to A by GpSimd, for the last
        piece by Vector

All in fp32 until y. The steps of a piece fall into phases; phases of neighbouring pieces alternate, so that an engine
need not wait for its last result. The engines' times for a column decide which list of recipes is best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

from ..simulator.hardware import PARTITIONS
from ..simulator.timing.target import Target
from .depthwise import RowGeometry, arrival_ns, gate_ns, inputs_of
from .options import Epilogue
from .prices import Prices
from .tiles import BANK_COLUMNS, div_ceil

#: Taps on Tensor, taps by Vector, whether Scalar heads a second chain, taps by Vector in the second chain.
Recipe = tuple[int, int, int, int]
Recipes = tuple[Recipe, ...]
#: Most taps of Vector and Scalar together, so that the search stays small.
SHARED_TAPS_MAX = 8
#: Most taps of a filter whose first pieces do not use Tensor.
FIRST_TAPS_MAX = 13
#: Most taps with which pieces without Tensor can balance pieces with it.
FREE_TAPS_MAX = 16
#: Most pieces after which recipes repeat.
CYCLE_MAX = 3
#: Columns of the first pieces of a part if pieces are of a bank, few so that sums begin early.
FIRST_WIDTHS = 256, 384, 512


def vector_steps(recipe: Recipe) -> int:
    """Steps on Vector of the longer chain."""
    return max(recipe[1], recipe[3])


def phases_of(recipe: Recipe, epilogue: Epilogue) -> tuple[tuple[int, int], ...]:
    """(first step, end) of each phase of a piece; step 0 is the heads, then Vector's taps, the sum, the epilogue.

    A single chain has two phases on Vector, so that steps of two pieces alternate; two chains alternate by themselves.
    """
    steps = vector_steps(recipe)
    on_vector: tuple[tuple[int, int], ...] = ((1, 1 + steps),) if steps > 0 else ()
    if steps > 1 and recipe[2] == 0:
        middle = 1 + div_ceil(steps, 2)
        on_vector = ((1, middle), (middle, 1 + steps))
    behind = ((step, step + 1) for step in range(1 + steps, last_step(recipe, epilogue) + 1))
    return ((0, 1), *on_vector, *behind)


def has_product(recipe: Recipe) -> bool:
    """Whether Scalar heads a chain."""
    return recipe[0] == 0 or recipe[2] == 1


def needs_finish(recipe: Recipe, epilogue: Epilogue) -> bool:
    """Whether the sums need an epilogue after the last tap; a product on Scalar adds a bias if that is all."""
    if epilogue.activation != "" or epilogue.residual != "":
        return True
    return epilogue.bias and not has_product(recipe)


def last_step(recipe: Recipe, epilogue: Epilogue) -> int:
    """The step that writes y."""
    finishes = needs_finish(recipe, epilogue) or reads_out(recipe)
    return vector_steps(recipe) + recipe[2] + (1 if finishes else 0)


def reads_out(recipe: Recipe) -> bool:
    """Whether a copy evacuates PSUM because no tap on Vector reads it."""
    return recipe[0] > 0 and recipe[1] == 0 and recipe[2] == 0


class Work(NamedTuple):
    """ns a column of each engine, and the share of columns that a further copy evacuates from PSUM."""

    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    copied: float


def work_of(recipe: Recipe, geometry: RowGeometry, epilogue: Epilogue, target: Target, piece: int) -> Work:
    """The work of a recipe in pieces of `piece` columns."""
    # ns of a tap and column of 128 channels, with fixed costs spread over a piece; a matmul has a bank's columns
    prices = Prices(target, geometry)
    tensor_ns = (prices.column_ns + prices.fixed_ns / BANK_COLUMNS) * max(1.0, target.matmul_columns_min / piece)
    vector_ns = target.vector_sum_ns + target.vector_fixed_sum_ns / piece
    scalar_ns = target.scalar_ns + target.scalar_fixed_operand_ns / piece
    on_tensor, chain, head, second = recipe
    vector, scalar, gpsimd = (chain + second) * vector_ns, (head + (on_tensor == 0)) * scalar_ns, 0.0
    if head and on_tensor and not chain:
        vector += target.vector_ns + target.vector_fixed_psum_ns / piece
    elif head:
        gpsimd = target.gpsimd_ns + target.gpsimd_fixed_ns / piece
    vector += geometry.stride * gate_ns(geometry, target)
    scalar += geometry.stride * arrival_ns(geometry, target)
    vector += vector_ns * (bool(epilogue.residual) + epilogue.by_sigmoid)
    if epilogue.activation or (epilogue.bias and not has_product(recipe) and not epilogue.residual):
        scalar += scalar_ns
    copied = float(reads_out(recipe) and not needs_finish(recipe, epilogue))
    return Work(on_tensor * tensor_ns, vector, scalar, gpsimd, copied)


def ranked_recipes(
    geometry: RowGeometry, epilogue: Epilogue, target: Target, piece: int, on_tensor: bool
) -> Iterator[Recipes]:
    """Lists of one or two recipes in any proportion, the one that balances the engines best first."""
    proportions = [(times, of) for of in range(2, CYCLE_MAX + 1) for times in range(1, of) if gcd(times, of) == 1]
    of_x = (geometry.stride * inputs_of(geometry) + ("C" in geometry.chunks)) * geometry.itemsize
    hbm_ns = target.hbm_ns(PARTITIONS * (of_x + epilogue.y_itemsize), piece * geometry.itemsize)
    scalar_copy_ns = target.scalar_ns + target.scalar_fixed_ns / piece
    vector_copy_ns = target.vector_ns + target.vector_fixed_psum_ns / piece

    def cost(work: Sequence[float]) -> float:
        """ns a column of the busiest of the engines and HBM, plus the busiest engine. work: as in `Work`."""
        tensor, vector, scalar, gpsimd, copied = work
        share = 0.5 if copied == 1.0 else copied  # Vector copies every other piece if all are copied, else Scalar
        busiest = max(tensor, vector + (copied - share) * vector_copy_ns, scalar + share * scalar_copy_ns, gpsimd)
        # of recipes that HBM hides, those of idle engines: HBM may be slower
        return max(busiest, hbm_ns) + busiest

    known = [
        (recipe, work_of(recipe, geometry, epilogue, target, piece)) for recipe in candidates(geometry.S, on_tensor)
    ]
    found: list[tuple[float, Recipe, Recipe, int, int]] = []
    for first, one in known:
        for second, other in known:
            if first == second:
                found.append((cost(one), first, first, 0, 1))
                continue
            for times, of in proportions:
                mixed = [(a * (of - times) + b * times) / of for a, b in zip(one, other, strict=True)]
                found.append((cost(mixed), first, second, times, of))
    found.sort(key=lambda each: each[0])
    return (spread(*each[1:]) for each in found)


def spread(first: Recipe, second: Recipe, times: int, of: int) -> Recipes:
    """`of` recipes: `times` the second, evenly spaced, the others the first."""
    return tuple(second if (i + 1) * times // of > i * times // of else first for i in range(of))


def candidates(S: int, on_tensor: bool) -> list[Recipe]:
    """Recipes of S taps: with taps on Tensor if on_tensor; without, unless on_tensor and S is large, one of one chain
    and one of two."""
    found: list[Recipe] = []
    if on_tensor:
        for shared in range(min(S - 1, SHARED_TAPS_MAX) + 1):
            if shared > 0:  # chains of equal length, between which Vector alternates; best of equal costs
                found.append((S - shared, shared // 2, 1, (shared - 1) // 2))
            found.append((S - shared, shared, 0, 0))
    if not on_tensor or S <= FREE_TAPS_MAX:
        found += [(0, S - 1, 0, 0), *([free_recipe(S)] if S >= 2 else [])]
    return found


def free_recipe(S: int) -> Recipe:
    """Two chains of S >= 2 taps without Tensor."""
    second = (S - 2) // 2
    return 0, S - 2 - second, 1, second


def first_recipes(geometry: RowGeometry) -> Recipes:
    """Recipes of the first pieces if Tensor has taps: it is late and slow there, so others take all taps if few."""
    return (free_recipe(geometry.S),) if 2 <= geometry.S <= FIRST_TAPS_MAX else ()


def start_recipes(S: int) -> Recipes:
    """Recipes of `mixed` for first pieces, before which the engines are not equally late."""
    rests = (1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 0, 0)
    found = [(S - sum(rest), *rest) for rest in rests if sum(rest) < S]
    return (free_recipe(S), *found) if S >= 2 else tuple(found)
