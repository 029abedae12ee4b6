"""x arrives in one module and sums leave in one function, of any algorithm, layout and precision: a prologue and an
epilogue have one place each."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from nkiconv import ConvProblem
from nkiconv._nki import nisa
from nkiconv.kernels import depthwise_conv1d
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.schedules.conv_algorithms import ALGORITHMS
from nkiconv.simulator import ArraySpec, execute

ARRIVES = "_prologue"
#: Names of x and of what comes before it.
X = ("img_ref", "initial_frames", "initial_state")
#: What only moves x to other places in HBM, by name of the module: copies as NCHW, the next call's frames or state.
MOVES = {"relayout", "frames", "state"}


def _image(**fields):
    return ConvProblem(**({"N": 2, "C": 16, "H": 9, "W": 10, "R": 3, "S": 3, "padding": ((1, 1), (1, 1))} | fields))


def _volume(**fields):
    whole = {"T": 3, "D": 5, "padding": ((1, 1), (1, 1), (1, 1))}
    return _image(**(whole | fields))


def _rows(**fields):
    return ConvProblem(**({"N": 2, "C": 20, "W": 70, "S": 4, "padding": ((0, 0), (3, 0)), "groups": 20} | fields))


FP8 = (("product", "fp8_pairs"),)
PLANES = (("planes", "channels"),)
CASES = {
    "gemm": ("implicit_gemm", _image(C=40, K=20)),
    "gemm NHWC": ("implicit_gemm", _image(C=40, K=20, layout="NHWC")),
    "gemm strided fp32": ("implicit_gemm", _image(C=3, K=20, stride=(2, 2), dtype="fp32")),
    "gemm bf16 of fp32": ("implicit_gemm", _image(C=40, K=20, dtype="fp32", layout="NHWC"), Asked(precision="bf16")),
    "gemm fp16x3": ("implicit_gemm", _image(C=40, K=20, dtype="fp32"), Asked(precision="fp16x3")),
    "gemm fp8 pairs": ("implicit_gemm", _image(C=256, K=20, dtype="fp8_e4m3"), Asked(), FP8),
    "gemm fp8 staged": ("implicit_gemm", _image(C=16, K=20, W=16, dtype="fp8_e4m3"), Asked(), FP8),
    "gemm fp8 NHWC": ("implicit_gemm", _image(C=32, K=20, dtype="fp8_e4m3", layout="NHWC")),
    "gemm frames": ("implicit_gemm", _volume(K=20, padding=((0, 0), (1, 1), (1, 1))), Asked(initial_frames=2)),
    "gemm frames out": ("implicit_gemm", _volume(K=20, padding=((0, 0), (1, 1), (1, 1))), Asked(return_final_frames=2)),
    "gemm planes": ("implicit_gemm", _volume(C=4, K=20), Asked(), PLANES),
    "gemm winograd": ("implicit_gemm", _volume(K=20), Asked(precision="winograd")),
    "gemm winograd NDHWC": ("implicit_gemm", _volume(K=20, layout="NDHWC"), Asked(precision="winograd")),
    "stacked": ("stacked", _image(C=3, K=20)),
    "stacked NHWC": ("stacked", _image(C=3, K=20, layout="NHWC")),
    "stacked depthwise": ("stacked", _image(K=16, groups=16)),
    "stacked planes": ("stacked", _volume(C=2, K=20), Asked(), PLANES),
    "groups": ("weight_stationary", _image(C=32, K=32, groups=4)),
    "transposed": ("weight_stationary", _image(C=20, K=12, lhs_dilation=(2, 2), padding=((1, 2), (1, 2)))),
    "few outputs": ("weight_stationary", _image(C=40, K=3)),
    "few outputs of volumes": ("weight_stationary", _volume(C=40, K=3)),
    "pixels": ("activation_stationary", _image(C=40, K=20, layout="NHWC")),
    "pixels frames": (
        "activation_stationary",
        _volume(C=40, K=20, layout="NDHWC", padding=((0, 0), (1, 1), (1, 1))),
        Asked(initial_frames=2),
    ),
    "rows": ("activation_stationary", _volume(K=3)),
    "blocks": ("activation_stationary", _image(K=16, groups=16, R=7, S=7, padding=((3, 3), (3, 3)))),
    "blocks NHWC": (
        "activation_stationary",
        _image(K=16, groups=16, R=7, S=7, padding=((3, 3), (3, 3)), layout="NHWC"),
    ),
    "mixed": ("mixed", _rows()),
    "mixed state": ("mixed", _rows(), Asked(initial_state=True, return_final_state=True)),
    "mixed between zeros": ("mixed", _rows(lhs_dilation=(1, 2))),
    "mixed tap by tap": ("mixed", _rows(rhs_dilation=(1, 300), W=1300)),
    "vector": ("vector", _rows(dtype="fp32")),
    "banded": ("banded", _rows(S=40, W=200, padding=((0, 0), (39, 0)))),
    "banded state": ("banded", _rows(S=40, W=200, padding=((0, 0), (39, 0))), Asked(initial_state=True)),
    "dot": ("dot", _rows(S=200, W=203, padding=((0, 0), (0, 0)))),
    "update": ("update", _rows(N=64, W=1)),
    "update state": ("update", _rows(N=64, W=1), Asked(initial_state=True)),
    "update few": ("update", _rows(N=2, W=1), Asked(), (("engine", "vector"),)),
}


def issuer():
    """The module whose function gives a DMA of `_dma`."""
    frame = sys._getframe(2)
    while Path(frame.f_code.co_filename).stem == "_dma":
        frame = frame.f_back
    return Path(frame.f_code.co_filename).stem


def is_x(info):
    """Whether a storage is x or what comes before it."""
    return info.name in X


def prologue_of(x):
    """Something that makes zeros of padding another number, exact in every dtype."""
    return (2 * x.astype(np.float32) + 1).astype(x.dtype)


def case_of(name):
    return (*CASES[name], *(Asked(), None)[len(CASES[name]) - 2 :])


def call_of(problem, asked, algorithm, config):
    """(kernel on two cores, its arguments, its keyword arguments): arrays as their shapes and dtypes."""
    request = Request(problem=problem, asked=asked)
    operation = operation_for(request)
    return operation.kernel[2], *operation.arguments(request, algorithm, config)


def data_of(specs, kwargs):
    """Arguments and keyword arguments with integers as arrays."""
    rng = np.random.default_rng(0)

    def filled(one):
        return rng.integers(-1, 2, one.shape).astype(one.dtype) if isinstance(one, ArraySpec) else one

    return tuple(map(filled, specs)), {key: filled(value) for key, value in kwargs.items()}


def result_of(execution):
    """y."""
    return execution.outputs[0] if isinstance(execution.outputs, tuple) else execution.outputs


@pytest.mark.cover(14)
@pytest.mark.parametrize("name", CASES)
def test_x_arrives_in_one_module(name, monkeypatch):
    """Whatever a prologue does to x in the DMAs of that module is done to all of x, once, and not to padding; nothing
    else reads x but what moves it in HBM."""
    algorithm, problem, asked, config = case_of(name)
    kernel, specs, kwargs = call_of(problem, asked, algorithm, config)
    (x, w), before = data_of(specs, kwargs)
    prepared = before | {key: prologue_of(before[key]) for key in X if key in before}
    wanted = result_of(execute(kernel, (prologue_of(x), w), prepared))
    found = []

    def watched(issue):
        def issued(dst, src, **arguments):
            issue(dst=dst, src=src, **arguments)
            module = issuer()
            if is_x(src.storage.info):
                found.append(module)
            if module == ARRIVES:
                dst.storage.write(dst, prologue_of(dst.storage.read(dst)))

        return issued

    for call in ("dma_copy", "dma_transpose"):
        monkeypatch.setattr(nisa, call, watched(getattr(nisa, call)))
    execution = execute(kernel, (x, w), before)
    np.testing.assert_array_equal(result_of(execution), wanted)
    assert set(found) <= {ARRIVES} | MOVES
    assert len(found) == sum(is_x(read.info) for one in execution.instructions for read in one.reads)


def test_every_algorithm_is_tried():
    assert {case[0] for case in CASES.values()} >= {*ALGORITHMS, *depthwise_conv1d.ALGORITHMS}


EPILOGUES = {
    "sums": Asked(),
    "bias relu": Asked(bias=True, activation="relu"),
    "all": Asked(bias=True, activation="silu", residual="post_activation"),
}
#: Rows of volumes take no residual.
CONV = [
    (name, epilogue)
    for name, case in CASES.items()
    for epilogue in EPILOGUES
    if case[0] in ALGORITHMS and (name, epilogue) != ("rows", "all")
]


def is_last(dst):
    """Whether an instruction writes what `evacuate` is to write."""
    frame = sys._getframe(2)
    while Path(frame.f_code.co_filename).stem == "_epilogue":
        if frame.f_code.co_name == "evacuate":
            return dst is frame.f_locals["y_sbuf"]
        frame = frame.f_back
    return False


@pytest.mark.cover(9)
@pytest.mark.parametrize(("name", "epilogue"), CONV)
def test_sums_leave_in_one_function(name, epilogue, monkeypatch):
    """Whatever `evacuate` does to y is done to all of y, once."""
    algorithm, problem, asked, config = case_of(name)
    more = EPILOGUES[epilogue]
    asked = dataclasses.replace(asked, bias=more.bias, activation=more.activation, residual=more.residual)
    kernel, specs, kwargs = call_of(problem, asked, algorithm, config)
    args, before = data_of(specs, kwargs)
    wanted = result_of(execute(kernel, args, before))

    def watched(issue):
        def issued(dst, **arguments):
            issue(dst=dst, **arguments)
            if is_last(dst):
                dst.storage.write(dst, -dst.storage.read(dst))

        return issued

    for call in ("activation", "scalar_tensor_tensor", "tensor_copy", "tensor_scalar", "tensor_tensor"):
        monkeypatch.setattr(nisa, call, watched(getattr(nisa, call)))
    np.testing.assert_array_equal(-result_of(execute(kernel, args, before)), wanted)
