"""The loop: blocks of an item come, each channel's are multiplied by its matrices, results go out."""

from ...._nki import nisa, nl
from ....schedules.tiles import cut_at, share, some_of
from ....schedules.toeplitz_blocks import WARM_UP
from ..._warm import warm_up, warm_zeros
from ..boxes import store_boxes
from ..call import finish_views, of_array, part_of_core
from .filters import moving_of
from .pixels import load_pixels
from .results import boxes_of_block_results, results_of_bank, start_block_results
from .shape import blocks_below, channels_of_bank, rows_of_block, spans_of_tile, windows_together
from .steps import do_job, jobs_of_frames, jobs_of_step, planes_until, tile_of_step
from .work import lines_until, matrices_for, start_blocks_work


def run_blocks(operands, geometry, extras, blocks):
    """This core's part of the items."""
    _, items = part_of_core(blocks.items)
    if len(items) == 0:
        return
    work = start_blocks_work(operands, geometry, extras, blocks, items)
    warm_up(warm_zeros(), WARM_UP, 1)
    if blocks.by_pixels:
        run_pixels(work)
    else:
        run_planes(work)


def run_pixels(work):
    """Items of NHWC: tiles are loaded as far ahead as there are buffers."""
    operands, geometry, blocks, tiles = work.operands, work.geometry, work.blocks, []
    for index in range(len(work.items)):
        matrices_for(work, index)
        while len(tiles) < min(len(work.items), index + len(work.x)):
            tiles.append(load_pixels(operands, geometry, blocks, work.items[len(tiles)], work.x, len(tiles)))
        item = work.items[index]
        y_sbuf, residual_sbuf = start_block_results(work, item)
        work_tile(work, item, tiles[index], item.windows, y_sbuf, residual_sbuf, [])


def run_planes(work):
    """Items of NCHW, windows that are together a step; `ahead`: transposes and planes of the next ones, which go
    between sums."""
    blocks, steps = work.blocks, []
    for index in range(len(work.items)):
        for window in range(0, len(blocks.windows), windows_together(blocks)):
            steps.append((index, window))
    ahead = len(work.x) - 1
    planes_until(work, 1)
    matrices_for(work, 0)
    for number in range(ahead):
        for job in jobs_of_frames(work, steps, number) + jobs_of_step(work, steps, number):
            do_job(work, job)
    for job in jobs_of_frames(work, steps, ahead):
        do_job(work, job)
    lines_until(work, len(work.taps))
    y_sbuf, residual_sbuf = None, None
    for number in range(len(steps)):
        index, window = steps[number]
        item = work.items[index]
        if window == 0:
            y_sbuf, residual_sbuf = start_block_results(work, item)
        jobs = jobs_of_frames(work, steps, number + ahead + 1) + jobs_of_step(work, steps, number + ahead)
        if window == 0:
            matrices_for(work, index)
        windows = (window, windows_together(blocks))
        work_tile(work, item, tile_of_step(work, steps, number), windows, y_sbuf, residual_sbuf, jobs)


def work_tile(work, item, x_sbuf, windows, y_sbuf, residual_sbuf, jobs):
    """Sums of all channels of a tile of blocks of some windows (first, how many), a bank of some at a time, and the
    jobs between them; what they complete leaves."""
    geometry, blocks = work.geometry, work.blocks
    spans, cn = spans_of_tile(blocks, windows), x_sbuf.shape[4]
    pieces = cut_at(cn, channels_of_bank(blocks))
    # none after the last bank: the next tile's first matmuls would wait for them
    turns = max(1, len(pieces) * len(spans) - 1)
    for index in range(len(pieces)):
        for number in range(len(spans)):
            sum_span(work, item, x_sbuf, spans[number], pieces[index], y_sbuf, residual_sbuf)
            for job in some_of(jobs, share(len(jobs), turns, index * len(spans) + number)):
                do_job(work, job)
        q, qn = spans[-1].columns
        if not blocks.by_pixels and q + qn == geometry.columns.out:
            store_boxes(work.operands.y, y_sbuf, boxes_of_block_results(geometry, blocks, item, pieces[index]))
    if blocks.by_pixels:
        store_boxes(work.operands.y, y_sbuf, boxes_of_block_results(geometry, blocks, item, (0, cn)))


def sum_span(work, item, x_sbuf, span, piece, y_sbuf, residual_sbuf):
    """Sums of a span of some channels (first, how many), a bank of them, on their way to a tile of results."""
    blocks = work.blocks
    number = (item.chunk - work.items[0].chunk) // work.blocks.together
    matrices = work.matrices[number]
    c0 = blocks.chunks[item.chunk][0] - work.rounds[number][0]
    parts = y_sbuf.shape[0]
    c, count = piece
    q, qn = span.columns
    acc_psum = nl.ndarray((parts, count, blocks.bank[0], blocks.bank[1]), dtype=nl.float32, buffer=nl.psum)
    for channel in range(count):
        for product in span.products:
            multiply_windows(work, item, acc_psum, x_sbuf, matrices, product, (channel, c + channel, c0 + c + channel))
    bias = None
    if matrices.bias != None:
        bias = matrices.bias[0:parts, c0 + c : c0 + c + count].expand_dim(2).expand_dim(3)
        bias = bias.broadcast(2, blocks.out_rows).broadcast(3, qn)
    residual = None if residual_sbuf == None else results_of_bank(blocks, residual_sbuf, c, count, q, qn)
    y, elements = results_of_bank(blocks, y_sbuf, c, count, q, qn), count * blocks.out_rows * qn
    by_row, by_column = blocks.bank_steps
    acc = acc_psum[0:parts, 0:count, 0 : blocks.bank[0] : by_row, 0 : (qn - 1) * by_column + 1 : by_column]
    finish_views(y, acc, bias, residual, work.extras.epilogue, work.ledger, elements)


def multiply_windows(work, item, acc_psum, x_sbuf, matrices, product, channel):
    """Matmuls of a product, one for each of the blocks below each other. channel: its number in the bank, in the tile
    of x, among the matrices."""
    blocks = work.blocks
    v, beside = product.windows
    column, columns = product.columns
    bank, own, c = channel
    below = v * blocks_below(blocks, item)
    for k in range(blocks.depth):
        places = rows_of_block(work.geometry, blocks, k) * blocks.width
        stationary = x_sbuf[0:places, 0:beside, below + k : below + k + item.below[1], 0 : item.images[1], own]
        nisa.nc_matmul(
            dst=acc_psum[0 : acc_psum.shape[0], bank, 0 : blocks.bank[0], column : column + columns],
            stationary=of_array(stationary, work.operands),
            moving=of_array(moving_of(matrices, blocks, c, k, places, product), work.operands),
            accumulate=product.adds or k > 0,
        )
