"""Filter gradient of a depthwise row by blocks of gy, for filters that are short against rows.

    dw[c, s] = sum over units (n, b) and positions p of  gy[n, c, b U + p] * x[n, c, (b U + p) stride + s dilation - left]

Units of U neighbouring positions lie on the partitions, of all images, with the window of x that their taps see. One
matmul takes a position more a row of its stationary [units, p] and the window as moving operand:

    T[p, j] = sum over units of  gy[unit, p] * x[unit, j]      wanted is j = p stride + s dilation, the skew diagonals

Several channels lie beside each other, with zeros in each other's places of the stationary; a unit has as many passes as
its positions need, whose windows begin so much later that their sums share T. T goes to HBM and comes back in step, row
p read p strides further on, and a matmul with ones adds its rows: all images in one sum, rounded once.

Engine plan: DMA loads rows in runs of a unit, stores T and loads it in step; Tensor multiplies batch i and sums up
batch i - 2; Vector and Scalar share the read-outs by a ledger. Bound by DMA, whose runs are short, or by Tensor, whose
matmuls stream at least 128 columns.

Zeros are multiplied: a NaN or Inf reaches the channels beside its own.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger, new_ledger, pick
from ..._masks import keep_between
from ..._tiles import BANK_COLUMNS, share, some_of
from ..._warm import warm_up, warm_zeros
from ...depthwise_conv1d.free_channels import move_free
from ...depthwise_conv1d.geometry import Geometry
from .loads import load_batch, skewed_tiles
from .plan import SkewedPlan, skewed_plan_of

#: Pieces of HBM that products of batches take in turn.
SKEW_SCRATCH = 4


@dataclass
class SkewedWork(nl.NKIObject):
    """What one core has at hand. x, gy: in HBM, with strides along n, c and positions; dw: the result; added: what it
    is added to, or None. geometry: of the convolution, w_c and w_s those of dw."""

    x: object
    gy: object
    dw: object
    added: object
    x_strides: tuple
    gy_strides: tuple
    geometry: Geometry
    plan: SkewedPlan
    ones_sbuf: object
    scratch: list
    ledger: Ledger


def skewed(x, gy, dw, added, strides, geometry, config):
    """Write dw. strides: of x and of gy along n, c and positions. config: (name, value) pairs of a SkewedConfig."""
    plan = skewed_plan_of(geometry, config)
    batches = some_of(plan.batches, share(len(plan.batches), nl.num_programs(), nl.program_id(0)))
    work = SkewedWork(
        x=x,
        gy=gy,
        dw=dw,
        added=added,
        x_strides=strides[0],
        gy_strides=strides[1],
        geometry=geometry,
        plan=plan,
        ones_sbuf=None,
        scratch=[],
        ledger=new_ledger(),
    )
    tiles, loaded, products, in_step = [], 0, [], []
    for index in range(len(batches) + 2):
        while loaded < min(len(batches), index + plan.buffers):
            if loaded < plan.buffers:
                tiles.append(skewed_tiles(work))
            load_batch(work, batches[loaded], tiles[loaded % plan.buffers])
            loaded += 1
        if index == 0:
            start_sums_of_rows(work)
        if index < len(batches):
            products.append(multiply_batch(work, batches[index], tiles[index % plan.buffers], index))
        if 1 <= index and index <= len(batches):
            in_step.append(put_in_step(work, products[index - 1]))
        if 2 <= index:
            store_batch(work, batches[index - 2], in_step[index - 2])


def start_sums_of_rows(work):
    """Ones [(r, p), r'] where r' = r, scratch, and matmuls on zeros."""
    plan, jobs = work.plan, work.plan.groups * work.plan.chunks
    rows = plan.beside * plan.positions
    warm_up(warm_zeros(), plan.warmup, 1)
    work.ones_sbuf = nl.ndarray((rows, plan.beside), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=work.ones_sbuf, value=1.0)
    keep_between(work.ones_sbuf, [[-plan.positions, plan.beside]], plan.positions, work.ones_sbuf)
    for _ in range(SKEW_SCRATCH):
        work.scratch.append(nl.ndarray((rows * jobs * plan.columns,), dtype=nl.float32, buffer=nl.private_hbm))


def multiply_batch(work, block, tiles, index):
    """T of all groups and chunks of a batch, to HBM; returns (the piece of HBM, how many)."""
    plan, rows = work.plan, work.plan.beside * work.plan.positions
    jobs, each = block.length * plan.chunks, BANK_COLUMNS // plan.columns
    products_sbuf = nl.ndarray((rows, jobs, plan.columns), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, jobs, each):
        count = min(each, jobs - first)
        products_psum = nl.ndarray((rows, count, plan.columns), dtype=nl.float32, buffer=nl.psum)
        for job in range(count):
            multiply_units(work, tiles, first + job, products_psum[0:rows, job, 0 : plan.columns])
        nisa.tensor_copy(
            dst=products_sbuf[0:rows, first : first + count, 0 : plan.columns],
            src=products_psum,
            engine=pick(work.ledger, count * plan.columns, False),
        )
    scratch_hbm, row = work.scratch[index % SKEW_SCRATCH], jobs * plan.columns
    copy(scratch_hbm.ap(pattern=[[row, rows], [1, row]], offset=0), products_sbuf)
    return scratch_hbm, jobs


def multiply_units(work, tiles, job, into_psum):
    """T of a group and chunk: all units, a pass for so many of their positions."""
    plan, geometry, x_sbuf, gy_sbuf = work.plan, work.geometry, tiles.x, tiles.gy
    group, chunk = job // plan.chunks, job % plan.chunks
    lines = plan.beside * plan.units * plan.images
    reach = (plan.columns - 1) * plan.step + 1
    for tile in range(plan.tiles):
        for one in range(plan.passes):
            p = one * plan.positions
            j = p * geometry.stride + chunk * plan.taps * geometry.dilation
            nisa.nc_matmul(
                dst=into_psum,
                stationary=gy_sbuf[0:lines, tile, group, 0 : plan.beside, p : p + plan.positions],
                moving=x_sbuf[0:lines, tile, group, j : j + reach : plan.step],
                accumulate=tile + one > 0,
            )


def put_in_step(work, products):
    """[(r, p), jobs, taps] in SBUF: column s of row p is T[p, p stride + s dilation]."""
    plan, geometry = work.plan, work.geometry
    scratch_hbm, jobs = products
    row = jobs * plan.columns
    in_step_sbuf = nl.ndarray((plan.beside * plan.positions, jobs, plan.taps), dtype=nl.float32, buffer=nl.sbuf)
    lines = [[plan.positions * row, plan.beside], [row + geometry.stride // plan.step, plan.positions]]
    columns = [[plan.columns, jobs], [geometry.dilation // plan.step, plan.taps]]
    copy(in_step_sbuf, scratch_hbm.ap(pattern=lines + columns, offset=0))
    return in_step_sbuf


def store_batch(work, block, in_step_sbuf):
    """Rows of T summed up, added to what there is, and stored."""
    plan, geometry = work.plan, work.geometry
    beside, groups, taps = plan.beside, block.length, plan.chunks * plan.taps
    rows, jobs, each = beside * plan.positions, groups * plan.chunks, BANK_COLUMNS // plan.taps
    places = (geometry.w_c, geometry.w_s, 0)
    dtype = work.dw.dtype if work.added == None else nl.float32
    sums_sbuf = nl.ndarray((beside, jobs, plan.taps), dtype=dtype, buffer=nl.sbuf)
    for first in range(0, jobs, each):
        count = min(each, jobs - first)
        sums_psum = nl.ndarray((beside, count, plan.taps), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=sums_psum,
            stationary=work.ones_sbuf,
            moving=in_step_sbuf[0:rows, first : first + count, 0 : plan.taps],
            is_stationary_onezero=True,
            accumulate=False,
        )
        nisa.tensor_copy(
            dst=sums_sbuf[0:beside, first : first + count, 0 : plan.taps],
            src=sums_psum,
            engine=pick(work.ledger, count * plan.taps, False),
        )
    found_sbuf = sums_sbuf.reshape((beside, groups, taps))[0:beside, 0:groups, 0 : geometry.S]
    if work.added != None:
        added_sbuf = nl.ndarray((beside, groups, geometry.S), dtype=nl.float32, buffer=nl.sbuf)
        move_free(added_sbuf, work.added, block, 0, places, True)
        whole_sbuf = nl.ndarray((beside, groups, geometry.S), dtype=work.dw.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=whole_sbuf, data1=found_sbuf, data2=added_sbuf, op=nl.add)
        found_sbuf = whole_sbuf
    move_free(found_sbuf, work.dw, block, 0, places, False)
