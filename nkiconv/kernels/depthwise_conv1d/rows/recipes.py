"""Which engine takes which taps: recipes that keep Tensor, Vector, Scalar and GpSimd equally busy.

The default is found by a balance of prices an element; a planner that times candidates may find a better one.
"""

from ...._nki import nl
from ..._prices import (
    GPSIMD_FIXED_NS,
    GPSIMD_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    SCALAR_FIXED_OPERAND_NS,
    SCALAR_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_FIXED_SUM_NS,
    VECTOR_NS,
    VECTOR_SUM_NS,
    hbm_ns,
)
from ..._tiles import BANK_COLUMNS, div_ceil
from .chains import has_product, needs_finish, reads_out

#: ns a column and tap of an nc_matmul of a bank, with 16-bit and with fp32 data, which pass twice.
TENSOR_NS = TENSOR_COLUMN_NS + MATMUL_NS / BANK_COLUMNS
TENSOR_FP32_NS = TENSOR_COLUMN_FP32_NS + 2 * MATMUL_FP32_NS / BANK_COLUMNS
#: Work of the array below which it falls back to half its rate (trn2.toml, throttle.threshold), and a margin.
TENSOR_BUSY_MIN = 0.42
#: ns that an engine loses to Scalar at the ends of a core's work: Vector waits for the first product, GpSimd for the
#: first chains, y for its last sum. Tensor waits for diagonals and is at half rate for a window; with 16-bit data the
#: recipe of the first piece makes up for that.
TENSOR_LATE_FP32_NS = 1500.0
VECTOR_LATE_NS = 500.0
GPSIMD_LATE_NS = 700.0
#: Taps that Vector and Scalar take together at most, so that the search stays small.
SHARED_TAPS_MAX = 8
#: Taps up to which pieces without Tensor can balance ones with it.
FREE_TAPS_MAX = 5
#: Columns of a tile, and taps, up to which the first piece is done without Tensor before that has its diagonals.
NARROW = 128
NARROW_TAPS = 12
#: Pieces after which the recipes repeat, at most.
CYCLE_MAX = 3
#: How much faster than HBM an engine must be for its pauses not to show.
ENGINE_MARGIN = 1.015
#: Weight of the busiest engine's time where HBM is slower still.
BUSY_WEIGHT = 1.0
#: Weight of an engine's own time beside the bound: of two equal bounds the one with less work wins.
WORK_WEIGHT = 0.05
#: Weight of the difference of two recipes in Tensor's time: the less alike, the more one engine waits for another.
UNLIKE_WEIGHT = 0.1


def engine_times(recipe, geometry, epilogue, piece):
    """ns a column of (Tensor, Vector, Scalar, GpSimd) for one recipe in pieces of `piece` columns; last whether a
    plain copy out of PSUM comes on top."""
    tensor_ns = TENSOR_NS if geometry.itemsize == 2 else TENSOR_FP32_NS
    vector_ns = VECTOR_SUM_NS + VECTOR_FIXED_SUM_NS / piece
    scalar_ns = SCALAR_NS + SCALAR_FIXED_OPERAND_NS / piece
    tensor = recipe[0] * tensor_ns
    vector = (recipe[1] + recipe[3]) * vector_ns
    scalar = (recipe[2] + (1 if recipe[0] == 0 else 0)) * scalar_ns
    gpsimd = 0.0
    if recipe[2] == 1:
        if recipe[0] > 0 and recipe[1] == 0:
            vector += VECTOR_NS + VECTOR_FIXED_PSUM_NS / piece
        else:
            gpsimd = GPSIMD_NS + GPSIMD_FIXED_NS / piece
    if epilogue.residual != "":
        vector += vector_ns
    if epilogue.activation != "" or (epilogue.bias and not has_product(recipe) and epilogue.residual == ""):
        scalar += scalar_ns
    copied = 1.0 if reads_out(recipe) and not needs_finish(recipe, epilogue) else 0.0
    return tensor, vector, scalar, gpsimd, copied


def tensor_late_ns(geometry):
    """ns that Tensor loses at the ends of a core's work."""
    return 0.0 if geometry.itemsize == 2 else TENSOR_LATE_FP32_NS


def bound(first, second, times, of, dma_ns, piece, columns, late_ns):
    """ns a column of the slowest engine if `times` of `of` pieces take the second recipe, and a little of the rest.

    columns: of 128 channels, on one core, that the losses at the ends are spread over. late_ns: Tensor's of those.
    """
    shares = []
    for index in range(5):
        shares.append((first[index] * (of - times) + second[index] * times) / of)
    tensor, vector, scalar, gpsimd, copied = shares[0], shares[1], shares[2], shares[3], shares[4]
    scalar_share = 0.5 if copied == 1.0 else copied
    scalar += scalar_share * (SCALAR_NS + SCALAR_FIXED_OPERAND_NS / piece)
    vector += (copied - scalar_share) * (VECTOR_SUM_NS + VECTOR_FIXED_SUM_NS / piece)
    busiest = max(max(vector, scalar), gpsimd)
    if tensor > 0.0 and tensor < TENSOR_BUSY_MIN * max(busiest, dma_ns):
        tensor = 2.0 * tensor
    busiest = max(max(busiest, scalar), max(vector + VECTOR_LATE_NS / columns, tensor + late_ns / columns))
    if gpsimd > 0.0:
        busiest = max(busiest, gpsimd + GPSIMD_LATE_NS / columns)
    unlike = max(first[0] - second[0], second[0] - first[0])
    work = WORK_WEIGHT * (tensor + vector + scalar + gpsimd) + UNLIKE_WEIGHT * unlike
    return max(ENGINE_MARGIN * busiest, dma_ns) + BUSY_WEIGHT * busiest + work


def candidates(S, on_tensor):
    """Recipes of S taps: some with taps on Tensor if on_tensor, and the sensible ones without."""
    found = []
    if on_tensor:
        for shared in range(min(S - 1, SHARED_TAPS_MAX) + 1):
            found.append((S - shared, shared, 0, 0))
            if shared > 0:
                # chains of equal length, so that Vector goes from one to the other
                found.append((S - shared, div_ceil(shared - 1, 2), 1, (shared - 1) // 2))
    if not on_tensor or S <= FREE_TAPS_MAX:
        found.append((0, S - 1, 0, 0))
        if S >= 2:
            found.append(free_recipe(S))
    return found


def free_recipe(S):
    """Two chains of S >= 2 taps without Tensor."""
    vector_b = (S - 2) // 2
    return (0, S - 2 - vector_b, 1, vector_b)


def first_recipes(geometry, is_long, columns):
    """Recipes of the first pieces where Tensor has taps: it is late and slow there, so others take some of them.

    is_long: whether there is more work than the first piece. columns: of a tile.
    """
    S = geometry.S
    narrow = columns <= NARROW and S > 2 and S <= NARROW_TAPS
    if narrow or (geometry.itemsize == 4 and S > SHARED_TAPS_MAX and S <= NARROW_TAPS):
        return (free_recipe(S),)
    if geometry.itemsize != 2 or S < 2 or S > SHARED_TAPS_MAX:
        return ()
    if S <= 3:
        return (free_recipe(S),)
    return ((S - 3, 1, 1, 1),) if is_long else ()


def last_recipes(geometry, is_long):
    """Recipes of the last pieces where Tensor has taps: few steps, one after the other, are behind its sums."""
    S = geometry.S
    if S < 2:
        return ()
    return ((S - 1, 1, 0, 0),) if is_long and geometry.itemsize == 2 and S <= SHARED_TAPS_MAX else ((S - 1, 0, 1, 0),)


def default_recipes(geometry, extras, piece, on_tensor):
    """Recipes in turn for the pieces of a tile: one, or two in the proportion that balances the engines best."""
    return ranked_recipes(geometry, extras, piece, on_tensor, 1)[0]


def ranked_recipes(geometry, extras, piece, on_tensor, most):
    """Up to `most` lists of recipes in turn, the one that balances the engines best first."""
    column_bytes = nl.tile_size.pmax * (geometry.stride * geometry.itemsize + extras.epilogue.y_itemsize)
    dma_ns = hbm_ns(column_bytes, piece * geometry.itemsize)
    columns = max(1.0, geometry.N * geometry.Q * geometry.C / (2.0 * nl.tile_size.pmax))
    late_ns = tensor_late_ns(geometry)
    recipes = candidates(geometry.S, on_tensor)
    times = []
    for index in range(len(recipes)):
        times.append(engine_times(recipes[index], geometry, extras.epilogue, piece))
    ranked = []
    for i in range(len(recipes)):
        for j in range(len(recipes)):
            for of in range(2 if i != j else 1, CYCLE_MAX + 1 if i != j else 2):
                for more in range(0 if i == j else 1, 1 if i == j else of):
                    cost = bound(times[i], times[j], more, of, dma_ns, piece, columns, late_ns)
                    if len(ranked) < most or cost < ranked[len(ranked) - 1][0]:
                        ranked = ranked_with(ranked, most, cost, spread(recipes[i], recipes[j], more, of))
    found = []
    for index in range(len(ranked)):
        found.append(ranked[index][1])
    return found


def ranked_with(ranked, most, cost, recipes):
    """The `most` least of (cost, recipes) pairs, in order, with one more; of equal ones the earlier comes first."""
    found = []
    taken = False
    for index in range(len(ranked)):
        if not taken and cost < ranked[index][0]:
            found.append((cost, recipes))
            taken = True
        found.append(ranked[index])
    if not taken:
        found.append((cost, recipes))
    return found[0 : min(most, len(found))]


def spread(first, second, times, of):
    """`of` recipes of which `times` are the second, evenly spaced."""
    cycle = ()
    for index in range(of):
        taken = (index * times) // of
        cycle = cycle + ((second if ((index + 1) * times) // of > taken else first),)
    return cycle


def most_tensor_taps(recipes):
    """Most taps on Tensor of any recipe."""
    most = 0
    for index in range(len(recipes)):
        most = max(most, recipes[index][0])
    return most
