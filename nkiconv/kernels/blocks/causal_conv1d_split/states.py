"""Returned states: the last S - 1 inputs of each row of tokens, and the S - 1 inputs before given positions."""

from ...._nki import nl
from ....schedules.split import states_after
from ....schedules.tiles import share
from ...depthwise_conv1d.state import states_of, store_final_state, store_rows
from ...depthwise_conv1d.tensors import Rows, RowTensors


def store_states(operands, geometry, final, positions):
    """Store the requested states; returns a tuple: [rows, C, S - 1] if `final`, then [N, positions, C, S - 1]."""
    found, size, rows, dtype = (), geometry.S - 1, geometry.rows, operands.x.dtype
    if final:
        final_hbm = nl.ndarray((len(rows), geometry.C, size), dtype=dtype, buffer=nl.shared_hbm)
        if len({row.count for row in rows}) == 1 and len(rows) == geometry.N:
            store_state(operands, geometry, rows[0], final_hbm, 0, geometry.N)
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


def store_state(operands, geometry, row, states_hbm, place, images=1):
    """Store the last inputs of a row, or of the rows of `images` images, as states from `place` on of [..., C, S - 1];
    an empty row stores its own state."""
    C, size = geometry.C, geometry.S - 1
    steps, first = (geometry.x_n, geometry.x_c, geometry.x_t), row.image * geometry.x_n + row.first * geometry.x_t
    state = None if operands.state is None else states_of(operands.state, C, -size, 0, row.number * C)
    tensors = RowTensors(Rows(operands.x, steps, 0, row.count, first), state)
    final = states_of(states_hbm, C, 0, size, place * C)
    if row.count > 0:
        store_final_state(tensors, final, images, C)
    else:
        store_rows(tensors, final, 0, *share(C, nl.num_programs(), nl.program_id(0)))
