"""States that are returned: the last S - 1 inputs of each row of tokens, and those before given positions."""

from ...._nki import nl
from ....schedules.split import states_after
from ....schedules.tiles import share
from ..._dma import copy
from ...depthwise_conv1d.state import store_final_state, store_zeros
from .geometry import row_geometry


def store_states(operands, geometry, final, positions):
    """Store what is asked for; returns a tuple of it: [rows, C, S - 1], then [N, positions, C, S - 1]."""
    found, size, dtype = (), geometry.S - 1, operands.x.dtype
    if final:
        final_hbm = nl.ndarray((len(geometry.rows), geometry.C, size), dtype=dtype, buffer=nl.shared_hbm)
        if len({row.count for row in geometry.rows}) == 1 and len(geometry.rows) == geometry.N:
            whole = row_geometry(geometry, geometry.N, geometry.T)
            store_final_state(operands.x, operands.state, final_hbm, whole)
        else:
            for row in geometry.rows:
                store_state(operands, geometry, row, final_hbm, row.number)
        found += (final_hbm,)
    if positions is not None:
        shape = (geometry.N, len(positions), geometry.C, size)
        states_hbm = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
        for image, number, row in states_after(geometry.rows, positions):
            store_state(operands, geometry, row, states_hbm, image * len(positions) + number)
        found += (states_hbm,)
    return found


def store_state(operands, geometry, row, states_hbm, place):
    """The last inputs of a row, as state `place` of a tensor of [..., C, S - 1]."""
    C, size = geometry.C, geometry.S - 1
    if row.count > 0:
        first = row.image * geometry.x_n + row.first * geometry.x_t
        rows = (first, place * C, row.number * C)
        store_final_state(operands.x, operands.state, states_hbm, row_geometry(geometry, 1, row.count), *rows)
        return
    mine = share(C, nl.num_programs(), nl.program_id(0))
    if mine[1] > 0:
        pattern = [[size, mine[1]], [1, size]]
        into = states_hbm.ap(pattern=pattern, offset=(place * C + mine[0]) * size)
        if operands.state == None:
            store_zeros(into, states_hbm.dtype, mine[1], size)
        else:
            copy(into, operands.state.ap(pattern=pattern, offset=(row.number * C + mine[0]) * size))
