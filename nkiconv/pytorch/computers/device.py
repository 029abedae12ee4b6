"""The operators' kernels on a Neuron device, through torch-neuronx. They have never run on one; see the README.

torch-neuronx's native backend takes a kernel through `wrap_nki`, which is one node of torch.compile's graph; under
torch_xla a `@nki.jit` kernel is called directly. Either way the algorithm and settings of a plan are compile-time
arguments.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..._nki import CHOICE
from ...errors import NkiconvError, PlanWarning, UnsupportedError
from ...launches import advise_target, degree, on_cores
from ...planner.entry import answer, estimated
from ...planner.request import Asked, Request
from ...problem import ConvProblem
from .kernels import Backend, numbers_of_request

#: Who chooses: "estimate", a plan that is in the cache, else cost models, in milliseconds; "timed", the planner, which
#: searches where its cache has none; "kernel", the kernel, by the least bound.
PLAN_VARIABLE, EFFORTS = "NKICONV_PLAN", ("estimate", "timed", "kernel")


class Device(Backend):
    """The Neuron device of the tensors.

    If there is no plan, a PlanWarning says so once for each shape, and the kernel runs the algorithm of the least
    bound, or refuses.
    """

    def launch(self, kernel: Any, *given: Any, **named: Any) -> Any:
        given, named = tree_map_only(Tensor, Tensor.contiguous, (given, named))
        return launcher(kernel, degree())(*given, **named)

    def arguments(self, operation: str, problem: ConvProblem, asked: Asked) -> dict[str, Any]:
        return _arguments(problem, operation, asked, degree(), effort())


BACKEND = Device()


#: Results of `launcher`, which hold their kernels, by a kernel's identity, as AWS's have no hash, and cores.
LAUNCHERS: dict[tuple[int, int], Any] = {}


def launcher(kernel: Any, lnc: int) -> Any:
    """A kernel on `lnc` cores, by torch-neuronx or torch_xla of this machine; a LaunchWarning names once a setting that
    makes launches under torch_xla slow."""
    if (id(kernel), lnc) not in LAUNCHERS:
        wrap = getattr(importlib.import_module("torch_neuronx"), "wrap_nki", None)
        if wrap is None and CHOICE.provider == "aws":
            advise_target()
        LAUNCHERS[id(kernel), lnc] = on_cores(kernel if wrap is None else wrap(kernel), lnc)
    return LAUNCHERS[id(kernel), lnc]


@functools.cache
def _arguments(problem: ConvProblem, operation: str, asked: Asked, lnc: int, effort: str) -> dict[str, Any]:
    """The kernel's arguments besides tensors, by name. They are kept for the process, so plans made later hold from the
    next process on."""
    request = Request(problem=problem, lnc=lnc, asked=asked, operation=operation)
    return numbers_of_request(request, *((None, None) if effort == "kernel" else _choice(request, effort)))


def effort() -> str:
    """The value of NKICONV_PLAN. Raises UnsupportedError if it is not one of EFFORTS."""
    wanted = os.environ.get(PLAN_VARIABLE, EFFORTS[0])
    if wanted not in EFFORTS:
        raise UnsupportedError(f"{PLAN_VARIABLE}={wanted!r}: accepted are {', '.join(EFFORTS)}; set one, or unset it")
    return wanted


def _choice(request: Request, effort: str) -> tuple[str | None, Any]:
    """(algorithm, config) of the planner's answer; (None, None) if it has none, so that the kernel chooses."""
    problem = request.problem
    try:
        found = answer(request) if effort == "timed" else estimated(request)
    except NkiconvError as error:
        warnings.warn(
            f"{request.operation} of x {problem.input_shape} and w {problem.filter_shape}, {problem.dtype}: there is "
            f"no plan, and the kernel takes the algorithm of the least bound ({error}); NKICONV_PLAN=kernel asks for "
            f"none",
            PlanWarning,
            stacklevel=2,
        )
        return None, None
    return found.algorithm, found.config
