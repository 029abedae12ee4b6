"""x arrives in one module: no other function of a kernel loads it into SBUF, of any algorithm, layout or precision."""

import sys
from pathlib import Path

import pytest

from nkiconv import ConvProblem
from nkiconv._nki import nisa
from nkiconv.kernels import conv, depthwise_conv1d
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.simulator import execute

ARRIVES = "_prologue"
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


def traced(name, monkeypatch):
    """(the modules that load x, or what comes before it, into SBUF or move it; the records) of a case."""
    algorithm, problem, asked, config = (*CASES[name], *(Asked(), None)[len(CASES[name]) - 2 :])
    found = []

    def watched(issue):
        def issued(**arguments):
            frame = sys._getframe(1)
            while Path(frame.f_code.co_filename).stem == "_dma":
                frame = frame.f_back
            if is_x(arguments["src"].storage.info):
                found.append(Path(frame.f_code.co_filename).stem)
            return issue(**arguments)

        return issued

    for name_of_call in ("dma_copy", "dma_transpose"):
        monkeypatch.setattr(nisa, name_of_call, watched(getattr(nisa, name_of_call)))
    request = Request(problem=problem, asked=asked)
    operation = operation_for(request)
    args, kwargs = operation.arguments(request, algorithm, config)
    return found, execute(operation.kernel[2], args, kwargs, trace_only=True)


def is_x(info):
    """Whether a storage is x or what comes before it."""
    return info.name in ("img_ref", "initial_frames", "initial_state")


@pytest.mark.parametrize("name", CASES)
def test_only_one_module_loads_x(name, monkeypatch):
    """Every read of x is a DMA that is seen here, and what needs a copy or final planes loads x elsewhere for them."""
    found, execution = traced(name, monkeypatch)
    assert found
    assert set(found) <= {ARRIVES} | MOVES
    assert (ARRIVES in found) != ("relayout" in found)
    assert len(found) == sum(is_x(read.info) for one in execution.instructions for read in one.reads)


def test_every_algorithm_is_tried():
    assert {case[0] for case in CASES.values()} >= {*conv.ALGORITHMS, *depthwise_conv1d.ALGORITHMS}
