"""Settings for a convolution that names none: the loop is walked with one setting after the other changed.

A rule gives the settings to start from (`plan`), `walk` the time of each try. What is tried is few: how the work is
halved, recipes that balance the engines about as well as the rule's, tiles and pieces of other sizes, and, where work
is so short that they matter, the first and last pieces.
"""

from ..._tiles import PARTS, div_ceil
from .plan import half_total, plan_refusal, read_plan
from .recipes import free_recipe, ranked_recipes
from .tiles import SHARDS
from .walk import ROWS_WALKED, count_tiles, walk_ns

#: Steps of pieces that all tries may walk together, and groups of a tile that take as long as one.
STEPS_MAX = 6_000
GROUPS_A_STEP = 2
#: Recipes that are tried.
RECIPES = 6
#: Pieces of a core's work up to which each of the first and last ones matters, and what is tried there.
SHORT = 12
FIRST_TRIES = ((256, 384, 512), (256, 256), (128, 256))
LAST_TRIES = ((192, 192), (256, 128, 128), (128,))
#: How much less a try must take than the best so far, and a whole round for another one.
BETTER = 0.997
WORTHWHILE = 0.99
ROUNDS = 2


def best_settings(geometry, extras, on_tensor, cores):
    """(config, ns) of the settings that take least by walks; those of the rule and 0 where they do not run."""
    plan, plan_ns = first_plan(geometry, extras, on_tensor, cores)
    if plan_ns == 0.0:
        return settings_of(plan), 0.0
    return refine(geometry, extras, plan, plan_ns, on_tensor, cores)


def first_plan(geometry, extras, on_tensor, cores):
    """(LoopPlan, ns) of the rule's settings; 0 where they do not run."""
    plan = read_plan(geometry, extras, None, on_tensor)
    if plan_refusal(geometry, extras, plan, cores, "") != "":
        return plan, 0.0
    return plan, walk_ns(geometry, extras, plan)


def refine(geometry, extras, plan, plan_ns, on_tensor, cores):
    """(config, ns) after changing one setting of a plan after the other for what takes less."""
    best, best_ns = settings_of(plan), plan_ns
    left = STEPS_MAX
    lists = ranked_recipes(geometry, extras, plan.piece, on_tensor, RECIPES)
    again = True
    for _ in range(ROUNDS):
        before_ns = best_ns
        for index in range(len(best)):
            name = best[index][0]
            values = tries(name, geometry, plan, lists, on_tensor) if again else ()
            for place in range(len(values)):
                if left > 0 and values[place] != best[index][1]:
                    tried = changed(best, index, values[place])
                    other = read_plan(geometry, extras, tried, on_tensor)
                    if plan_refusal(geometry, extras, other, cores, "") == "":
                        left -= cost_of(geometry, other)
                        other_ns = walk_ns(geometry, extras, other)
                        if other_ns < BETTER * best_ns:
                            best, best_ns, plan = tried, other_ns, other
        again = again and best_ns < WORTHWHILE * before_ns
    return best, best_ns


def settings_of(plan):
    """A config that says all that a plan has by default, in the order of the tries."""
    return (
        ("shard", plan.rows.shard),
        ("recipes", plan.recipes),
        ("columns", max(1, plan.rows.columns)),
        ("piece", plan.piece),
        ("start", plan.start),
        ("first", plan.first),
        ("end", plan.end),
        ("last", plan.last),
        ("warmup", plan.warmup),
        ("join", plan.join),
        ("prefetch", plan.prefetch),
    )


def changed(config, index, value):
    """The config with another value of an entry."""
    return config[0:index] + ((config[index][0], value),) + config[index + 1 :]


def cost_of(geometry, plan):
    """What a walk of a plan takes: its pieces' steps, and the groups that each load of its tiles goes through."""
    steps = 0
    for index in range(len(plan.recipes)):
        steps = max(steps, 3 + plan.recipes[index][1] + plan.recipes[index][3])
    tiles = count_tiles(geometry, plan.rows)
    pieces = min(ROWS_WALKED, tiles * div_ceil(plan.rows.columns, plan.piece))
    return pieces * steps + min(ROWS_WALKED, tiles) * plan.rows.G // GROUPS_A_STEP


def tries(name, geometry, plan, lists, on_tensor):
    """Other values of a setting of a plan. lists: of recipes."""
    is_short = half_total(geometry) <= SHORT * plan.piece
    found = ()
    if name == "shard":
        for index in range(len(SHARDS)):
            shard = SHARDS[index]
            parts = geometry.N if shard == "batch" else (geometry.Q if shard == "columns" else geometry.C)
            if parts >= PARTS:
                found = found + (shard,)
    elif name == "recipes":
        for index in range(len(lists)):
            found = found + (lists[index],)
        if on_tensor:
            found = found + (((geometry.S, 0, 0, 0),),)
    elif name == "columns":
        found = (max(1, plan.rows.columns // 2), 2 * plan.rows.columns)
    elif name == "piece":
        found = (512, 448, 384) if is_short else (2048, 1024, 512)
    elif not is_short:
        found = ()
    elif name == "start":
        edges = edge_recipes(geometry, on_tensor)
        found = ((),)
        for index in range(len(edges)):
            found = found + ((edges[index],),)
            if len(plan.start) > 0:
                found = found + (plan.start + (edges[index],),)
    elif name == "end":
        edges = edge_recipes(geometry, on_tensor)
        found = ((),)
        for index in range(len(edges)):
            found = found + ((edges[index],),)
    elif name == "first":
        found = FIRST_TRIES
    elif name == "last":
        found = LAST_TRIES
    elif name == "warmup" and on_tensor:
        found = (4, 6, 0)
    elif name == "join":
        found = ("gpsimd", "vector")
    elif name == "prefetch":
        found = (2, 6)
    return found


def edge_recipes(geometry, on_tensor):
    """Recipes for pieces at an end of the work, where the engines are not equally late or early."""
    S = geometry.S
    found = ()
    if on_tensor and S >= 2:
        found = (free_recipe(S), (S - 1, 1, 0, 0), (S - 1, 0, 1, 0))
        if S >= 3:
            found = found + ((S - 2, 1, 1, 0),)
        if S >= 4:
            found = found + ((S - 3, 1, 1, 1),)
    if on_tensor:
        found = found + ((S, 0, 0, 0),)
    return found
