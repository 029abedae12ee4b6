"""The algorithms by name: who refuses what, and who does it."""

from ..._nki import nl
from .._tiles import require
from .banded.kernel import banded
from .banded.refusal import banded_refusal
from .dot.kernel import dot, dot_refusal
from .mixed import mixed, mixed_refusal
from .taps_on_partition.kernel import taps_on_partition, taps_on_partition_refusal
from .update.kernel import update, update_refusal
from .vector import vector, vector_refusal

#: The algorithms that can be asked for by name; each is a file or a package beside this one.
ALGORITHMS = ("taps_on_partition", "banded", "mixed", "vector", "dot", "update")


def refusal(algorithm, geometry, extras, config, cores):
    """Why an algorithm does not run this on `cores` cores: argument, value, rule, remedy; "" if it does."""
    if algorithm == "banded":
        return banded_refusal(geometry, extras, config, cores)
    if algorithm == "dot":
        return dot_refusal(geometry, extras, config, cores)
    if algorithm == "mixed":
        return mixed_refusal(geometry, extras, config, cores)
    if algorithm == "update":
        return update_refusal(geometry, extras, config, cores)
    if algorithm == "vector":
        return vector_refusal(geometry, extras, config, cores)
    return taps_on_partition_refusal(geometry, extras, config, cores)


def default_rule(geometry, extras, cores):
    """The algorithm of a kernel that is called without one: the first that runs of those that a shape is for.

    `nkiconv.plan`, and every call on the host, choose by cost models instead.
    """
    wanted = []
    if geometry.Q == 1 and geometry.N >= 16:
        wanted.append("update")
    if extras.strict_nonfinite:
        wanted.append("vector")
    elif geometry.S <= 16 or (geometry.S <= 64 and geometry.Q <= 128):
        wanted.append("mixed")
    wanted.append("banded")
    if geometry.S <= 256 and not extras.strict_nonfinite:
        wanted.append("mixed")
    wanted.append("dot")
    found = "taps_on_partition"
    for index in range(len(wanted)):
        if found == "taps_on_partition" and refusal(wanted[index], geometry, extras, None, cores) == "":
            found = wanted[index]
    return found


def convolve(algorithm, operands, geometry, extras, config):
    """Write operands.y; algorithm None: that of the default rule."""
    cores = nl.num_programs()
    if algorithm == None:
        algorithm = default_rule(geometry, extras, cores)
    reason = refusal(algorithm, geometry, extras, config, cores)
    require(reason == "", reason)
    if algorithm == "banded":
        banded(operands, geometry, extras, config)
    elif algorithm == "dot":
        dot(operands, geometry, extras, config)
    elif algorithm == "mixed":
        mixed(operands, geometry, extras, config)
    elif algorithm == "update":
        update(operands, geometry, extras, config)
    elif algorithm == "vector":
        vector(operands, geometry, extras, config)
    else:
        taps_on_partition(operands, geometry, extras, config)
