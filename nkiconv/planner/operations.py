"""The operation of a request, and the errors of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import rules
from ..dgrad import is_dgrad_of_rows
from ..errors import NkiconvError, UnsupportedError, refused
from ..problem import ConvProblem
from ..schedules.settings import form_unsupported
from ..schedules.tiles import BANK_COLUMNS
from ..simulator.timing import Rates
from .conv import CONVS
from .depthwise_conv1d import DepthwiseConv1d
from .gradients import ConvWeight, DepthwiseConv1dWeight
from .operation import Operation
from .parts import is_rows
from .request import Asked, Config, Request, asked_violations

#: Every operation by its name, the special one first.
OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        *(DepthwiseConv1d(), *CONVS, DepthwiseConv1dWeight()),
        *(ConvWeight("conv2d_weight", False), ConvWeight("conv3d_weight", True)),
    )
}

#: (least, most) taps of depthwise rows for which conv2d is faster, modelled, by direction and layout. In NHWC
#: depthwise_conv1d copies x and y into rows and back (us, conv2d's before the other's, by `plan(problem, operation=)`;
#: N = 2, 256 channels of 1,024: forward 4 taps 10 and 23, 20 taps 25 and 32, 25 taps 36 and 32, 500 taps 718 and 56;
#: gradients 4 taps 10 and 24, 64 taps 33 and 37, 96 taps 45 and 32). Gradients in NCHW: 31 taps 18 and 20, 48 taps 21
#: and 17, 64 taps 24 and 17 (N = 1, 1,024 channels: 48 taps 42 and 50, 64 taps 52 and 51); 4 taps of 2,048 positions:
#: N = 2, 2,048 channels, 75 and 80, N = 1, 1,536, 46 and 34.
CONV2D_TAPS = {("forward", "NHWC"): (1, 20), ("wgrad", "NHWC"): (1, 64), ("wgrad", "NCHW"): (6, 56)}
#: Most elements of x for which conv2d is faster, forward in NHWC, with up to TAPS_OF_FEW taps (256 channels of 512: 31
#: taps 15 and 25, 48 taps 26 and 27).
FEW_ELEMENTS, TAPS_OF_FEW = 2**18, 48
#: Most positions of a row with the least channels, or of all images, and least channels for each, with which
#: depthwise_conv1d is faster, forward in NHWC (4 taps, its us before conv2d's: 128 x 2,048 channels of 2, 8.0 and 10.2;
#: 1 x 2,048 of 16, 7.7 and 9.4, of 32, 12.7 and 9.4; 8 x 4,096 of 4, 11.1 and 15.1, of 8, 19.7 and
#: 15.2; 1 x 8,192 of 48, 23.5 and 26.4).
TOKENS, CHANNELS_OF_TOKENS, ALL_TOKENS, CHANNELS_A_TOKEN = 2, 1024, 48, 96
#: Least taps of gradients in NCHW of several images, whose sums depthwise_conv1d_weight adds in HBM.
TAPS_OF_IMAGES = 3
#: Least positions of all images for which conv2d is faster for gradients in NCHW (N = 1, 9 taps 7.7 and 5.0 with 64,
#: 9.8 and 11.2 with 1,000), and the limit of elements of x from first to last tap for gradients: a bank holds the sums.
CONV2D_POSITIONS, CONV2D_REACH = 256, BANK_COLUMNS


def operation_of(problem: ConvProblem, asked: Asked = Asked()) -> Operation:  # noqa: B008  # frozen
    """The operation of a problem and its arguments: of depthwise rows, else of images or volumes."""
    of_weight = "_weight" if problem.direction == "wgrad" else ""
    if _is_one_row(problem, asked):
        return OPERATIONS[f"depthwise_conv1d{of_weight}"]
    kind = "conv_transpose" if problem.transposed else "conv"
    return OPERATIONS[f"{kind}{'3d' if problem.is_volume else '2d'}{of_weight}"]


def _is_one_row(problem: ConvProblem, asked: Asked) -> bool:
    """Whether depthwise_conv1d supports a problem, and is faster than conv2d or alone supports it."""
    rows = is_rows(problem) and tuple(problem.padding[0]) == (0, 0)
    ones = (problem.stride[0], problem.rhs_dilation[0], problem.lhs_dilation[0]) == (1, 1, 1)
    if not rows or not ones or asked.needs_conv2d or problem.dtype not in OPERATIONS["depthwise_conv1d"].dtypes:
        return False
    if problem.transposed and not is_dgrad_of_rows(problem.lhs_dilation[1], problem.S):
        return False
    layout = "NCHW" if problem.C == 1 else problem.layout
    least, most = CONV2D_TAPS.get((problem.direction, layout), (1, 0))
    if (problem.direction, layout) == ("forward", "NHWC") and problem.N * problem.C * problem.W <= FEW_ELEMENTS:
        most = TAPS_OF_FEW
    is_faster = least <= problem.S <= most
    if problem.direction == "forward" and not (problem.transposed or problem.lhs_dilation[1] > 1 or asked.has_prologue):
        is_faster &= problem.W > TOKENS or problem.C < CHANNELS_OF_TOKENS
        is_faster &= problem.N * problem.W > min(ALL_TOKENS, problem.C // CHANNELS_A_TOKEN)
    if problem.direction == "wgrad":
        is_faster |= problem.N > 1 and TAPS_OF_IMAGES <= problem.S < least
        is_faster &= (problem.S - 1) * problem.rhs_dilation[1] < CONV2D_REACH
        is_faster &= layout == "NHWC" or problem.N * problem.Q >= CONV2D_POSITIONS
    return bool(asked.given("initial_state", "return_final_state", "chunks")) or not is_faster


def operation_for(request: Request) -> Operation:
    """The operation of a request without violations."""
    if request.operation is not None:
        return OPERATIONS[request.operation]
    return operation_of(request.problem, request.asked)


def violations(request: Request) -> Iterator[NkiconvError]:
    """The errors of a request that no algorithm can run."""
    problem, asked, name = request.problem, request.asked, request.operation
    if not isinstance(problem, ConvProblem):
        yield UnsupportedError(
            f"problem: must be a ConvProblem, not {type(problem).__name__}; make one, or take nkiconv.cases.get(name)'s"
        )
        return
    unknown = rules.accepted("operation", name, (None, *OPERATIONS))
    if unknown:
        yield UnsupportedError(unknown)
        return
    found = operation_for(request)
    yield from refused(UnsupportedError, rules.lnc(request.lnc))
    errors = list(asked_violations(asked))
    yield from errors
    yield from found.violations(problem, Asked() if errors else asked)
    yield from problem.launch_violations()
    for one in request.algorithms or ():
        yield from refused(UnsupportedError, rules.algorithm(one, found.algorithms, "algorithms", (), found.name))
    if request.algorithms == ():
        accepted = ", ".join(found.algorithms)
        yield UnsupportedError(f"algorithms=(): must name at least one of {accepted}; or leave it out")


def choice_refusals(
    operation: Operation, problem: ConvProblem, asked: Asked, algorithm: str | None, config: Config, lnc: int
) -> Iterator[NkiconvError]:
    """Why an algorithm does not run a problem; empty if it does, or if the kernel chooses."""
    malformed = list(refused(UnsupportedError, form_unsupported(config)))
    yield from malformed
    if algorithm is not None and not malformed:
        shape = operation.shape(Request(problem=problem, lnc=lnc, asked=asked), Rates())
        reason = operation.unsupported_reason(algorithm, shape, config)
        if reason:
            yield UnsupportedError(reason)


def choice_violations(accepted: tuple[str, ...], algorithm: Any, config: Any) -> Iterator[NkiconvError]:
    """The errors of a call's algorithm, which must be accepted, and of settings without an algorithm."""
    yield from refused(
        UnsupportedError, rules.algorithm(algorithm, accepted), rules.config_has_owner(algorithm, config)
    )
