"""Few channels: how many rows, shifts and outputs share the array's partitions and columns, from shapes alone.

With C input channels a plain matmul uses C of 128 partitions, with K output channels K of 128 columns. Here

    X[(d, b, c), m, i]    = x[c, m * G + b - top, i + d * dilation - left]    d < D, b < B: D * B * C partitions
    Y[(u, k), j, v, q]    = y[k, (j * U + u) * V + v, q]                       u < U: U * K columns of the array

and Y[:, j, v] is a sum over tap blocks t and groups g of columns of taps of

    F[g, z, t]^T X[:, j * e + (v * stride) // G + t * B / G, q * stride + g * D * dilation],
    F[g, z, t][(d, b, c), (u, k)] = w[k, c, r, g * D + d],
    r * dilation = t * B + b - z - u * V * stride,    z = (v * stride) mod G,    U * V * stride = e * G,

so that B rows, U outputs and D columns of taps are done by one matmul. B > 1 costs nothing but zeros in F where blocks
of X are B rows apart (G = B), and loads rows B / G times where they overlap; D > 1 loads x D times. V > 1 makes longer
runs of y, as its rows are stored side by side from one partition; so does moving the U rows of a block to the
partitions of the first while they are read out (`merge`), in U times as many instructions. What is best is found by
prices of the array, the read-outs and the DMAs.

Settings: `rows` B, `shifts` D and `outputs` U, all three or none, and with them `beside` V, `apart` G and `merge`, 0 or
1; `blocks` of U * V rows of y and `images` of a band, at most; `warmup`, matmuls on zeros before the first rows, -1: as
many as prices say.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import TENSOR_COLUMN_FP32_NS, TENSOR_COLUMN_NS
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import PARTS, div_ceil
from ..call import either_reads
from ..geometry import instructions_refusal
from .prices import LEAST_NS, stack_ns
from .shape import QUADRANT, by_quadrants, count_instructions, make_stack, met_counts, phases_of, sbuf_bytes, taps_of

STACKED_SETTINGS = ("rows", "shifts", "outputs", "beside", "apart", "merge", "blocks", "images", "warmup")
#: Most of a setting that memory limits anyway.
MOST = 4096
STACKED_WARM_UP_MAX = 256
#: Rows of y side by side that are tried.
BESIDE = (1, 2, 4)


def plan_stack(geometry, extras, config, cores):
    """(Stack, "") of this on `cores` cores, or (None, why not)."""
    rows, columns = geometry.rows, geometry.columns
    reason = config_refusal(config, STACKED_SETTINGS, "stacked")
    if reason == "":
        sizes = (("rows", 1, MOST), ("shifts", 1, MOST), ("outputs", 1, MOST), ("beside", 1, MOST))
        reason = numbers_refusal(config, sizes)
    if reason == "":
        sizes = (("apart", 1, MOST), ("merge", 0, 1), ("blocks", 1, MOST), ("images", 1, MOST))
        reason = numbers_refusal(config, sizes)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", -1, STACKED_WARM_UP_MAX),))
    if reason != "":
        return None, reason
    if geometry.groups > 1:
        return None, f"feature_group_count={geometry.groups}: stacked takes 1; use taps"
    if rows.lhs_dilation > 1 or columns.lhs_dilation > 1:
        return None, f"lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: stacked takes (1, 1); use taps"
    if extras.pool != (1, 1):
        return None, f"pool={extras.pool}: stacked takes (1, 1); use taps"
    if extras.strict_nonfinite:
        return None, "strict_nonfinite=True: stacked multiplies rows outside a window by zero; use taps"
    if geometry.packed > 0:
        return None, "filter_ref is packed: stacked takes plain filters; use taps, or pass [K, C, R, S]"
    if geometry.C > nl.tile_size.pmax:
        return None, f"C={geometry.C}: stacked takes at most {nl.tile_size.pmax} channels; use taps"
    given = setting(config, "rows", 0), setting(config, "shifts", 0), setting(config, "outputs", 0)
    if given == (0, 0, 0):
        for name in ("beside", "apart", "merge"):
            if setting(config, name, -1) >= 0:
                return None, f"config={config}: {name} goes with rows, shifts and outputs; give them too"
        stack = best_stack(geometry, reader_of(extras))
    elif 0 in given:
        return None, f"config={config}: rows, shifts and outputs are given together or not at all"
    else:
        stack, reason = given_stack(geometry, extras, config, given)
        if reason != "":
            return None, reason
    whole = nl.tile_size.total_available_sbuf_size
    if stack != None:
        stack.blocks = min(stack.blocks, setting(config, "blocks", stack.blocks))
        stack.images = min(stack.images, setting(config, "images", stack.images))
        stack.warmup = setting(config, "warmup", -1)
    if stack == None or sbuf_bytes(geometry, stack, extras.residual) > whole:
        return None, (
            f"W={columns.size}, R={rows.taps}, S={columns.taps}: stacked rows and filters must fit SBUF, {whole} bytes "
            f"a partition; use taps"
        )
    count = count_instructions(geometry, stack, cores)
    reason = instructions_refusal(geometry, "stacked", count)
    return (stack, "") if reason == "" else (None, reason)


def given_stack(geometry, extras, config, given):
    """(the Stack of a config's sizes or None where memory does not hold it, why they do not fit each other or "")."""
    rows, columns = geometry.rows, geometry.columns
    B, D, U = given
    V = setting(config, "beside", 1)
    G = setting(config, "apart", B)
    merged = setting(config, "merge", 0) == 1
    if U * V * rows.stride % G != 0 or B * D * geometry.C > nl.tile_size.pmax:
        return None, (
            f"config rows={B} shifts={D} outputs={U}, C={geometry.C}: rows * shifts * C must be at most "
            f"{nl.tile_size.pmax}, and rows (or apart={G}, where it is given) divide outputs * beside * stride"
        )
    if U > nl.tile_size.pmax or D > columns.taps:
        return None, (
            f"config shifts={D} outputs={U}: at most {columns.taps} shifts (columns of taps) and {nl.tile_size.pmax} "
            f"outputs"
        )
    if B % G != 0 and taps_of(rows, B, U, V, max_of(phases_of(rows.stride, V, G))) > 1:
        return None, f"config rows={B} apart={G}: rows must be a multiple of it, or hold the window of all outputs"
    if merged and not can_merge(geometry, U):
        return None, f"config merge=1, outputs={U}, K={geometry.K}: engines move whole quadrants of {QUADRANT} channels"
    return make_stack(geometry, met_counts(columns), B, D, U, V, G, merged, reader_of(extras)), ""


def reader_of(extras):
    """Who reads sums out: one of shape.READERS."""
    if extras.residual:
        return "vector"
    return "both" if either_reads(extras.epilogue, extras.strict_nonfinite) else "scalar"


def max_of(values):
    """The largest of a list of ints."""
    found = values[0]
    for value in values:
        found = max(found, value)
    return found


def can_merge(geometry, U):
    """Whether engines may address the channels of each of U rows of a block."""
    return U > 1 and by_quadrants(geometry.K, nl.tile_size.pmax // U)


@dataclass
class Best(nl.NKIObject):
    """The best Stack so far, and what it takes."""

    stack: object
    ns: float


def best_stack(geometry, reader):
    """The Stack that takes least, or None where memory holds none."""
    best = Best(stack=None, ns=0.0)
    counts = met_counts(geometry.columns)
    columns = geometry.columns
    most = nl.tile_size.pmax // geometry.C
    shifts = []
    for groups in range(1, columns.taps + 1):
        # fewer columns of taps a group than needed for as many groups only leave partitions idle
        D = div_ceil(columns.taps, groups)
        if D <= most and D not in shifts:
            shifts.append(D)
    for U in outputs_of(geometry):
        for V in BESIDE:
            if V == 1 or U * V <= geometry.rows.out:
                for D in shifts:
                    for B in rows_of(geometry, U, V, most // D):
                        try_stack(geometry, counts, best, B, D, U, V, reader)
    return best.stack


def outputs_of(geometry):
    """Outputs of a block that are tried: for each number of jobs the most, all that are few, and multiples of 8."""
    found = []
    most = min(nl.tile_size.pmax, geometry.rows.out + geometry.rows.size)
    for U in range(1, most + 1):
        jobs = div_ceil(geometry.K, nl.tile_size.pmax // U)
        if U == most or U <= 8 or jobs < div_ceil(geometry.K, nl.tile_size.pmax // (U + 1)) or U % 8 == 0:
            found.append(U)
    return found


def rows_of(geometry, U, V, most):
    """Rows B of a block of X that are tried: those that tile a block of output rows, and its whole window."""
    span = U * V * geometry.rows.stride
    found = []
    for B in range(min(most, span), 0, -1):
        if span % B == 0:
            found.append(B)
    window = (U * V - 1) * geometry.rows.stride + (geometry.rows.taps - 1) * geometry.rows.dilation + 1
    if window <= most and window not in found:
        found.append(window)
    return found


def try_stack(geometry, counts, best, B, D, U, V, reader):
    """Keep what takes less than the best so far, among stacks of these sizes."""
    rows = geometry.rows
    span = U * V * rows.stride
    window = span - rows.stride + (rows.taps - 1) * rows.dilation + 1
    options = []
    if span % B == 0:
        options.append(B)
    if window <= B and B != span:
        options.append(span)
    if D == 1 and 1 < B and span % B == 0:
        options.append(1)
    jobs = div_ceil(geometry.K, nl.tile_size.pmax // U)
    blocks = div_ceil(geometry.N * div_ceil(rows.out, U * V), PARTS)
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    for G in options:
        taps = taps_of(rows, B, U, V, max_of(phases_of(rows.stride, V, G)))
        matmuls = taps * div_ceil(geometry.columns.taps, D)
        # what the array alone takes, after the first filters and before the last store
        least_ns = LEAST_NS + jobs * blocks * V * geometry.columns.out * matmuls * column_ns
        if best.stack == None or least_ns < best.ns:
            for merged in (False, True) if can_merge(geometry, U) else (False,):
                found = make_stack(geometry, counts, B, D, U, V, G, merged, reader)
                whole = nl.tile_size.total_available_sbuf_size
                if found != None and sbuf_bytes(geometry, found, reader == "vector") <= whole:
                    found_ns = stack_ns(geometry, found, best.ns)
                    if best.stack == None or found_ns < best.ns:
                        best.stack = found
                        best.ns = found_ns
