"""What the tests of depthwise rows share beside geometry: a `Request`, its inputs, its truth and the kernel's answer.

`check` is the whole of it: one problem, one request, 1 and 2 cores, the same bits, exact or within the bound.
"""

import re
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conv_calls import NL
from depthwise import run, same_bits
from draws import cores
from tolerances import assert_exact, assert_within_limit

from nkiconv._nki import nl
from nkiconv.bounds import epilogue_bound, factor_bound, gated_bound, prologue_bound
from nkiconv.kernels._epilogue import read_epilogue
from nkiconv.kernels.depthwise_conv1d.geometry import read_geometry, with_prologue
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, apply_out_perm, chunks_ref, conv_ref, epilogue_ref, num_terms, prologue_ref
from nkiconv.schedules.depthwise import Options
from nkiconv.schedules.depthwise_algorithms import unsupported_reason
from nkiconv.simulator import KernelAssertionError

#: Activations that keep integers integers.
EXACT_ACTIVATIONS = (None, "relu")
#: Orders of chunks of x; every order matters alike, these have each chunk in each place.
CHUNKS = ("BCx", "xG", "xBC", "Cx", "GxC")


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
    #: the chunks that x comes in; "channel" or "image", as x_scale and x_shift have a number for each, and x_activation
    chunks: str | None = None
    x_scale: str | None = None
    x_shift: str | None = None
    x_activation: str | None = None

    @property
    def has_prologue(self) -> bool:
        return bool(self.x_scale or self.x_shift or self.x_activation)

    @property
    def exact(self) -> bool:
        """Whether integers stay integers."""
        plain = {self.activation, self.x_activation} <= {*EXACT_ACTIVATIONS}
        return plain and "G" not in (self.chunks or "")

    @property
    def id(self) -> str:
        position = {"pre_activation": "before", "post_activation": "after"}[self.residual_position]
        words = [
            self.chunks or "",
            "_".join(["x", *(str(one) for one in (self.x_scale, self.x_shift, self.x_activation))] * self.has_prologue),
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


@dataclass(frozen=True)
class Inputs:
    """The arrays of one call, canonical: x [N, chunks * C, 1, W], w [C, 1, 1, S], bias [C], residual as y, state
    [N, C, S-1], and the prologue by name."""

    x: Any
    w: Any
    bias: Any
    residual: Any
    state: Any
    on_x: dict[str, Any] = field(default_factory=dict)


def window(problem: ConvProblem) -> int:
    """Elements of a state: what a window sees before the row."""
    return (problem.S - 1) * problem.rhs_dilation[1]


def fitting(request: Request, problem: ConvProblem) -> Request | None:
    """A request without states that a geometry does not take; None where a factor of y has not its extents."""
    if "C" in (request.chunks or "") and problem.Q != problem.W:
        return None
    plain = problem.stride[1] == problem.lhs_dilation[1] == 1
    takes_state = plain and problem.padding[1][0] == window(problem) > 0
    return request if takes_state else replace(request, state=False, final=False)


def x_shape(problem: ConvProblem, request: Request) -> tuple[int, ...]:
    """Of x in its chunks."""
    return (problem.N, problem.C * len(request.chunks or "x"), 1, problem.W)


def draw(rng: np.random.Generator, problem: ConvProblem, request: Request, whole: bool) -> Inputs:
    """Random inputs: with `whole`, integers whose sums are exact in fp32; else normals whose sums are of order 1.
    Shifts of integers are far from 0."""

    def array(shape: tuple[int, ...] | None, dtype: str | None, scale: float = 1.0, low: int = -2) -> Any:
        if dtype is None or shape is None:
            return None
        values = rng.integers(low, low + 5, shape) if whole else rng.standard_normal(shape) * scale
        return values.astype(DTYPES[dtype])

    of_x = {"channel": (problem.C,), "image": (problem.N, problem.C), None: None}
    on_x = {"x_scale": array(of_x[request.x_scale], "fp32"), "x_shift": array(of_x[request.x_shift], "fp32", low=50)}
    on_x["x_activation"] = request.x_activation
    state_shape = (problem.N, problem.C, window(problem))
    return Inputs(
        x=array(x_shape(problem, request), problem.dtype),
        w=array(problem.filter_shape, problem.dtype, num_terms(problem) ** -0.5),
        bias=array((problem.C,), request.bias),
        residual=array(problem.output_shape, request.residual),
        state=array(state_shape, problem.dtype if request.state else None),
        on_x={name: one for name, one in on_x.items() if one is not None},
    )


def prepared(inputs: Inputs, problem: ConvProblem, request: Request) -> tuple[Any, Any, Any]:
    """(what is convolved, how far a correct kernel may be from it, the factor of y or None) in float64."""
    if request.chunks:
        product, factor = chunks_ref(inputs.x, request.chunks)
        return product, gated_bound(inputs.x, request.chunks, problem.dtype), factor
    if request.has_prologue:
        bound = prologue_bound(inputs.x, problem.dtype, **inputs.on_x)
        return prologue_ref(inputs.x, **inputs.on_x), bound, None
    return inputs.x, np.zeros(inputs.x.shape), None


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


@dataclass(frozen=True)
class Truth:
    """y, the largest error of a correct kernel, and the same of the final state, in float64."""

    y: Any
    limit: Any
    final: Any
    final_limit: Any


def truth(inputs: Inputs, problem: ConvProblem, request: Request) -> Truth:
    x, error, factor = prepared(inputs, problem, request)
    arrives = replace(inputs, x=x)
    conv, abs_sum = sums(arrives, problem)
    inexact = abs_sum_ref(error, inputs.w, problem) if error.any() else 0.0
    epilogue = (inputs.bias, request.activation, inputs.residual, request.residual_position)
    y, out = epilogue_ref(conv, *epilogue), request.out(problem)
    of_sums = num_terms(problem), abs_sum, conv
    if factor is None:
        limit = epilogue_bound(*of_sums, out, *epilogue, inexact=inexact)
    else:
        limit = epilogue_bound(*of_sums, "fp32", *epilogue, inexact=inexact)
        y = y * factor
        limit = factor_bound(limit, factor, y, out)
    final = final_state(arrives, problem) if request.final else None
    off = final_state(replace(inputs, x=error, state=None), problem) if request.final else None
    return Truth(y, limit, final, off)


def keywords(inputs: Inputs, request: Request) -> dict[str, Any]:
    """The public kernel's arguments beside x, w and the geometry; what is not asked for is left out."""
    given = {"bias": inputs.bias, "residual": inputs.residual, "initial_state": inputs.state, **inputs.on_x}
    given |= {"activation": request.activation, "chunks": request.chunks}
    given |= {"out_dtype": request.out_dtype and NL[request.out_dtype]}
    found = {name: value for name, value in given.items() if value is not None}
    if inputs.residual is not None:
        found["residual_position"] = request.residual_position
    return found | ({"return_final_state": True} if request.final else {})


def call(inputs: Inputs, problem: ConvProblem, request: Request, lnc: int, **more: Any) -> tuple[Any, Any]:
    """(y, final state or None) of the public kernel."""
    answer = run(inputs.x, inputs.w, problem, lnc, **keywords(inputs, request), **more)
    return answer if request.final else (answer, None)


def check(problem: ConvProblem, request: Request, seed: int, *, whole: bool, **more: Any) -> Any:
    """Hold the kernel against the truth, final states exactly where they are x; returns y.

    On `cores` exact where whole inputs stay integers; elsewhere within the bound, the same bits on 1 and 2. Inputs
    stay as they are.
    """
    inputs = draw(np.random.default_rng(seed), problem, request, whole)
    given = [one for one in (inputs.x, inputs.w, inputs.bias, inputs.residual) if one is not None]
    before = [one.tobytes() for one in given]
    right = truth(inputs, problem, request)
    exact = whole and request.exact
    out_dtype, first = request.out(problem), None
    for lnc in cores(problem, request) if exact else (1, 2):
        found, final = call(inputs, problem, request, lnc, **more)
        assert found.dtype == DTYPES[out_dtype]
        if exact:
            assert_exact(found, right.y, out_dtype)
        else:
            assert_within_limit(found, right.y, right.limit)
        first = (found, final) if first is None else first
        assert exact or same_bits(found, first[0])
        assert_final(final, first[1], right, problem, request)
    assert [one.tobytes() for one in given] == before
    return first[0]


def assert_final(final: Any, first: Any, right: Truth, problem: ConvProblem, request: Request) -> None:
    """A final state is the same on all cores, and that of the truth; what a product or an activation rounds is within
    its bound."""
    if not request.final:
        return
    assert same_bits(final, first)
    if request.has_prologue or "G" in (request.chunks or ""):
        assert_within_limit(final, right.final, right.final_limit)
    else:
        assert same_bits(final, np.ascontiguousarray(right.final.astype(DTYPES[problem.dtype])))


def kernel_view(problem: ConvProblem, request: Request = PLAIN, strict_nonfinite: bool = False) -> tuple[Any, Any]:
    """(Geometry, Options) as the public kernel reads them from its arguments."""
    x = SimpleNamespace(shape=x_shape(problem, request), dtype=NL[problem.dtype])
    geometry, _ = read_geometry(
        x, SimpleNamespace(shape=problem.filter_shape, dtype=NL[problem.dtype]),
        (problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation), (problem.C, 1),
        (None, None, None), problem.transposed, request.chunks,
    )  # fmt: skip
    shapes = {"channel": (problem.C,), "image": (problem.N, problem.C)}
    numbers = [
        one and SimpleNamespace(shape=shapes[one], dtype=nl.float32) for one in (request.x_scale, request.x_shift)
    ]
    geometry, _ = with_prologue(geometry, x, *numbers, request.x_activation)
    itemsize = DTYPES[request.out(problem)].itemsize
    added = request.bias, request.residual, request.residual_position
    epilogue = read_epilogue(request.activation, *added, itemsize, geometry.chunks)
    return geometry, Options(epilogue=epilogue, state=request.state, strict_nonfinite=strict_nonfinite)


def reason_to_refuse(
    algorithm: str,
    problem: ConvProblem,
    request: Request = PLAIN,
    *,
    strict_nonfinite: bool = False,
    config: Any = None,
) -> str:
    """What `dispatch.unsupported_reason` says to this call; "" if the algorithm does it."""
    geometry, options = kernel_view(problem, request, strict_nonfinite)
    return unsupported_reason(algorithm, geometry, options, config)


def refused(algorithm: str, problem: ConvProblem, request: Request = PLAIN, **more: Any) -> str:
    """The reason why an algorithm refuses, "" if it does not; where it does, the kernel says the very same.

    `more` is strict_nonfinite and config.
    """
    reason = reason_to_refuse(algorithm, problem, request, **more)
    for lnc in (1, 2) if reason != "" else ():
        inputs = draw(np.random.default_rng(0), problem, request, whole=True)
        with pytest.raises(KernelAssertionError, match=re.escape(reason)):
            call(inputs, problem, request, lnc, algorithm=algorithm, **more)
    return reason


def stored(canonical: Any, perm: Any) -> Any:
    """The array whose transpose(perm) is `canonical`."""
    return np.ascontiguousarray(np.transpose(canonical, np.argsort(perm)))


def check_stored(
    problem: ConvProblem, request: Request, seed: int, in_perm: Any, kern_perm: Any, out_perm: Any, **more: Any
) -> None:
    """`check` on integers with every tensor in another layout; a residual lies as y does, a state always canonical."""
    inputs = draw(np.random.default_rng(seed), problem, request, whole=True)
    right, residual = truth(inputs, problem, request), inputs.residual
    residual = None if residual is None else np.ascontiguousarray(apply_out_perm(residual, out_perm))
    laid = replace(inputs, x=stored(inputs.x, in_perm), w=stored(inputs.w, kern_perm), residual=residual)
    perms = {"in_perm": in_perm, "kern_perm": kern_perm, "out_perm": out_perm}
    for lnc in cores(problem, request):
        found, final = call(laid, problem, request, lnc, **perms, **more)
        assert_exact(found, apply_out_perm(right.y, out_perm), request.out(problem))
        assert_final(final, final, right, problem, request)
