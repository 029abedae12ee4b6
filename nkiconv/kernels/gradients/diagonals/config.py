"""Settings of diagonals, and what a bare kernel takes where they are left open."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil
from ..._warm import WARM_UP_MAX
from ...conv.cuts import window_of

#: Steps that are there together, at most, and units of a partition.
BUFFERS_MAX, TOGETHER_MAX = 16, 64


@dataclass(frozen=True)
class DiagonalsConfig(nl.NKIObject):
    """All settings."""

    #: rows and columns of gy of a block, from 1
    rows: int
    columns: int
    #: blocks of a unit in rows and in columns, from 1
    down: int
    across: int
    #: tiles of the array's rows side by side, each with groups of its own: 1, 2 or 4
    side: int
    #: groups of the convolution of a tile of rows in a pass, from 1
    groups: int
    #: tiles of units that are there together, whose sums are read out together, from 1
    together: int
    #: of these, how many are there at once, one of them at work, from 1
    buffers: int
    #: 1: the cores share tiles of units, whose sums they add, or 0: groups
    split: int
    #: matmuls of 128 columns on zeros before the first others, from 0 to WARM_UP_MAX
    warmup: int


def diagonals_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    most, parts = BANK_COLUMNS, nl.tile_size.pmax
    table = (("rows", (1, parts)), ("columns", (1, parts)), ("down", (1, most)), ("across", (1, most)))
    table = table + (("side", (1, 4)), ("groups", (1, most)), ("together", (1, TOGETHER_MAX)))
    table = table + (("buffers", (1, BUFFERS_MAX)), ("split", (0, 1)), ("warmup", (0, WARM_UP_MAX)))
    reason = settings_refusal(config, table, "diagonals")
    if reason == "" and setting(config, "side", 1) == 3:
        return "config side=3: the array's rows are 1, 2 or 4 tiles; use one of these"
    rows, columns, k = setting(config, "rows", 1), setting(config, "columns", 1), geometry.K // geometry.groups
    if reason == "" and rows * columns * k > parts:
        return f"config rows={rows} columns={columns}: times {k} channels must be at most {parts}; use fewer"
    return reason


def diagonals_settings(geometry, config, bias):
    """All settings, as given or as the rule has them."""
    return DiagonalsConfig(
        rows=setting(config, "rows", 1),
        columns=setting(config, "columns", 1),
        down=setting(config, "down", 1),
        across=setting(config, "across", 1),
        side=setting(config, "side", 1),
        groups=setting(config, "groups", 1),
        together=setting(config, "together", 1),
        buffers=setting(config, "buffers", 2),
        split=setting(config, "split", 0),
        warmup=setting(config, "warmup", 28),
    )
