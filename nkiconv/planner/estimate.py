"""The first of three efforts: the best of a few candidates that cost models name, in tens of milliseconds.

What a call on the host takes where no plan is known: neither one of the user's cache, nor a shipped one
(`shipped`). Under AWS's NKI the planner's own process (`child`) answers, as candidates are timed in the simulator.
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
    """What is chosen for a request without violations; kept in memory and on disk.

    Raises UnsupportedError: no algorithm runs it; of every one the reason. PlanningError: as `plan`.
    """
    kept = cache.load_estimate(request) if use_cache else None
    if kept is not None:
        return kept
    found = chosen(request)
    operation = operation_for(request)
    shape = operation.shape(request, Rates(dict(request.constants)))
    if operation.kernel_reason(found.algorithm, shape, found.config):  # of the whole, where a part was timed
        reasons = {one: operation.unsupported_reason(one, shape, None) for one in operation.algorithms}
        runs = [one for one, reason in reasons.items() if not reason]
        if not runs:
            errors = [UnsupportedError(f"{one}: {reason}") for one, reason in reasons.items()]
            raise_all("no algorithm runs this problem", errors)
        found = Estimate(runs[0], operation.complete(runs[0], shape, None))
    if use_cache:
        cache.store_estimate(request, found)
    return found


def chosen(request: Request) -> Estimate:
    """The same without the cache, and where all algorithms refuse, one of them. Raises PlanningError, as `plan`."""
    if CHOICE.provider == "aws":
        return child.estimate(request)
    operation = operation_for(request)
    return Estimate(*operation.choice(request, operation.shape(request, Rates(dict(request.constants)))))


def completed(request: Request, algorithm: str | None, config: Config) -> tuple[str, Config]:
    """The algorithm and all settings that a kernel is launched with: those asked for, or what is known to be best."""
    if algorithm is None:
        found = known(request)
        return found.algorithm, found.config
    operation = operation_for(request)
    return algorithm, operation.complete(algorithm, operation.shape(request, Rates()), config)


def known(request: Request) -> Plan | Estimate:
    """What a call on the host takes: the plan that was timed before, where the cache has it, or one that comes with
    nkiconv, or an estimate."""
    return cache.load(request) or shipped.known(request) or estimate(request)
