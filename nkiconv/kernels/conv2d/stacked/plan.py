"""Few channels: how many rows, shifts and outputs share the array's partitions and columns, from shapes alone.

With C input channels a plain matmul uses C of 128 partitions, with K output channels K of 128 columns. Here

    X[(d, b, c), m, i] = x[c, m * B + b - top, i + d * dilation - left]      d < D, b < B: D * B * C partitions
    Y[(u, k), j, q]    = y[k, j * U + u, q]                                    u < U: U * K columns of the array

and Y[:, j] is a sum over tap blocks t and groups g of columns of taps of

    F[t, g]^T X[:, j * e + t, q * stride + g * D * dilation],   F[t, g][(d, b, c), (u, k)] = w[k, c, r, g * D + d],
    r * dilation = t * B + b - u * stride,                      U * stride = e * B,

so that B rows, U outputs and D columns of taps are done by one matmul. B > 1 costs nothing but zeros in F; D > 1 loads
x D times. What is best is found by prices of the array, the read-outs and the DMAs.

Settings: `rows` B, `shifts` D and `outputs` U, all three or none; `blocks` of U rows of y and `images` of a band, at
most; `warmup`, matmuls on zeros before the first rows, -1: as many as prices say.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import (
    DMA_ENGINES,
    HBM_BYTE_NS,
    MATMUL_NS,
    SCALAR_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_FIXED_NS,
    VECTOR_NS,
    run_ns,
)
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, PARTS, cut, cut_into, div_ceil

SETTINGS = ("rows", "shifts", "outputs", "blocks", "images", "warmup")
#: Most of a setting that memory limits anyway.
MOST = 4096
WARM_UP_MAX = 256
#: Bytes a partition of x of one band, of the filters of all jobs, and of the zero-padded filters of one.
X_BYTES = 16_384
FILTER_BYTES = 65_536
PADDED_BYTES = 49_152
#: Bytes a partition of fp32 results of one band and job.
Y_BYTES = 16_384
#: Bands of a core, if there are images for so many: loads of one overlap the sums of another.
BANDS = 4
#: ns of a DMA's trigger and way beside its runs that a band's loads and stores cost at least, each.
DMA_NS = 60.0


@dataclass
class Stack(nl.NKIObject):
    """Sizes: see above. kn: output channels of a job; jobs: (first, how many) of each."""

    B: int
    D: int
    U: int
    #: e
    step: int
    #: partitions of X
    parts: int
    num_taps: int
    groups: int
    kn: int
    jobs: list
    #: images and output blocks (of U rows) of a band, at most; all columns of x that a window meets
    images: int
    blocks: int
    width: int
    warmup: int


def plan_stack(geometry, extras, config, cores):
    """(Stack, "") of this on `cores` cores, or (None, why not)."""
    rows, columns = geometry.rows, geometry.columns
    reason = config_refusal(config, SETTINGS, "stacked")
    if reason == "":
        sizes = (("rows", 1, MOST), ("shifts", 1, MOST), ("outputs", 1, MOST), ("blocks", 1, MOST), ("images", 1, MOST))
        reason = numbers_refusal(config, sizes)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", -1, WARM_UP_MAX),))
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
        stack = best_stack(geometry)
    elif 0 in given:
        return None, f"config={config}: rows, shifts and outputs are given together or not at all"
    elif given[2] * rows.stride % given[0] != 0 or given[0] * given[1] * geometry.C > nl.tile_size.pmax:
        return None, (
            f"config rows={given[0]} shifts={given[1]} outputs={given[2]}, C={geometry.C}: rows * shifts * C must be "
            f"at most {nl.tile_size.pmax}, and rows divide outputs * stride"
        )
    elif given[2] > nl.tile_size.pmax or given[1] > columns.taps:
        return None, (
            f"config shifts={given[1]} outputs={given[2]}: at most {columns.taps} shifts (columns of taps) and "
            f"{nl.tile_size.pmax} outputs"
        )
    else:
        stack = make_stack(geometry, given[0], given[1], given[2], given[2] * rows.stride // given[0])
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
    if count > INSTRUCTIONS_MAX:
        return None, (
            f"N={geometry.N}, K={geometry.K}: stacked needs up to {count} instructions on a core, the compiler takes "
            f"{INSTRUCTIONS_MAX}; split N or K over several calls"
        )
    return stack, ""


def best_stack(geometry):
    """The Stack that takes least, or None where memory holds none."""
    rows, columns = geometry.rows, geometry.columns
    best, best_ns = None, 0.0
    most = nl.tile_size.pmax // geometry.C
    for B in range(1, min(most, rows.size + rows.taps) + 1):
        for D in range(1, min(most // B, columns.taps) + 1):
            for e in range(1, nl.tile_size.pmax + 1):
                U = (e * B) // rows.stride
                if U * rows.stride == e * B and U <= nl.tile_size.pmax and U < rows.out + max(1, B // rows.stride):
                    found = make_stack(geometry, B, D, U, e)
                    if found != None:
                        found_ns = stack_ns(geometry, found)
                        if best == None or found_ns < best_ns:
                            best, best_ns = found, found_ns
    return best


def make_stack(geometry, B, D, U, e):
    """A Stack of these sizes, or None where memory does not hold it."""
    rows, columns = geometry.rows, geometry.columns
    kn = max(1, min(geometry.K, nl.tile_size.pmax // U))
    jobs = cut(geometry.K, kn)
    num_taps = div_ceil((U - 1) * rows.stride + (rows.taps - 1) * rows.dilation + 1, B)
    groups = div_ceil(columns.taps, D)
    width = (columns.out - 1) * columns.stride + (groups - 1) * D * columns.dilation + 1
    item = geometry.itemsize
    row_bytes = width * item
    blocks = min(div_ceil(rows.out, U), max(0, (X_BYTES // row_bytes - num_taps) // e + 1))
    blocks = min(blocks, max(1, Y_BYTES // (4 * columns.out)))
    padded = geometry.C * num_taps * B * groups * D * item
    filters = len(jobs) * num_taps * groups * U * kn * item
    if num_taps * row_bytes > X_BYTES or blocks < 1 or padded > PADDED_BYTES or filters > FILTER_BYTES:
        return None
    images = 1
    if blocks * U >= rows.out:
        images = max(1, min(div_ceil(geometry.N, PARTS * BANDS), BANK_COLUMNS // (blocks * columns.out)))
        images = max(1, min(images, X_BYTES // (row_bytes * ((blocks - 1) * e + num_taps))))
    return Stack(
        B=B,
        D=D,
        U=U,
        step=e,
        parts=D * B * geometry.C,
        num_taps=num_taps,
        groups=groups,
        kn=kn,
        jobs=jobs,
        images=images,
        blocks=blocks,
        width=width,
        warmup=-1,
    )


def stack_ns(geometry, stack):
    """ns of both cores for a Stack."""
    P, Q = geometry.rows.out, geometry.columns.out
    columns = geometry.N * div_ceil(P, stack.U) * Q * len(stack.jobs)
    share = stack.U * geometry.rows.stride / ((stack.blocks - 1) * stack.step * stack.B + stack.num_taps * stack.B)
    again = max(1.0, 1.0 / (share * stack.blocks)) if stack.blocks * stack.U < P else 1.0
    loads = stack.D * again
    # rows of one block lie on different partitions, blocks of one row beside each other
    y_run = stack.blocks * Q if stack.U == 1 else Q
    ns = work_ns(geometry, columns, stack.num_taps * stack.groups, loads, geometry.columns.size, y_run)
    bands = div_ceil(geometry.N, stack.images) * div_ceil(div_ceil(P, stack.U), stack.blocks)
    return ns + bands * (stack.D + stack.U) * DMA_NS / PARTS


def work_ns(geometry, columns, matmuls, loads, x_run, y_run):
    """The slowest of the array, the read-outs and the DMAs. loads: how often x is; x_run, y_run: elements of a run."""
    item = geometry.itemsize
    column_ns = (TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS) + MATMUL_NS / BANK_COLUMNS
    array_ns = columns * matmuls * column_ns
    each_ns = VECTOR_NS + SCALAR_NS + 2 * VECTOR_FIXED_NS / BANK_COLUMNS
    read_ns = columns * each_ns / 4
    x_size = geometry.N * geometry.C * geometry.rows.size * geometry.columns.size * loads
    y_size = geometry.N * geometry.K * geometry.rows.out * geometry.columns.out
    x_ns = x_size / x_run * run_ns(x_run * item)
    y_ns = y_size / y_run * run_ns(y_run * item)
    moved_ns = max((x_ns + y_ns) / DMA_ENGINES, (x_size + y_size) * item * HBM_BYTE_NS)
    return max(max(array_ns, read_ns), moved_ns) / PARTS


@dataclass
class StackBand(nl.NKIObject):
    """Output blocks j0 .. j0+jn-1, of U rows each, of images n0 .. n0+nn-1."""

    n0: int
    nn: int
    j0: int
    jn: int


def stack_bands(geometry, stack):
    """All bands, as even as can be; at least as many as there are cores."""
    blocks = div_ceil(geometry.rows.out, stack.U)
    image_parts = div_ceil(geometry.N, stack.images)
    if image_parts % PARTS == 1 and image_parts < geometry.N:
        image_parts += 1
    block_parts = div_ceil(blocks, stack.blocks)
    if (image_parts * block_parts) % PARTS == 1 and blocks > block_parts:
        block_parts += 1
    found = []
    images = cut_into(geometry.N, image_parts)
    parts = cut_into(blocks, block_parts)
    for index in range(len(images)):
        for which in range(len(parts)):
            found.append(StackBand(n0=images[index][0], nn=images[index][1], j0=parts[which][0], jn=parts[which][1]))
    return found


def sbuf_bytes(geometry, stack, has_residual):
    """Bytes a partition, at most."""
    item = geometry.itemsize
    x_bytes = stack.images * ((stack.blocks - 1) * stack.step + stack.num_taps) * stack.width * item
    y_bytes = 4 * stack.images * stack.blocks * geometry.columns.out
    padded = geometry.C * stack.num_taps * stack.B * stack.groups * stack.D * item
    filters = len(stack.jobs) * stack.num_taps * stack.groups * stack.U * stack.kn * item
    return 2 * x_bytes + filters + 2 * padded + (4 if has_residual else 2) * y_bytes + 4096


def count_instructions(geometry, stack, cores):
    """Instructions of a core, at most."""
    bands = div_ceil(len(stack_bands(geometry, stack)), cores)
    banks = stack.images * div_ceil(stack.blocks * geometry.columns.out, BANK_COLUMNS // 2) + 2 * stack.blocks
    job = banks * (stack.num_taps * stack.groups + 4) + 3 * stack.U + 4
    loads = stack.D * (2 * stack.num_taps + stack.step + 4) + 8
    filters = len(stack.jobs) * (stack.num_taps * stack.groups * 2 + 3 * stack.U + 8)
    return 64 + bands * (loads + len(stack.jobs) * job) + filters
