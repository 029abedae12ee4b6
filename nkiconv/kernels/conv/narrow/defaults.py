"""Settings of a kernel that is called without some, or all, and what is wrong with sizes."""

from ...._nki import nl
from ....schedules.narrow import WARM_UP, WARM_UP_FIRST, NarrowSettings
from ....schedules.planes import with_windows
from ....schedules.settings import setting
from ....schedules.tiles import QUADRANT, div_ceil
from .cuts import is_legal, make_narrow, narrow_fits

#: Tiles of x, at most.
NARROW_X_BUFFERS = 16
#: Outputs of a channel that are worth all matmuls on zeros.
WARM_OUTPUTS = 1024
#: A further row of y beside the others is worth copies of filters if so many outputs are beside it, up to so many rows.
ROW_OUTPUTS = 200
ROWS_MOST = 8


def narrow_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    reason = NarrowSettings.refusal(config)
    if reason != "":
        return reason
    U, T = setting(config, "outputs", 0), setting(config, "taps", 0)
    if (U, T) == (0, 0):
        return ""
    if 0 in (U, T):
        return f"config={config}: outputs and taps are given together or not at all"
    depth = setting(config, "depth", 1)
    if is_legal(with_windows(geometry, depth), U, T):
        return ""
    S, most = geometry.columns.taps, nl.tile_size.pmax
    return (
        f"config outputs={U} taps={T}, K={geometry.K}, S={S}: at most {S} taps, each with depth={depth} * outputs * K "
        f"rounded up to "
        f"{QUADRANT}, {2 * QUADRANT} or {most} of {most} partitions, and outputs * stride and (with more taps to come) "
        f"taps * rhs_dilation multiples of lhs_dilation; use others"
    )


def narrow_settings(geometry, config, has_residual):
    """All settings: of what a config leaves open, sizes that fit, then buffers."""
    found = sized_narrow(geometry, config, 1, 1, 2)
    if setting(config, "taps", 0) == 0:
        found = best_fitting(geometry, config, has_residual)
    more = setting(config, "buffers", 0) == 0
    while more and found.buffers < NARROW_X_BUFFERS:
        larger = sized_narrow(geometry, config, found.outputs, found.taps, 2 * found.buffers)
        more = fits_as(geometry, larger, has_residual)
        found = larger if more else found
    return found


def best_fitting(geometry, config, has_residual):
    """Settings with most taps, and the more rows the more outputs of a channel there are, that fit."""
    seen = with_windows(geometry, setting(config, "depth", 1))
    most, most_taps = max(1, nl.tile_size.pmax // seen.K), nl.tile_size.pmax // QUADRANT
    rows, worth = 1, (geometry.rows.taps - 1) * outputs_of_channel(seen) // ROW_OUTPUTS
    while rows < min(most, ROWS_MOST) and (rows + 1) * (rows + 1) <= worth:
        rows += 1
    # with more taps than products of each, read-outs take longer than those
    taps = min(most_taps, 1 + geometry.rows.taps * div_ceil(seen.C, nl.tile_size.pmax))
    found, fits = None, False
    for tap in range(most_taps):
        for row in range(most):
            if not fits:
                found = sized_narrow(geometry, config, tried(rows, row), tried(taps, tap), 2)
                fits = fits_as(geometry, found, has_residual)
    return found


def fits_as(geometry, settings, has_residual):
    """Whether all settings make a Narrow that fits."""
    return narrow_fits(with_windows(geometry, settings.depth), make_narrow(geometry, settings, has_residual))


def tried(first, index):
    """Which number is tried after `index` others: the first, those below it, those above."""
    return first - index if index < first else index + 1


def outputs_of_channel(geometry):
    """Outputs of a channel."""
    return geometry.planes.out * geometry.rows.out * geometry.columns.out


def sized_narrow(geometry, config, outputs, taps, buffers, depth=1, lanes=1):
    """All settings; sizes and buffers as given here where a config has none."""
    warmup = WARM_UP if outputs_of_channel(geometry) >= WARM_OUTPUTS else WARM_UP_FIRST
    return NarrowSettings.read(
        config, outputs=outputs, depth=depth, taps=taps, lanes=lanes, buffers=buffers, warmup=warmup
    )
