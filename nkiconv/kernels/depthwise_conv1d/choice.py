"""The kernel's own choice of an algorithm, from shapes alone: what the planner finds by timing, as a rule."""


def choose(geometry, extras):
    """(algorithm, config) for a convolution that names none."""
    return "taps_on_partition", None
