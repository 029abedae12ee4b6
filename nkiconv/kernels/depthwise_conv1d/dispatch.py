"""The algorithms of depthwise conv1d by name: the choice of one, and the loop of each."""

from ...schedules.depthwise_algorithms import ALGORITHMS, default_of, unsupported_reason
from ...schedules.tiles import require
from .banded.kernel import banded
from .dot import dot
from .mixed import convolve_rows
from .update import update

LOOPS = {"banded": banded, "mixed": convolve_rows, "vector": convolve_rows, "dot": dot, "update": update}


def algorithm_for(algorithm, geometry, options, config):
    """The algorithm by name, or for None that of the least bound; refused if it does not run the problem."""
    algorithm = default_of(geometry, options) if algorithm is None else algorithm
    reason = unsupported_reason(algorithm, geometry, options, config)
    require(reason == "", reason)
    return algorithm


def run_algorithm(algorithm, tensors, geometry, options, config):
    """Write y by an algorithm that runs the problem."""
    LOOPS[algorithm](tensors, geometry, options, ALGORITHMS[algorithm].plan(geometry, options, config))
