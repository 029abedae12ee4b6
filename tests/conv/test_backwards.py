"""Filters of transposed convolutions that an algorithm reads backwards, as torch stores them: exact, and in no time."""

import numpy as np
import pytest
from tolerances import assert_exact
from transposed import KERNELS, Transposed, check

import nkiconv
from nkiconv._nki import nl
from nkiconv.planner.operations import operation_of
from nkiconv.planner.request import Request
from nkiconv.problem import ConvProblem

STRIDED = Transposed(3, 130, 20, 1, (5, 6), (4, 3), (2, 3), (1, 2), (1, 0), (1, 2))
FOLDED = Transposed(1, 160, 150, 1, (11, 12), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1))
CALLS = {
    "strided": (STRIDED, ()),
    "one tap": (Transposed(2, 130, 150, 1, (4, 5), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)), ()),
    "inputs folded": (FOLDED, (("fold", "inputs"),)),
    "outputs folded": (FOLDED, (("fold", "outputs"),)),
    "both folded": (FOLDED, (("fold", "both"),)),
    "chunk by chunk": (FOLDED, (("fold", "none"), ("order", "chunks"))),
    "jobs of a few channels": (FOLDED, (("shard", "channels"),)),
}
SAME = ((1, 1), (1, 1))


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", CALLS)
def test_one_matmul_a_tap(name, dtype):
    call, settings = CALLS[name]
    check(call, dtype, algorithm="implicit_gemm", config=settings or None)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precision(precision):
    check(STRIDED, "fp32", algorithm="implicit_gemm", precision=precision)


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "activation_stationary"])
@pytest.mark.parametrize("call", [STRIDED, FOLDED, CALLS["one tap"][0]])
def test_channels_side_by_side(call, algorithm):
    for dtype in ("bf16", "fp32"):
        check(call, dtype, last=True, algorithm=algorithm)


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("C", "lanes"), [(64, 1), (64, 2), (40, 2), (130, 1)])
def test_few_outputs(C, lanes, dtype):
    call = Transposed(5, C, 3, 1, (9, 7), (7, 5), (2, 2), (3, 1), (1, 0), (1, 1))
    check(call, dtype, algorithm="weight_stationary", config=(("outputs", 4), ("taps", 2), ("lanes", lanes)))


#: Few inputs, rows stacked: (C, K), taps, padding, dilation.
FEW = {
    "3x3": Transposed(3, 16, 3, 1, (12, 11), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "5x4": Transposed(2, 8, 40, 1, (9, 14), (5, 4), (1, 1), (2, 0), (0, 0), (1, 1)),
    "dilated": Transposed(2, 20, 130, 1, (13, 10), (3, 2), (1, 1), (2, 1), (0, 0), (2, 3)),
    "quadrants": Transposed(1, 4, 32, 1, (20, 9), (7, 7), (1, 1), (3, 3), (0, 0), (1, 1)),
    "one tap": Transposed(1, 21, 50, 1, (8, 9), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
}


@pytest.mark.cover(10)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", FEW)
def test_few_inputs(name, dtype):
    check(FEW[name], dtype, algorithm="stacked")
    for rows, outputs in ((FEW[name].taps[0], 1), (6, 2), (4, 4)):
        sizes = (("rows", rows), ("shifts", 1), ("outputs", outputs), ("apart", min(rows, outputs)))
        check(FEW[name], dtype, algorithm="stacked", config=(*sizes, ("filters", "apart")))


def test_few_inputs_shifted_on_the_chip():
    sizes = (("rows", 8), ("shifts", 2), ("outputs", 2), ("apart", 2), ("filters", "apart"))
    check(FEW["quadrants"], algorithm="stacked", config=sizes)
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match="filters=straight: a rotated filter is reversed"):
        check(FEW["quadrants"], algorithm="stacked", config=(*sizes[:-1], ("filters", "straight")))


GROUPS = {
    "depthwise": Transposed(3, 200, 200, 200, (9, 10), (3, 2), (1, 1), (1, 0), (0, 0), (2, 1)),
    "multiplier": Transposed(2, 70, 140, 70, (6, 7), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "groups of three": Transposed(2, 48, 32, 16, (7, 6), (2, 3), (1, 1), (0, 1), (0, 0), (1, 1)),
    "groups that fill tiles": Transposed(2, 136, 136, 34, (7, 6), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "volumes": Transposed(1, 12, 12, 6, (3, 4, 5), (2, 3, 2), (1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1)),
    "depthwise volumes": Transposed(1, 9, 9, 9, (3, 4, 5), (2, 3, 2), (1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 2, 1)),
}


@pytest.mark.cover(10)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", GROUPS)
def test_groups(name, dtype):
    call = GROUPS[name]
    check(call, dtype, algorithm="weight_stationary")
    if call.C == call.K == call.groups:
        check(call, dtype, algorithm="stacked")
    if name == "depthwise":
        check(call, dtype, algorithm="activation_stationary")


#: Groups too wide to share an M tile, and of volumes, which get a copy.
WIDE_GROUPS = {
    "inputs": Transposed(2, 140, 24, 2, (7, 6), (3, 2), (1, 1), (1, 0), (0, 0), (2, 1)),
    "outputs, stride": Transposed(1, 30, 280, 2, (5, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "one input": Transposed(2, 3, 195, 3, (5, 6), (3, 2), (1, 1), (1, 0), (0, 0), (1, 1)),
    "several tiles of both": Transposed(1, 288, 432, 2, (5, 4), (1, 3), (1, 1), (0, 1), (0, 0), (1, 1)),
    "volumes": Transposed(1, 140, 24, 2, (3, 4, 5), (2, 3, 2), (1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1)),
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", WIDE_GROUPS)
def test_groups_with_tiles_of_their_own(name, dtype):
    for last, shard in ((False, "channels"), (False, "images"), (True, "channels")):
        check(WIDE_GROUPS[name], dtype, last=last, algorithm="implicit_gemm", config=(("shard", shard),))


@pytest.mark.simulator_only
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_wide_filters_are_read_where_they_are(groups):
    problem = ConvProblem(N=1, C=288, H=7, W=7, K=288, R=3, S=3, groups=groups, padding=SAME).toward("dgrad")
    operation, request = operation_of(problem), Request(problem=problem)
    arguments = operation.arguments(request, "implicit_gemm", (("fold", "none"),))
    done = nkiconv.simulator.execute(operation.kernel[2], *arguments, trace_only=True)
    written = {view.info.buffer for one in done.instructions for view in one.writes if "hbm" in view.info.buffer.name}
    assert written == {nl.shared_hbm}  # of y; a copy is private


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("call", [
    GROUPS["depthwise"],
    GROUPS["depthwise volumes"],
    Transposed(2, 300, 300, 300, (7, 6), (3, 3), (2, 2), (1, 1), (1, 0), (1, 1)),
    Transposed(2, 130, 130, 130, (1, 40), (1, 9), (1, 3), (0, 2), (0, 1), (1, 2)),
])  # fmt: skip
def test_channels_with_filters_of_their_own(call, dtype):
    for last in (False, True):
        check(call, dtype, last=last, algorithm="implicit_gemm")
        check(call, dtype, last=last, algorithm="implicit_gemm", config=(("shard", "channels"),))


VOLUMES = {
    "many channels": Transposed(1, 96, 20, 1, (3, 5, 6), (3, 3, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    "all channels": Transposed(2, 192, 40, 1, (4, 3, 7), (2, 3, 3), (1, 1, 1), (0, 1, 0), (0, 0, 0), (1, 1, 1)),
    "few channels": Transposed(1, 3, 40, 1, (3, 7, 9), (3, 3, 2), (1, 1, 1), (2, 1, 0), (0, 0, 0), (1, 1, 1)),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name, dtype):
    check(VOLUMES[name], dtype, algorithm="activation_stationary")
    check(VOLUMES[name], dtype, algorithm="implicit_gemm")


@pytest.mark.parametrize("algorithm", ["stacked", "implicit_gemm"])
def test_planes_of_taps_as_channels_of_a_copy_whose_outputs_are_first(algorithm):
    for dtype in ("bf16", "fp32"):
        check(VOLUMES["few channels"], dtype, algorithm=algorithm, config=(("planes", "channels"),))


def test_no_gradient_without_lhs_dilation_has_filters_turned():
    for changes in ({}, {"groups": 8, "K": 8}, {"stride": (2, 1)}, {"H": 1, "R": 1, "groups": 8, "K": 8}):
        problem = ConvProblem(**{"N": 1, "C": 8, "H": 9, "W": 9, "K": 4, "R": 3, "S": 3} | changes)
        assert problem.toward("dgrad").transposed
    assert not problem.replace(lhs_dilation=(1, 2)).toward("dgrad").transposed


ORDERS = {
    "few outputs": Transposed(2, 8, 5, 1, (3, 4, 5), (1, 3, 2), (1, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "one output": Transposed(2, 8, 1, 1, (3, 4, 5), (1, 2, 3), (1, 2, 3), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "depthwise": Transposed(2, 6, 6, 6, (3, 4, 5), (1, 3, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "groups": Transposed(2, 8, 4, 2, (3, 4, 5), (1, 2, 3), (1, 1, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "planes of taps": Transposed(2, 9, 4, 1, (3, 4, 5), (2, 3, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
}
#: With output channels last among them, and those of which axes of one element have strides of their own.
KERN_PERMS = ((0, 1, 2, 3, 4), (0, 4, 1, 2, 3), (0, 3, 4, 2, 1), (1, 0, 3, 2, 4), (2, 1, 4, 0, 3), (3, 4, 1, 0, 2))


@pytest.mark.cover(12, keep=["depthwise-activation_stationary-in_perm1-out_perm0"])
@pytest.mark.parametrize("out_perm", [(0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (0, 4, 1, 2, 3)])
@pytest.mark.parametrize("in_perm", [(0, 1, 2, 3, 4), (0, 4, 1, 2, 3)])
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "stacked", "activation_stationary", "weight_stationary"])
@pytest.mark.parametrize("name", ORDERS)
def test_every_order_in_memory(name, algorithm, in_perm, out_perm):
    """Exact, or refused by name."""
    call = ORDERS[name]
    x, w = call.inputs("bf16")
    numbers = {"stride": call.stride, "padding": ((0, 0),) * 3, "feature_group_count": call.groups}
    for kern_perm in KERN_PERMS:
        perms = {"in_perm": in_perm, "kern_perm": kern_perm, "out_perm": out_perm}
        x_stored, w_stored = (
            np.ascontiguousarray(one.transpose(np.argsort(perm))) for one, perm in ((x, in_perm), (w, kern_perm))
        )
        try:
            y = KERNELS[3][1](x_stored, w_stored, algorithm=algorithm, **perms, **numbers)
        except nkiconv.simulator.KernelAssertionError:
            continue
        assert_exact(y, call.truth(x, w).transpose(out_perm), "bf16")
