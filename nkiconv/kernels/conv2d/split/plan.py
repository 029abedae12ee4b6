"""What split takes: its settings' plan, or why there is none."""

from ...._nki import nl
from ..geometry import instructions_refusal
from .config import read_split, split_config_refusal, split_defaults
from .work import count_instructions, make_plan, sbuf_bytes


def plan_split(geometry, extras, config, cores):
    """(Plan, "") of this on `cores` cores, or (None, why not)."""
    if geometry.precision != "fp16x3":
        return None, (
            f"precision={geometry.precision}: split takes fp16x3, of fp32 tensors; ask for that, or use another "
            f"algorithm"
        )
    reason = split_config_refusal(config)
    if reason != "":
        return None, reason
    plan = make_plan(geometry, extras, read_split(config, split_defaults(geometry, extras, config)))
    needed, whole = sbuf_bytes(geometry, plan, extras), nl.tile_size.total_available_sbuf_size
    if needed > whole:
        return None, (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: split "
            f"needs {needed} bytes a partition of SBUF for the window of one output and its filters, there are "
            f"{whole}; split C over several calls and add, or use a smaller filter"
        )
    count = count_instructions(geometry, plan, extras, cores)
    reason = instructions_refusal(geometry, "split", count)
    return (plan, "") if reason == "" else (None, reason)
