"""The algorithms by name: who refuses what, and who does it."""

from ..._nki import nl
from ...schedules import banded_tiles, mixed
from ...schedules.rows import shares_tiles
from ...schedules.tiles import require
from .banded.kernel import banded
from .dot.kernel import dot, dot_refusal
from .flip import copy_forwards, flip_refusal
from .mixed.kernel import convolve_rows
from .rule import wanted_algorithms
from .update.kernel import update, update_refusal

#: The algorithms that can be asked for by name; each is a file or a package beside this one.
ALGORITHMS = ("banded", "mixed", "vector", "dot", "update")


def refusal(algorithm, geometry, extras, config, cores):
    """Why an algorithm does not run this on `cores` cores: argument, value, rule, remedy; "" if it does."""
    reason = flip_refusal(algorithm, geometry)
    if reason != "":
        return reason
    if algorithm == "banded":
        return banded_tiles.unsupported(geometry, extras, config, cores)
    if algorithm == "dot":
        return dot_refusal(geometry, extras, config, cores)
    if algorithm == "update":
        return update_refusal(geometry, extras, config, cores)
    return mixed.unsupported(geometry, extras, config, cores, algorithm == "mixed")


def default_of(geometry, extras, cores):
    """The algorithm of a kernel that is called without one: the first that runs of those that its rule names, `vector`
    before `mixed` where tiles of several images pay, else `vector`, or `dot`, whose filters need not fit SBUF."""
    for name in wanted_algorithms(geometry, extras) + ["vector", "dot"]:
        for algorithm in ("vector", name) if name == "mixed" and shares_tiles(geometry) else (name,):
            if refusal(algorithm, geometry, extras, None, cores) == "":
                return algorithm
    return "vector"


def convolve(algorithm, operands, geometry, extras, config):
    """Write operands.y; algorithm None: by the default rule."""
    algorithm = algorithm_for(algorithm, geometry, extras, config)
    operands, geometry = copy_forwards(algorithm, operands, geometry, extras.strict_nonfinite)
    run_algorithm(algorithm, operands, geometry, extras, config)


def algorithm_for(algorithm, geometry, extras, config):
    """An algorithm that runs this: the one that is asked for, which is refused if it does not, or for None by the
    default rule."""
    cores = nl.num_programs()
    if algorithm == None:
        algorithm = default_of(geometry, extras, cores)
    reason = refusal(algorithm, geometry, extras, config, cores)
    require(reason == "", reason)
    return algorithm


def run_algorithm(algorithm, operands, geometry, extras, config):
    """Write operands.y by an algorithm that runs this."""
    if algorithm == "banded":
        banded(operands, geometry, extras, config)
    elif algorithm == "dot":
        dot(operands, geometry, extras, config)
    elif algorithm == "update":
        update(operands, geometry, extras, config)
    else:
        convolve_rows(operands, geometry, extras, config, algorithm == "mixed")
