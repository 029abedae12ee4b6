"""The least effort of three: the best of a few candidates of the cost models, in tens of milliseconds.

Calls on the host use it if neither the user's cache nor `shipped` has a plan. Under AWS's NKI the planner's process
(`child`) answers, as candidates are timed in the simulator.
"""

from __future__ import annotations

from .._nki import CHOICE
from ..errors import UnsupportedError, raise_all
from ..simulator.timing import Rates
from . import cache, child, shipped
from .operations import operation_for
from .plan import Estimate, Plan
from .request import Config, Request


def estimate(request: Request, *, use_cache: bool = True) -> Estimate:
    """The estimate of a request without violations; kept in memory and on disk.

    Raises UnsupportedError: no algorithm runs it; with the reason of each. PlanningError: as `plan`.
    """
    kept = cache.load(request, Estimate) if use_cache else None
    if kept is not None:
        return kept
    found = chosen(request)
    operation = operation_for(request)
    shape = operation.shape(request, Rates(dict(request.constants)))
    if operation.kernel_reason(found.algorithm, shape, found.config):  # the whole may be refused if a part was not
        reasons = {one: operation.unsupported_reason(one, shape, None) for one in operation.algorithms}
        runs = [one for one, reason in reasons.items() if not reason]
        if not runs:
            errors = [UnsupportedError(f"{one}: {reason}") for one, reason in reasons.items()]
            raise_all("no algorithm runs this problem", errors)
        found = Estimate(runs[0], operation.complete(runs[0], shape, None))
    if use_cache:
        cache.store(request, found)
    return found


def chosen(request: Request) -> Estimate:
    """The estimate without the cache; a refused algorithm if all refuse. Raises PlanningError, as `plan`."""
    if CHOICE.provider == "aws":
        return child.estimate(request)
    operation = operation_for(request)
    return Estimate(*operation.choice(request, operation.shape(request, Rates(dict(request.constants)))))


def completed(request: Request, algorithm: str | None, config: Config) -> tuple[str, Config]:
    """The algorithm and all settings of a launch: the given ones, or for None those that `known` finds."""
    if algorithm is None:
        found = known(request)
        return found.algorithm, found.config
    operation = operation_for(request)
    return algorithm, operation.complete(algorithm, operation.shape(request, Rates()), config)


def known(request: Request) -> Plan | Estimate:
    """The plan or estimate of a call on the host: the cached plan, else the shipped one, else an estimate."""
    return cache.load(request, Plan) or shipped.known(request) or estimate(request)
