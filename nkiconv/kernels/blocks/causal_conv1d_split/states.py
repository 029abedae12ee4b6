"""States that are returned: the last S - 1 inputs of each row of tokens, and those before given positions."""

from ...._nki import nl
from ....schedules.split import states_after
from ....schedules.tiles import share
from ...depthwise_conv1d.state import store_final_state, store_rows
from .geometry import row_geometry


def store_states(operands, geometry, final, positions):
    """Store what is asked for; returns a tuple of it: [rows, C, S - 1], then [N, positions, C, S - 1]."""
    found, size, rows, dtype = (), geometry.S - 1, geometry.rows, operands.x.dtype
    if final:
        final_hbm = nl.ndarray((len(rows), geometry.C, size), dtype=dtype, buffer=nl.shared_hbm)
        if len({row.count for row in rows}) == 1 and len(rows) == geometry.N:
            whole = row_geometry(geometry, geometry.N, geometry.T)
            store_final_state(operands.x, operands.state, final_hbm, whole)
        else:
            for row in rows:
                store_state(operands, geometry, row, final_hbm, row.number)
        found += (final_hbm,)
    if positions is not None:
        states_hbm = nl.ndarray((geometry.N, len(positions), geometry.C, size), dtype=dtype, buffer=nl.shared_hbm)
        for image, number, row in states_after(rows, positions):
            store_state(operands, geometry, row, states_hbm, image * len(positions) + number)
        found += (states_hbm,)
    return found


def store_state(operands, geometry, row, states_hbm, place):
    """The last inputs of a row, as state `place` of a tensor of [..., C, S - 1]; of an empty row its own state."""
    C, tensors, seen = geometry.C, (operands.x, operands.state, states_hbm), row_geometry(geometry, 1, row.count)
    first = row.image * geometry.x_n + row.first * geometry.x_t
    if row.count > 0:
        store_final_state(*tensors, seen, first, place * C, row.number * C)
    else:
        c, count = share(C, nl.num_programs(), nl.program_id(0))
        store_rows(*tensors, seen, place * C + c, row.number * C + c, count, first, geometry.x_c)
