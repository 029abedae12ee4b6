"""Settings of a stack, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from .shape import LONG_RUN_BYTES, WAYS, can_shift, job_channels

STACKED_SETTINGS = (
    "rows",
    "shifts",
    "outputs",
    "beside",
    "apart",
    "merge",
    "blocks",
    "images",
    "filters",
    "hold",
    "warmup",
    "late_warmup",
)
#: Most of a setting that memory limits anyway, of elements that are cleared, and of matmuls on zeros.
MOST = 4096
HOLD_MOST = 1 << 20
STACKED_WARM_UP_MAX = 512


@dataclass(frozen=True)
class StackedConfig(nl.NKIObject):
    """Every setting; `plan.py` says what the first six mean."""

    #: rows of x on the partitions (B), 1 to 128
    rows: int
    #: columns of taps on the partitions (D), 1 to 128
    shifts: int
    #: rows of y in the columns of the array (U), 1 to 128
    outputs: int
    #: rows of y side by side on a partition (V), from 1 on
    beside: int
    #: rows of x from one block of X to the next (G), from 1 on
    apart: int
    #: 1: rows of a block leave their partitions when they are read out, 0: they stay
    merge: int
    #: output blocks of a band, and images, at most; memory has fewer
    blocks: int
    images: int
    #: how filters come to their places, one of `shape.WAYS`
    filters: str
    #: elements a partition that GpSimd clears before the second band's x is loaded, so that filters come first
    hold: int
    #: matmuls of 128 columns on zeros before the first sums, and how many of them follow the first filters' transposes
    warmup: int
    late_warmup: int


def stacked_config_refusal(config):
    """What is wrong with names and values of a config; "" if nothing is."""
    reason = config_refusal(config, STACKED_SETTINGS, "stacked")
    if reason == "":
        sizes = (("rows", 1, MOST), ("shifts", 1, MOST), ("outputs", 1, MOST), ("beside", 1, MOST), ("apart", 1, MOST))
        reason = numbers_refusal(config, sizes)
    if reason == "":
        counts = (("merge", 0, 1), ("blocks", 1, MOST), ("images", 1, MOST), ("hold", 0, HOLD_MOST))
        reason = numbers_refusal(config, counts)
    if reason == "":
        warmups = (("warmup", 0, STACKED_WARM_UP_MAX), ("late_warmup", 0, STACKED_WARM_UP_MAX))
        reason = numbers_refusal(config, warmups)
    if reason != "":
        return reason
    filters = setting(config, "filters", WAYS[0])
    if filters not in WAYS:
        return f"config filters={filters}: must be one of {WAYS}"
    given = setting(config, "rows", 0), setting(config, "shifts", 0), setting(config, "outputs", 0)
    if given == (0, 0, 0):
        for name in ("beside", "apart", "merge"):
            if setting(config, name, -1) >= 0:
                return f"config={config}: {name} goes with rows, shifts and outputs; give them too"
    elif 0 in given:
        return f"config={config}: rows, shifts and outputs are given together or not at all"
    return ""


def stacked_defaults(geometry, has_residual):
    """Settings of a kernel that is called without any."""
    return sized_defaults(geometry, 1, 1, 1)


def sized_defaults(geometry, rows, shifts, outputs):
    """What goes with sizes that are given."""
    return StackedConfig(
        rows=rows,
        shifts=shifts,
        outputs=outputs,
        beside=1,
        apart=rows,
        merge=0,
        blocks=MOST,
        images=MOST,
        filters=filters_at(geometry, rows, outputs),
        hold=0,
        warmup=24,
        late_warmup=0,
    )


def filters_at(geometry, rows, outputs):
    """How filters come: straight in long runs, or where nothing is shifted, else as engines may address partitions."""
    taps = geometry.rows.taps
    run = geometry.columns.taps * (taps if geometry.rows.dilation == 1 else 1) * geometry.itemsize
    if run >= LONG_RUN_BYTES or (outputs == 1 and rows == taps):
        return "straight"
    return "shifted" if can_shift(outputs, job_channels(geometry, outputs)) else "apart"


def read_stacked(config, defaults):
    """The settings of a config; what it leaves open is as in `defaults`."""
    return StackedConfig(
        rows=setting(config, "rows", defaults.rows),
        shifts=setting(config, "shifts", defaults.shifts),
        outputs=setting(config, "outputs", defaults.outputs),
        beside=setting(config, "beside", defaults.beside),
        apart=setting(config, "apart", defaults.apart),
        merge=setting(config, "merge", defaults.merge),
        blocks=setting(config, "blocks", defaults.blocks),
        images=setting(config, "images", defaults.images),
        filters=setting(config, "filters", defaults.filters),
        hold=setting(config, "hold", defaults.hold),
        warmup=setting(config, "warmup", defaults.warmup),
        late_warmup=setting(config, "late_warmup", defaults.late_warmup),
    )
