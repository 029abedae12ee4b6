"""Every filter gradient that a test of this folder runs needs no more SBUF than its schedule says."""

import pytest

from nkiconv.kernels import gradients
from nkiconv.kernels.gradients import depthwise_conv1d as rows
from nkiconv.schedules import blocks_schedule, diagonals, skewed
from nkiconv.simulator import launch
from nkiconv.simulator.running import running


@pytest.fixture(autouse=True)
def _needs_no_more_than_it_says(monkeypatch):
    sizes, check = {}, launch.check_capacity

    def held(run, said):
        def noted(*operands):
            run(*operands)
            sizes[id(running())] = said(operands)

        return noted

    def checked(program, **how):
        usage, size = check(program, **how), sizes.pop(id(program), None)
        assert size is None or usage.sbuf_peak_bytes <= size
        return usage

    monkeypatch.setattr(launch, "check_capacity", checked)
    table = {}
    for name, own in (("blocks", blocks_schedule), ("diagonals", diagonals)):
        find, run = gradients.TABLE[name]

        def said(operands, own=own):
            return own.needed_bytes(operands[0].plan)

        table[name] = find, held(run, said)
    monkeypatch.setattr(gradients, "TABLE", table)

    def said_of_rows(operands):
        return skewed.needed_bytes(*operands[-2:]) + 2048

    monkeypatch.setattr(rows, "skewed", held(rows.skewed, said_of_rows))
