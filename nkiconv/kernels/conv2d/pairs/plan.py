"""What pairs takes: its settings' plan, or why there is none."""

from ...._nki import nl
from ..geometry import instructions_refusal
from .config import pairs_config_refusal, pairs_defaults, read_pairs
from .work import SLOT_BYTES, count_instructions, make_pairs, sbuf_bytes


def plan_pairs(geometry, extras, config, cores):
    """(Pairs, "") of this on `cores` cores, or (None, why not)."""
    reason = pairs_config_refusal(config)
    if reason == "":
        reason = pairs_refusal(geometry, extras)
    if reason != "":
        return None, reason
    plan = make_pairs(geometry, read_pairs(config, pairs_defaults(geometry, extras.residual, config)))
    needed, whole = sbuf_bytes(geometry, plan, extras.residual), nl.tile_size.total_available_sbuf_size
    if needed > whole or plan.buffer.images * plan.buffer.rows * plan.buffer.columns > SLOT_BYTES:
        return None, (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: pairs "
            f"needs {needed} bytes a partition of SBUF for x of one row of outputs and the filters, there are {whole}, "
            f"and at most {SLOT_BYTES} of one chunk of x; use taps"
        )
    count = count_instructions(geometry, plan, cores)
    reason = instructions_refusal(geometry, "pairs", count)
    return (plan, "") if reason == "" else (None, reason)


def pairs_refusal(geometry, extras):
    """What pairs does not do, whatever its settings; "" if nothing."""
    rows, columns = geometry.rows, geometry.columns
    if geometry.itemsize != 1:
        return "img_ref.dtype, filter_ref.dtype: pairs takes float8_e4m3 and float8_e5m2; use taps"
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: pairs takes 1; use taps"
    if rows.lhs_dilation > 1 or columns.lhs_dilation > 1:
        return f"lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: pairs takes (1, 1); use taps"
    if extras.pool != (1, 1):
        return f"pool={extras.pool}: pairs takes (1, 1); use taps, or pool the result"
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: pairs multiplies stored zeros; use taps"
    return ""
