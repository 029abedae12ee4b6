"""The algorithms of depthwise conv1d by name: who does it."""

from ..._nki import nl
from ...schedules.depthwise_rule import default_of, refusal
from ...schedules.tiles import require
from .banded.kernel import banded
from .dot.kernel import dot
from .flip import copy_forwards
from .mixed.kernel import convolve_rows
from .update.kernel import update


def convolve(algorithm, operands, geometry, extras, config):
    """Write operands.y; algorithm None: by the default rule."""
    algorithm = algorithm_for(algorithm, geometry, extras, config)
    operands, geometry = copy_forwards(algorithm, operands, geometry, extras.strict_nonfinite)
    run_algorithm(algorithm, operands, geometry, extras, config)


def algorithm_for(algorithm, geometry, extras, config):
    """An algorithm that runs this: the one that is asked for, which is refused if it does not, or for None by the
    default rule."""
    cores = nl.num_programs()
    if algorithm is None:
        algorithm = default_of(geometry, extras, cores)
    reason = refusal(algorithm, geometry, extras, config, cores)
    require(reason == "", reason)
    return algorithm


def run_algorithm(algorithm, operands, geometry, extras, config):
    """Write operands.y by an algorithm that runs this."""
    if algorithm in ("mixed", "vector"):
        convolve_rows(operands, geometry, extras, config, algorithm == "mixed")
    else:
        {"banded": banded, "dot": dot, "update": update}[algorithm](operands, geometry, extras, config)
