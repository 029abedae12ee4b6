"""Settings of `mixed` and `vector` that is called without some, or all, and what is wrong with recipes."""

from ....schedules.mixed import PIECE_MAX, MixedSettings
from ....schedules.settings import setting
from .chains import tap_count
from .tiles import ROWS_TILE_BYTES, part_total, plan_rows

#: The least columns of a piece: not all of a bank, which leaves tiles a little longer than one with a last piece that
#: hides nothing.
PIECE_MIN = 448
#: Pieces of a core's work from which they may be larger than a bank.
PIECES = 32


def mixed_settings(geometry, config, on_tensor):
    """All settings of a config. What it leaves open: Tensor has about 7 of 10 taps in 16 bits, 4 of fp32, and none of a
    few in fp32."""
    S = geometry.S
    is_wide = geometry.itemsize == 4
    shared = min(8, (6 if is_wide else 3) * S // 10)
    recipe = (S - shared, shared, 0, 0) if shared < 2 else (S - shared, shared // 2, 1, (shared - 1) // 2)
    free = (0, S - 1, 0, 0) if S < 4 else (0, S - 2 - (S - 2) // 2, 1, (S - 2) // 2)
    if not on_tensor or (is_wide and S <= 5):
        recipe = free
    recipes, on_array = setting(config, "recipes", (recipe,)), recipe[0] > 0
    start = setting(config, "start", (free,) if on_array and S >= 2 and S <= 13 else ())
    end = setting(config, "end", ((S - 1, 0, 1, 0),) if on_array and S >= 2 else ())
    piece = max(PIECE_MIN, min(PIECE_MAX, part_total(geometry) // PIECES))
    return MixedSettings.read(
        config,
        shard=plan_rows(geometry, None, 0, are_on_array((recipes, start, end))).shard,
        recipes=recipes,
        columns=ROWS_TILE_BYTES // geometry.itemsize,
        piece=piece,
        start=start,
        first=(256, 384, 512) if piece == PIECE_MIN else (),
        end=end,
        warmup=5 if on_array else 0,
    )


def are_on_array(lists):
    """Whether a recipe of some lists of them has taps on Tensor."""
    for recipes in lists:
        if isinstance(recipes, tuple):
            for recipe in recipes:
                if isinstance(recipe, tuple) and len(recipe) > 0 and recipe[0] != 0:
                    return True
    return False


def is_on_array(settings):
    """Whether any piece has taps on Tensor, so that a tile's stretches are of one image."""
    return are_on_array((settings.recipes, settings.start, settings.end))


def mixed_config_refusal(geometry, config, on_tensor):
    """What is wrong with the names and values of a config; "" if nothing is."""
    reason = MixedSettings.refusal(config, "mixed" if on_tensor else "vector")
    if reason != "":
        return reason
    read = mixed_settings(geometry, config, on_tensor)
    for named in (("recipes", read.recipes), ("start", read.start), ("end", read.end)):
        reason = recipes_refusal(named[0], named[1], geometry.S, on_tensor)
        if reason != "":
            return reason
    if not are_counts(read.first, 1, PIECE_MAX) or not are_counts(read.last, 1, PIECE_MAX):
        return f"config={config}: first and last must be tuples of ints, 1 to {PIECE_MAX} columns each"
    return ""


def are_counts(values, least, most):
    """Whether values is a tuple of ints from least to most."""
    if not isinstance(values, tuple):
        return False
    for value in values:
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
