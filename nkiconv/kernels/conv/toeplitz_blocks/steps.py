"""The steps of planes (NCHW), windows of an item that are together, and what goes between their sums.

While a step is worked on, the array transposes the blocks of one that comes later, Vector puts zeros around planes of
the item after that, and those of the next one are on their way.
"""

from .planes import banks_of_step, load_planes, put_zeros_around, transpose_bank
from .shape import groups_of, x_shape


def planes_until(work, count):
    """Have planes of the first `count` items be on their way."""
    while len(work.planes) < min(count, len(work.items)):
        item = work.items[len(work.planes)]
        found = load_planes(work.operands, work.geometry, work.blocks, item, work.raws, work.framed, work.loaded_so_far)
        work.planes.append(found)
        work.loaded_so_far = work.loaded_so_far + len(found)


def tile_of_step(work, steps, number):
    """The tile of a step's blocks."""
    shape = x_shape(work.blocks, work.items[steps[number][0]])
    tile = work.x[number % len(work.x)].tile
    return tile[0 : shape[0], 0 : shape[1], 0 : shape[2], 0 : shape[3], 0 : shape[4]]


def jobs_of_frames(work, steps, number):
    """Jobs (item, number of the planes, None, None) that put zeros around an item's planes, if a step is its first; the
    next one's are on their way then."""
    found = []
    if number < len(steps) and steps[number][1] == 0:
        index = steps[number][0]
        planes_until(work, index + 2)
        for group in range(groups_of(work.blocks, work.items[index])):
            found.append((index, group, None, None))
    return found


def jobs_of_step(work, steps, number):
    """Jobs (item, window, bank, tile) that transpose the blocks of a step, if there is one."""
    found = []
    if number < len(steps):
        index, window = steps[number]
        item, tile = work.items[index], tile_of_step(work, steps, number)
        for bank in banks_of_step(work.geometry, work.blocks, item):
            found.append((index, window, bank, tile))
    return found


def do_job(work, job):
    """One of these."""
    index, number, bank, tile = job
    item, geometry, blocks = work.items[index], work.geometry, work.blocks
    if tile == None:
        put_zeros_around(
            work.planes[index][number], work.framed, work.framed_so_far, geometry, blocks, item, work.ledger
        )
        work.framed_so_far = work.framed_so_far + 1
    else:
        transpose_bank(tile, work.planes[index], bank, geometry, blocks, item, number, work.ledger)
