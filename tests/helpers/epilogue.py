"""What the tests of epilogues, states and algorithms share: a `Request`, its inputs, its truth and the kernel's answer.

`check` is the whole of it: one problem, one request, 1 and 2 cores, the same bits, exact or within the bound.
"""

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from depthwise import run, same_bits
from draws import cores
from tolerances import assert_exact, assert_within_limit

from nkiconv._nki import nl
from nkiconv.bounds import epilogue_bound
from nkiconv.kernels._epilogue import read_epilogue
from nkiconv.kernels.depthwise_conv1d.geometry import read_geometry
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, apply_out_perm, conv_ref, epilogue_ref, num_terms
from nkiconv.schedules.depthwise import Options
from nkiconv.schedules.depthwise_algorithms import unsupported_reason
from nkiconv.simulator import KernelAssertionError

NL = {"bf16": nl.bfloat16, "fp16": nl.float16, "fp32": nl.float32}
FLOATS = tuple(NL)
#: Activations that keep integers integers.
EXACT_ACTIVATIONS = (None, "relu")


@dataclass(frozen=True)
class Request:
    """What is asked for beside the convolution: dtypes by their short names, None for what there is not."""

    bias: str | None = None
    activation: str | None = None
    residual: str | None = None
    residual_position: str = "pre_activation"
    out_dtype: str | None = None
    #: whether an initial state is given, and whether the final one is asked for
    state: bool = False
    final: bool = False

    @property
    def id(self) -> str:
        position = {"pre_activation": "before", "post_activation": "after"}[self.residual_position]
        words = [
            f"bias_{self.bias}" if self.bias else "",
            self.activation or "",
            f"residual_{self.residual}_{position}" if self.residual else "",
            f"to_{self.out_dtype}" if self.out_dtype else "",
            "state" if self.state else "",
            "final" if self.final else "",
        ]
        return "-".join(word for word in words if word) or "plain"

    def out(self, problem: ConvProblem) -> str:
        """Short name of y's dtype."""
        return self.out_dtype or problem.dtype


PLAIN = Request()

#: Epilogues of several kinds and dtypes, for algorithms that work in whole output tiles.
REQUESTS = [
    Request(bias="bf16", activation="relu"),
    Request(bias="fp32", residual="fp16", out_dtype="fp32"),
    Request(residual="fp32", residual_position="post_activation", activation="silu"),
    Request(bias="fp32", activation="gelu", residual="bf16"),
]


@dataclass(frozen=True)
class Inputs:
    """The arrays of one call, canonical: x [N, C, 1, W], w [C, 1, 1, S], bias [C], residual as y, state [N, C, S-1]."""

    x: Any
    w: Any
    bias: Any
    residual: Any
    state: Any


def window(problem: ConvProblem) -> int:
    """Elements of a state: what a window sees before the row."""
    return (problem.S - 1) * problem.rhs_dilation[1]


def takes_state(problem: ConvProblem) -> bool:
    """Whether the public kernel takes a state with this geometry."""
    one = problem.stride[1] == 1 and problem.lhs_dilation[1] == 1
    return one and problem.padding[1][0] == window(problem) > 0


def draw(
    rng: np.random.Generator, problem: ConvProblem, request: Request, whole: bool, w_dtype: str | None = None
) -> Inputs:
    """Random inputs: with `whole`, integers whose sums are exact in fp32; else normals whose sums are of order 1."""

    def array(shape: tuple[int, ...], dtype: str | None, scale: float = 1.0) -> Any:
        if dtype is None:
            return None
        values = rng.integers(-2, 3, shape) if whole else rng.standard_normal(shape) * scale
        return values.astype(DTYPES[dtype])

    state_shape = (problem.N, problem.C, window(problem))
    return Inputs(
        x=array(problem.input_shape, problem.dtype),
        w=array(problem.filter_shape, w_dtype or problem.dtype, num_terms(problem) ** -0.5),
        bias=array((problem.C,), request.bias),
        residual=array(problem.output_shape, request.residual),
        state=array(state_shape, problem.dtype if request.state else None),
    )


def sums(inputs: Inputs, problem: ConvProblem) -> tuple[Any, Any]:
    """(sums of the convolution, sum|w||x|) in float64; a state is what precedes the row."""
    x = inputs.x
    if inputs.state is not None:
        x = np.concatenate([inputs.state[:, :, np.newaxis], x], axis=3)
        problem = problem.replace(W=x.shape[3], padding=((0, 0), (0, problem.padding[1][1])))
    return conv_ref(x, inputs.w, problem), abs_sum_ref(x, inputs.w, problem)


def final_state(inputs: Inputs, problem: ConvProblem) -> Any:
    """What the next call needs: the last elements of the state (zeros without one) and the row."""
    size = window(problem)
    before = np.zeros((problem.N, problem.C, size), inputs.x.dtype) if inputs.state is None else inputs.state
    return np.concatenate([before, inputs.x[:, :, 0]], axis=2)[:, :, -size:]


def truth(inputs: Inputs, problem: ConvProblem, request: Request) -> tuple[Any, Any]:
    """(y, largest error of a correct kernel) in float64."""
    conv, abs_sum = sums(inputs, problem)
    epilogue = (inputs.bias, request.activation, inputs.residual, request.residual_position)
    limit = epilogue_bound(num_terms(problem), abs_sum, conv, request.out(problem), *epilogue)
    return epilogue_ref(conv, *epilogue), limit


def keywords(inputs: Inputs, request: Request) -> dict[str, Any]:
    """The public kernel's arguments beside x, w and the geometry; what is not asked for is left out."""
    given = {
        "bias": inputs.bias,
        "activation": request.activation,
        "residual": inputs.residual,
        "out_dtype": request.out_dtype and NL[request.out_dtype],
        "initial_state": inputs.state,
    }
    found = {name: value for name, value in given.items() if value is not None}
    if inputs.residual is not None:
        found["residual_position"] = request.residual_position
    return found | ({"return_final_state": True} if request.final else {})


def call(inputs: Inputs, problem: ConvProblem, request: Request, lnc: int, **more: Any) -> tuple[Any, Any]:
    """(y, final state or None) of the public kernel."""
    answer = run(inputs.x, inputs.w, problem, lnc, **keywords(inputs, request), **more)
    return answer if request.final else (answer, None)


def check(problem: ConvProblem, request: Request, seed: int, *, whole: bool, **more: Any) -> Any:
    """Hold the kernel against the truth, final states exactly; returns y.

    On `cores` exact where whole inputs stay integers; elsewhere within the bound, the same bits on 1 and 2.
    """
    inputs = draw(np.random.default_rng(seed), problem, request, whole, more.pop("w_dtype", None))
    y, limit = truth(inputs, problem, request)
    exact = whole and request.activation in EXACT_ACTIVATIONS
    out_dtype, first = request.out(problem), None
    for lnc in cores(problem, request) if exact else (1, 2):
        found, final = call(inputs, problem, request, lnc, **more)
        assert found.dtype == DTYPES[out_dtype]
        if exact:
            assert_exact(found, y, out_dtype)
        else:
            assert_within_limit(found, y, limit)
        first = found if first is None else first
        assert exact or same_bits(found, first)
        if request.final:
            assert same_bits(final, np.ascontiguousarray(final_state(inputs, problem)))
    return first


def kernel_view(problem: ConvProblem, request: Request = PLAIN, strict_nonfinite: bool = False) -> tuple[Any, Any]:
    """(Geometry, Options) as the public kernel reads them from its arguments."""
    geometry, _ = read_geometry(
        SimpleNamespace(shape=problem.input_shape, dtype=NL[problem.dtype]),
        SimpleNamespace(shape=problem.filter_shape, dtype=NL[problem.dtype]),
        (problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation),
        (problem.C, 1),
        (None, None, None),
        problem.transposed,
    )
    itemsize = DTYPES[request.out(problem)].itemsize
    epilogue = read_epilogue(request.activation, request.bias, request.residual, request.residual_position, itemsize)
    return geometry, Options(epilogue=epilogue, state=request.state, strict_nonfinite=strict_nonfinite)


def reason_to_refuse(
    algorithm: str,
    problem: ConvProblem,
    request: Request = PLAIN,
    *,
    lnc: int,
    strict_nonfinite: bool = False,
    config: Any = None,
) -> str:
    """What `dispatch.unsupported_reason` says to this call; "" if the algorithm does it."""
    geometry, options = kernel_view(problem, request, strict_nonfinite)
    return unsupported_reason(algorithm, geometry, options, config, lnc)


def refused(algorithm: str, problem: ConvProblem, request: Request = PLAIN, **more: Any) -> str:
    """The reason why an algorithm refuses, "" if it does not; where it does, the kernel says the very same.

    `more` is strict_nonfinite and config.
    """
    said = ""
    for lnc in (1, 2):
        reason = reason_to_refuse(algorithm, problem, request, lnc=lnc, **more)
        if reason != "":
            inputs = draw(np.random.default_rng(0), problem, request, whole=True)
            with pytest.raises(KernelAssertionError, match=re.escape(reason)):
                call(inputs, problem, request, lnc, algorithm=algorithm, **more)
            said = reason
    return said


def stored(canonical: Any, perm: Any) -> Any:
    """The array whose transpose(perm) is `canonical`."""
    return np.ascontiguousarray(np.transpose(canonical, np.argsort(perm)))


def check_stored(
    problem: ConvProblem, request: Request, seed: int, in_perm: Any, kern_perm: Any, out_perm: Any, **more: Any
) -> None:
    """`check` on integers with every tensor in another layout; a residual lies as y does, a state always canonical."""
    inputs = draw(np.random.default_rng(seed), problem, request, whole=True)
    y, _ = truth(inputs, problem, request)
    residual = inputs.residual
    laid = Inputs(
        x=stored(inputs.x, in_perm),
        w=stored(inputs.w, kern_perm),
        bias=inputs.bias,
        residual=None if residual is None else np.ascontiguousarray(apply_out_perm(residual, out_perm)),
        state=inputs.state,
    )
    perms = {"in_perm": in_perm, "kern_perm": kern_perm, "out_perm": out_perm}
    for lnc in cores(problem, request):
        found, final = call(laid, problem, request, lnc, **perms, **more)
        assert_exact(found, apply_out_perm(y, out_perm), request.out(problem))
        if request.final:
            assert same_bits(final, np.ascontiguousarray(final_state(inputs, problem)))
