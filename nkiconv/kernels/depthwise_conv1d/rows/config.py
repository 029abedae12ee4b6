"""Settings of `mixed` and `vector`: what each says, what it may be, and what a kernel takes that is called without.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from .chains import tap_count
from .tiles import LOAD_BYTES_MAX, ROWS_TILE_BYTES, SHARDS, half_total, plan_rows

#: Names of the settings.
ROWS_SETTINGS = (
    "shard",
    "recipes",
    "columns",
    "piece",
    "start",
    "first",
    "end",
    "last",
    "warmup",
    "join",
    "prefetch",
    "filler",
)
#: Engines that add chains and fill columns.
ROWS_ENGINES = ("gpsimd", "vector")
#: Most columns of one piece: four banks of PSUM, so that two pieces are in flight. The least by default: not all of a
#: bank, which leaves tiles a little longer than one with a last piece that hides nothing.
PIECE_MIN, PIECE_MAX = 448, 2048
#: Pieces of a core's work from which they may be larger than a bank.
PIECES = 32
#: Least and most of settings that are ints: more columns, tiles and matmuls to warm up with than there is room or time
#: for.
ROWS_LIMITS = (("piece", 1, PIECE_MAX), ("columns", 1, LOAD_BYTES_MAX), ("prefetch", 0, 64), ("warmup", 0, 64))


@dataclass(frozen=True)
class RowsConfig(nl.NKIObject):
    """Every setting. A recipe is (tensor, vector_a, head, vector_b), who has how many taps of a piece: see `chains`."""

    #: what the two halves of the work share out: "channels", "columns", or "batch" for images
    shard: str
    #: recipes of the pieces of a half in turn, one or more
    recipes: tuple
    #: columns of a tile, 1 to 49152; fewer where a tile of so many does not fit
    columns: int
    #: columns of a piece, 1 to 2048; at most a tile's
    piece: int
    #: recipes of the first pieces of a half, any number
    start: tuple
    #: columns of the first pieces of a half, 1 to 2048 each, any number
    first: tuple
    #: recipes of the last pieces of a half, any number
    end: tuple
    #: columns of the last pieces of a half, 1 to 2048 each, any number
    last: tuple
    #: matmuls of 512 columns on zeros while the first loads are on their way, 0 to 64
    warmup: int
    #: engine that adds chains, but for the last piece: "gpsimd" or "vector"
    join: str
    #: tiles loaded ahead of the sums, 0 to 64; fewer where they do not fit
    prefetch: int
    #: engine that fills columns in front of and behind rows: "gpsimd" or "vector"
    filler: str


def rows_defaults(geometry, on_tensor):
    """Settings without a config: Tensor has about 7 of 10 taps in 16 bits, 4 of fp32, and none of a few in fp32."""
    S = geometry.S
    is_wide = geometry.itemsize == 4
    shared = min(8, (6 if is_wide else 3) * S // 10)
    recipe = (S - shared, shared, 0, 0) if shared < 2 else (S - shared, shared // 2, 1, (shared - 1) // 2)
    free = (0, S - 1, 0, 0) if S < 4 else (0, S - 2 - (S - 2) // 2, 1, (S - 2) // 2)
    if not on_tensor or (is_wide and S <= 5):
        recipe = free
    on_array = recipe[0] > 0
    rows = plan_rows(geometry, None, 0)
    piece = max(PIECE_MIN, min(PIECE_MAX, half_total(geometry) // PIECES))
    return RowsConfig(
        shard=rows.shard,
        recipes=(recipe,),
        columns=ROWS_TILE_BYTES // geometry.itemsize,
        piece=piece,
        start=(free,) if on_array and S >= 2 and S <= 13 else (),
        first=(256, 384, 512) if piece == PIECE_MIN else (),
        end=((S - 1, 0, 1, 0),) if on_array and S >= 2 else (),
        last=(320,),
        warmup=5 if on_array else 0,
        join="gpsimd",
        prefetch=4,
        # GpSimd, which makes diagonals too, would be late for many short tiles
        filler="vector" if rows.columns <= 128 and half_total(geometry) > 512 else "gpsimd",
    )


def read_rows(config, defaults):
    """The RowsConfig of (name, value) pairs; what they leave open is as in `defaults`."""
    return RowsConfig(
        shard=setting(config, "shard", defaults.shard),
        recipes=setting(config, "recipes", defaults.recipes),
        columns=setting(config, "columns", defaults.columns),
        piece=setting(config, "piece", defaults.piece),
        start=setting(config, "start", defaults.start),
        first=setting(config, "first", defaults.first),
        end=setting(config, "end", defaults.end),
        last=setting(config, "last", defaults.last),
        warmup=setting(config, "warmup", defaults.warmup),
        join=setting(config, "join", defaults.join),
        prefetch=setting(config, "prefetch", defaults.prefetch),
        filler=setting(config, "filler", defaults.filler),
    )


def rows_config_refusal(geometry, config, on_tensor):
    """What is wrong with the names and values of a config; "" if nothing is."""
    reason = config_refusal(config, ROWS_SETTINGS, "mixed" if on_tensor else "vector")
    if reason != "":
        return reason
    read = read_rows(config, rows_defaults(geometry, on_tensor))
    for named in (("recipes", read.recipes), ("start", read.start), ("end", read.end)):
        reason = recipes_refusal(named[0], named[1], geometry.S, on_tensor)
        if reason != "":
            return reason
    reason = numbers_refusal(config, ROWS_LIMITS)
    if reason != "":
        return reason
    if read.shard not in SHARDS:
        return f"config shard={read.shard}: must be one of {SHARDS}"
    if not are_counts(read.first, 1, PIECE_MAX) or not are_counts(read.last, 1, PIECE_MAX):
        return f"config={config}: first and last must be tuples of ints, 1 to {PIECE_MAX} columns each"
    if read.join not in ROWS_ENGINES or read.filler not in ROWS_ENGINES:
        return f"config join={read.join}, filler={read.filler}: must be one of {ROWS_ENGINES}"
    return ""


def are_counts(values, least, most):
    """Whether values is a tuple of ints from least to most."""
    if not isinstance(values, tuple):
        return False
    for index in range(len(values)):
        value = values[index]
        if not isinstance(value, int) or isinstance(value, bool) or value < least or value > most:
            return False
    return True


def recipes_refusal(name, recipes, S, on_tensor):
    """What is wrong with a config's recipes."""
    if not isinstance(recipes, tuple) or (len(recipes) == 0 and name == "recipes"):
        return f"config {name}={recipes}: must be a tuple of (tensor, vector_a, head, vector_b)"
    for index in range(len(recipes)):
        recipe = recipes[index]
        right = are_counts(recipe, 0, S) and len(recipe) == 4
        if not right or recipe[2] > 1 or (recipe[2] == 0 and recipe[3] > 0) or tap_count(recipe) != S:
            return (
                f"config {name}={recipes}: recipe {index} must be (tensor, vector_a, head, vector_b) with head 0 or "
                f"1, vector_b = 0 without a head, and S={S} taps in all (one more on Scalar if tensor is 0)"
            )
        if not on_tensor and recipe[0] > 0:
            return f"config {name}={recipes}: recipe {index} has taps on Tensor; use algorithm mixed"
    return ""
