"""Every convolution that a test of this folder runs needs no more than its schedule says."""

import pytest

from nkiconv.kernels import conv
from nkiconv.schedules import (
    activation_stationary_candidates,
    depthwise_blocks,
    m_packing,
    patches,
    pixel_tiles,
    volume_rows,
)
from nkiconv.schedules import stacked as k_packing
from nkiconv.schedules import weight_stationary as blocks
from nkiconv.schedules.relayout import relayout_instructions
from nkiconv.simulator import launch
from nkiconv.simulator.iterations import num_compiled
from nkiconv.simulator.running import running


def _said(algorithm, geometry, options, plan, cores):
    """(instructions of a core, bytes per partition of SBUF), at most."""
    if algorithm == "implicit_gemm":
        return plan.instructions(cores), plan.sbuf_bytes
    if algorithm == "stacked":
        count = plan.stack.most_instructions(cores) + k_packing.fused_instructions(plan.stack, options, cores)
        return count, plan.stack.sbuf_bytes(options.residual) + k_packing.fused_bytes(plan.stack, options)
    if algorithm == "activation_stationary":
        kinds = {
            depthwise_blocks.BlockSchedule: depthwise_blocks.block_bytes,
            volume_rows.RowSchedule: volume_rows.row_bytes,
            patches.PatchSchedule: patches.patch_bytes,
        }
        size = kinds.get(type(plan), pixel_tiles.pixel_bytes)
        count = activation_stationary_candidates.instructions(geometry, options, plan, cores)
        return count, size(geometry, plan, options)
    if plan.shift is not None:
        size = m_packing.packed_bytes(geometry, plan, options.residual) + m_packing.statistics_bytes(geometry, options)
    else:
        size = blocks.sbuf_bytes(geometry, plan, options.residual)
        size += m_packing.block_statistics_bytes(geometry, options, 128)
    return blocks.most_instructions(geometry, plan, cores, options), size


@pytest.fixture(autouse=True)
def _needs_no_more_than_it_says(monkeypatch):
    said, choose, check = {}, conv.chosen, launch.check_capacity

    def chosen(algorithm, geometry, options, config):
        found = choose(algorithm, geometry, options, config)
        name, _, seen, plan = found
        core = running()
        count, size = _said(name, seen, options, plan, core.num_programs)
        said[id(core)] = count + relayout_instructions(name, geometry, options), size
        return found

    def checked(program, **how):
        count, size = said.pop(id(program), (None, None))
        if count is not None:
            assert num_compiled(program) <= count
            assert program.sbuf_peak_bytes <= size
        return check(program, **how)

    monkeypatch.setattr(conv, "chosen", chosen)
    monkeypatch.setattr(launch, "check_capacity", checked)
