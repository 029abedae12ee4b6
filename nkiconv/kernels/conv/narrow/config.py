"""Settings of narrow."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._tiles import BANK_COLUMNS, QUADRANT, div_ceil
from ..._warm import WARM_UP_MAX
from ..planes import with_windows
from .cuts import is_legal, make_narrow, narrow_fits

NARROW_X_BYTES = 4_096
NARROW_X_BUFFERS = 16
NARROW_X_BUFFERS_MAX = 64
#: Of all matmuls on zeros, those before the filters come; the others follow while what was transposed is laid out.
NARROW_WARM_UP_FIRST = 9
#: All of them for the array to be at its full rate then; outputs of a channel that are worth it.
NARROW_WARM_UP = 28
WARM_OUTPUTS = 1024
#: A further row of y beside the others is worth copies of filters if so many outputs are beside it, up to so many rows.
ROW_OUTPUTS = 200
ROWS_MOST = 8


@dataclass(frozen=True)
class NarrowConfig(nl.NKIObject):
    """All settings."""

    #: rows of y beside each other in the columns of the array, from 1; given together with taps
    outputs: int
    #: planes of y beside those, from 1; where there are several, the planes of x that they see are channels
    depth: int
    #: columns of taps beside each other, from 1 to 4
    taps: int
    #: images beside each other on the partitions, from 1 to 4, each on rows of the array of its own
    lanes: int
    #: blocks of so many rows and images of a bank of sums, from 1; at most what fits it
    blocks: int
    images: int
    #: bytes a partition of one load of x, from 256; one row is loaded whatever this is
    x_bytes: int
    #: buffers that loads take in turn, from 2 to NARROW_X_BUFFERS_MAX; at least what a bank needs
    buffers: int
    #: 1: Scalar and GpSimd take additions from Vector, or 0
    shared: int
    #: matmuls of 128 columns on zeros before the first others, from 0 to WARM_UP_MAX
    warmup: int


def narrow_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    most, whole = nl.tile_size.pmax, nl.tile_size.total_available_sbuf_size
    table = (("outputs", (1, most)), ("depth", (1, most)), ("taps", (1, most // QUADRANT)), ("shared", (0, 1)))
    table = table + (("lanes", (1, most // QUADRANT)), ("blocks", (1, BANK_COLUMNS)), ("images", (1, BANK_COLUMNS)))
    table = table + (("x_bytes", (256, whole)),)
    table = table + (("buffers", (2, NARROW_X_BUFFERS_MAX)), ("warmup", (0, WARM_UP_MAX)))
    reason = settings_refusal(config, table, "narrow")
    U, T = setting(config, "outputs", 0), setting(config, "taps", 0)
    if reason != "" or (U, T) == (0, 0):
        return reason
    if 0 in (U, T):
        return f"config={config}: outputs and taps are given together or not at all"
    depth = setting(config, "depth", 1)
    if is_legal(with_windows(geometry, depth), U, T):
        return ""
    S = geometry.columns.taps
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
    warmup = NARROW_WARM_UP if outputs_of_channel(geometry) >= WARM_OUTPUTS else NARROW_WARM_UP_FIRST
    return NarrowConfig(
        outputs=setting(config, "outputs", outputs),
        depth=setting(config, "depth", depth),
        taps=setting(config, "taps", taps),
        lanes=setting(config, "lanes", lanes),
        blocks=setting(config, "blocks", BANK_COLUMNS),
        images=setting(config, "images", BANK_COLUMNS),
        x_bytes=setting(config, "x_bytes", NARROW_X_BYTES),
        buffers=setting(config, "buffers", buffers),
        shared=setting(config, "shared", 0),
        warmup=setting(config, "warmup", warmup),
    )
