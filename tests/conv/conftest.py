"""Every convolution that a test of this folder runs needs no more SBUF than its schedule says."""

import pytest

from nkiconv.kernels import conv
from nkiconv.schedules import depthwise_blocks, m_packing, patches, pixel_tiles, volume_rows, windows
from nkiconv.schedules import stacked as k_packing
from nkiconv.schedules import weight_stationary as blocks
from nkiconv.simulator import launch
from nkiconv.simulator.capacity import SBUF
from nkiconv.simulator.capacity import _peak as peak_of
from nkiconv.simulator.running import running


def _said(algorithm, geometry, options, plan):
    """Bytes per partition of SBUF, at most."""
    if algorithm == "implicit_gemm":
        rotating = sum(num_bytes * min(plan.x_buffers, items) for num_bytes, items in plan.x_sizes)
        return plan.sbuf_bytes + max(0, rotating - 2 * max(plan.x_sizes)[0])  # two are in sbuf_bytes
    if algorithm == "stacked":
        return plan.stack.sbuf_bytes(options.residual) + k_packing.fused_bytes(plan.stack, options)
    if algorithm == "activation_stationary":
        kinds = {
            depthwise_blocks.BlockSchedule: depthwise_blocks.block_bytes,
            volume_rows.RowSchedule: volume_rows.row_bytes,
            patches.PatchSchedule: lambda _, *rest: pixel_tiles.pixel_bytes(plan.points, *rest),
            windows.WindowSchedule: windows.window_bytes,
        }
        return kinds.get(type(plan), pixel_tiles.pixel_bytes)(geometry, plan, options)
    if plan.shift is not None:
        return m_packing.packed_bytes(geometry, plan, options.residual) + m_packing.statistics_bytes(geometry, options)
    size = blocks.sbuf_bytes(geometry, plan, options.residual)
    return size + m_packing.block_statistics_bytes(geometry, options, 128)


@pytest.fixture(autouse=True)
def _needs_no_more_than_it_says(monkeypatch):
    said, choose, check = {}, conv.chosen, launch.check_capacity

    def chosen(algorithm, geometry, options, config):
        found = choose(algorithm, geometry, options, config)
        name, _, seen, plan = found
        said[id(running())] = _said(name, seen, options, plan)
        return found

    def checked(program, **how):
        usage, size = check(program, **how), said.pop(id(program), None)
        copies = [one for one in program.allocations if "relayout.py" in one.label()]  # before and after the loop
        assert size is None or usage.sbuf_peak_bytes <= max(size, peak_of(copies, SBUF).bytes_per_partition)
        return usage

    monkeypatch.setattr(conv, "chosen", chosen)
    monkeypatch.setattr(launch, "check_capacity", checked)
