"""Every filter gradient that a test of this folder runs needs no more SBUF than its schedule says."""

from types import SimpleNamespace

import pytest

from nkiconv.kernels import gradients
from nkiconv.kernels.gradients import depthwise_conv1d as rows
from nkiconv.schedules import blocks_schedule, diagonals, skewed
from nkiconv.simulator.capacity import check_capacity
from nkiconv.simulator.running import running


@pytest.fixture(autouse=True)
def _needs_no_more_than_it_says(monkeypatch):
    def held(run, said):
        def checked(*operands):
            program = running()
            first = len(program.instructions)
            run(*operands)
            own = [info for info in program.allocations if info.last >= first]
            used = check_capacity(SimpleNamespace(allocations=own, instructions=program.instructions))
            assert used.sbuf_peak_bytes <= said(operands)

        return checked

    table = {}
    for name, own in (("blocks", blocks_schedule), ("diagonals", diagonals)):

        def said(operands, own=own):
            return own.needed_bytes(operands[0].plan)

        table[name] = held(gradients.RUN[name], said)
    monkeypatch.setattr(gradients, "RUN", table)

    def said_of_rows(operands):
        return skewed.needed_bytes(*operands[-2:]) + 2048

    monkeypatch.setattr(rows, "skewed", held(rows.skewed, said_of_rows))
