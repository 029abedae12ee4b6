"""Every filter gradient that a test of this folder runs needs no more than its schedule says."""

import pytest

from nkiconv.kernels import gradients
from nkiconv.kernels.gradients import depthwise_conv1d as rows
from nkiconv.schedules import blocks_schedule, diagonals, skewed
from nkiconv.simulator.running import running


@pytest.fixture(autouse=True)
def _needs_no_more_than_it_says(monkeypatch):
    def held(run, said):
        def checked(*operands):
            core = running()
            before = len(core.instructions)
            run(*operands)
            count, size = said(operands, core.num_programs)
            assert len(core.instructions) - before <= count
            assert core.sbuf_peak_bytes <= size

        return checked

    table = {}
    for name, own in (("blocks", blocks_schedule), ("diagonals", diagonals)):
        find, run = gradients.TABLE[name]

        def said(operands, cores, own=own):
            plan = operands[0].plan
            return own.instructions(plan, cores), own.needed_bytes(plan)

        table[name] = find, held(run, said)
    monkeypatch.setattr(gradients, "TABLE", table)

    def said_of_rows(operands, cores):
        *_, geometry, plan = operands
        return skewed.instructions(plan, cores), skewed.needed_bytes(geometry, plan) + 2048

    monkeypatch.setattr(rows, "skewed", held(rows.skewed, said_of_rows))
