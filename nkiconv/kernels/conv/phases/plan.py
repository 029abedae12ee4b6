"""Transposed convolutions by phases: of s neighbouring outputs each meets taps of its own, by which x is convolved.

    y[k, s m + f] = sum over c, j of  w[c, k, taps of phase f][j] * x[c, m + e(f, j)]

Nothing is multiplied by the zeros that lhs_dilation puts between elements: each phase is a sum over ceil(R / s) taps on
windows of neighbours. Reading a phase out of PSUM writes every s-th column of its rows in SBUF, so that whole rows
leave. Filters come as torch stores them, [C, K, ...]: they are stationaries as they are loaded. With few output
channels several phases that see the same window are beside each other in the columns of a stationary, and with few
input channels several segments of x on the partitions, with filters block-diagonal. Where the partitions do not hold
all segments these have tiles of their own, whose sums still share a bank, so that read-outs are of more partitions.

    partitions  (segment, c) of x; (phase, segment, k) of PSUM; (segment, k) of results

    | stationary        | K (partitions) | M (columns)       | N                  | evacuation |
    |-------------------|----------------|-------------------|--------------------|------------|
    | w as torch has it | segment, c     | phase, segment, k | z, p, q of a phase | interleave |

Pseudocode, of one core:

    for (weight-resident group of M tiles, output tile):
        load x of the next output tiles
        for M tile, phases that share a stationary:
            for K tile, tap of the phases:
                PSUM[(phase, segment, k), m] += w[c, tap, k]^T x[(segment, c), m + e(phase, tap)]
            y[k, s * m + f] = epilogue(PSUM of phase f)                # interleaved
        store y
"""

from ...._nki import nl
from ....schedules.geometry import instructions_refusal, num_taps
from ....schedules.options import taken_refusal
from ....schedules.phases import PhasesSettings
from ....schedules.tiles import QUADRANT, fits_sbuf, slot_for
from .blocks import num_steps
from .shape import axes_by_phases, beside_counts, least_instructions, make_phases, phases_bytes, phases_instructions

#: Phases of outputs, at most: each has filters and read-outs of its own.
PHASES_MAX = 65_536


def plan_phases(geometry, extras, config, cores):
    """(Phases, "") of this on `cores` cores, or (None, why not)."""
    reason = phases_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    settings, axes = PhasesSettings.read(config, geometry), axes_by_phases(geometry)
    reason = beside_refusal(geometry, extras, settings, beside_counts(axes, settings.beside))
    if reason == "":
        reason = instructions_refusal(geometry, "phases", least_instructions(geometry, axes, settings, cores))
    if reason != "":
        return None, reason
    phases = make_phases(geometry, axes, settings)
    if not fits_sbuf(phases_bytes(geometry, phases, extras.residual)):
        return None, (
            f"C={geometry.C}, H={geometry.rows.size}, W={geometry.columns.size}, R={geometry.rows.taps}, "
            f"S={geometry.columns.taps}: phases keeps filters of a block of output channels and x of two bands in SBUF "
            f"({nl.tile_size.total_available_sbuf_size} bytes per partition); use implicit_gemm, or fewer channels"
        )
    reason = instructions_refusal(geometry, "phases", phases_instructions(geometry, phases, cores))
    return (phases, "") if reason == "" else (None, reason)


def phases_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason = PhasesSettings.refusal(config)
    if reason != "":
        return reason
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: phases takes 1; use grouped or implicit_gemm"
    steps = (geometry.planes.lhs_dilation, geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
    if not geometry.flipped and steps == (1, 1, 1):
        return "lhs_dilation=1: phases takes transposed convolutions, or lhs_dilation above 1; use implicit_gemm"
    count = num_phases(geometry)
    if count > PHASES_MAX:
        return f"lhs_dilation={steps}: phases takes at most {PHASES_MAX} phases, not {count}; use implicit_gemm"
    if geometry.frames != None:
        return "initial_frames: phases takes none; use implicit_gemm"
    if geometry.packed > 0 or (geometry.K > 1 and geometry.w_strides[0] != num_taps(geometry)):
        return (
            "filter_ref: phases takes filters [C, K, ...], as torch stores them for transposed convolutions; use "
            "implicit_gemm"
        )
    return taken_refusal(geometry, extras, "phases", True, "other phases and segments", True)


def num_phases(geometry):
    """Phases of planes, rows and columns together."""
    return num_steps(geometry.planes) * num_steps(geometry.rows) * num_steps(geometry.columns)


def beside_refusal(geometry, extras, settings, counts):
    """Why segments, and so many phases along each axis, are not beside each other as settings say; "" if they are."""
    segments, count = settings.segments, counts[0] * counts[1] * counts[2]
    kn = min(geometry.K, settings.channels)
    if count == 1 and segments == 1:
        return ""
    where = f"config beside={settings.beside}, segments={segments}, channels={settings.channels}"
    if extras.strict_nonfinite:
        return f"{where}: multiplies by zero, which strict_nonfinite=True forbids; use 'none' and 1"
    if count > 1 and extras.residual:
        return f"{where}: phases that share columns take no residual; use 'none'"
    if count * slot_for(segments * kn) > nl.tile_size.pmax or segments * kn > nl.tile_size.pmax:
        return f"{where}: {count} phases of {segments * kn} columns, by quadrants, must fit 128; use fewer channels"
    if segments > 1 and (segments == 3 or geometry.C not in (QUADRANT, 2 * QUADRANT, nl.tile_size.pmax)):
        return (
            f"{where}: segments are 2 or 4, of C={QUADRANT}, {2 * QUADRANT} or {nl.tile_size.pmax}, not {geometry.C}; "
            f"use 1"
        )
    if segments > 1 and settings.along == "planes" and (geometry.planes.images > 1 or geometry.planes.taps == 1):
        return f"{where}: segments along planes are of one volume of several taps; use rows or columns"
    return ""
