"""`examples/conv2d/`: values of the reference kernel and of each step, and what they refuse; the page's algorithms;
`examples/training_layers.py`: the table of docs/training.md.
"""

import importlib
import re
import sys

import numpy as np
import pytest
from commands import ROOT, ran
from tolerances import assert_exact, integer_inputs

import nkiconv
from nkiconv import reference
from nkiconv.lint import lint
from nkiconv.planner.operations import OPERATIONS
from nkiconv.problem import ConvProblem

pytestmark = pytest.mark.simulator_only
FOLDER, PAGE = ROOT / "examples" / "conv2d", ROOT / "docs" / "tensor_engine.md"
KERNELS = ("weight_stationary", "k_packing", "m_packing", "polyphase", "activation_stationary")


@pytest.fixture(scope="module")
def example():
    """The modules of the folder, by name."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        with nkiconv.simulator.install():
            found = {name: importlib.import_module(name) for name in KERNELS}
        yield found
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


# why                              x [N, C, H, W]     w [K, C, R, S]    stride  padding  dtype   settings
WEIGHT_STATIONARY = [
    ("padding, all sizes odd", (2, 5, 9, 11), (7, 5, 3, 3), (1, 1), (1, 1), "bf16", {}),
    ("C and K above 128, stride", (1, 130, 9, 13), (133, 130, 3, 2), (2, 3), (0, 1), "bf16", {}),
    ("Q above 512", (1, 3, 4, 700), (4, 3, 2, 3), (1, 1), (0, 0), "fp32", {}),
    ("several bands of x", (1, 256, 80, 60), (8, 256, 3, 3), (2, 2), (1, 1), "bf16", {}),
    ("rows of padding alone", (1, 2, 1, 1), (3, 2, 3, 3), (1, 1), (3, 3), "fp16", {}),
]
K_PACKING = [
    ("a stem", (2, 3, 15, 17), (9, 3, 7, 7), (2, 2), (3, 3), "bf16", {"shifts": 3}),
    ("K above 128; taps beyond all of x", (1, 4, 1, 1), (130, 4, 4, 7), (1, 2), (3, 3), "fp32", {"shifts": 4}),
    ("several bands, Q above 512", (1, 2, 90, 600), (5, 2, 3, 3), (1, 1), (1, 0), "bf16", {"shifts": 3}),
]
M_PACKING = [
    ("RGB", (2, 5, 9, 11), (3, 5, 3, 3), (1, 1), (1, 1), "bf16", {}),
    ("C above 128, stride", (1, 130, 23, 13), (3, 130, 3, 2), (2, 3), (0, 1), "bf16", {}),
    ("4 columns of taps, Q above 512", (1, 3, 4, 700), (4, 3, 2, 4), (1, 1), (0, 0), "fp32", {}),
    ("a full slot", (1, 3, 40, 20), (32, 3, 4, 1), (1, 1), (2, 3), "fp32", {}),
]
# w [C, K, R, S]
POLYPHASE = [
    ("C and K above 128", (1, 130, 4, 5), (130, 133, 4, 3), (2, 2), (1, 1), "bf16", {}),
    ("phases of unequal taps", (3, 4, 5, 6), (4, 9, 5, 7), (3, 2), (2, 3), "fp32", {}),
    ("a phase above 512 columns", (1, 2, 2, 600), (2, 3, 2, 2), (2, 2), (0, 1), "bf16", {}),
]
ACTIVATION_STATIONARY = [
    ("padding, all sizes odd", (2, 5, 9, 11), (7, 5, 3, 3), (1, 1), (1, 1), "bf16", {}),
    ("C and K above 128, stride", (1, 130, 9, 13), (133, 130, 3, 2), (2, 3), (0, 1), "bf16", {}),
    ("W above 128, K above 512", (1, 3, 4, 300), (600, 3, 2, 3), (1, 1), (0, 0), "fp32", {}),
    ("rows of padding alone", (1, 2, 1, 1), (3, 2, 3, 3), (1, 1), (3, 3), "fp16", {}),
]
TABLES = (WEIGHT_STATIONARY, K_PACKING, M_PACKING, POLYPHASE, ACTIVATION_STATIONARY)
ROWS = [
    pytest.param(name, *row[1:], id=f"{name}: {row[0]}")
    for name, rows in zip(KERNELS, TABLES, strict=True)
    for row in rows
]


def problem_of(name, x, w, stride, padding, dtype):
    """The ConvProblem of a row."""
    (N, C, H, W), (R, S) = x, w[2:]
    pads = tuple((one, one) for one in padding)
    if name == "polyphase":
        fields = {"N": N, "C": C, "H": H, "W": W, "K": w[1], "taps": (R, S), "dtype": dtype}
        plain = {"output_padding": (0, 0), "dilation": (1, 1)}
        return ConvProblem.transpose(stride=stride, padding=pads, **plain, **fields)
    return ConvProblem(N=N, C=C, H=H, W=W, K=w[0], R=R, S=S, stride=stride, padding=pads, dtype=dtype)


def call(example, name, x, w, stride, padding, settings, lnc):
    """A kernel's y as NCHW, of x as NCHW and w with its channels first."""
    kernel = example[name].conv_transpose2d if name == "polyphase" else example[name].conv2d
    channels_last = name == "activation_stationary"
    if channels_last:
        x, w = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    y = np.asarray(nkiconv.simulate(kernel[lnc])(x, w, stride=stride, padding=padding, **settings))
    return y.transpose(0, 3, 1, 2) if channels_last else y


@pytest.mark.cover(12)
@pytest.mark.parametrize(("name", "x", "w", "stride", "padding", "dtype", "settings"), ROWS)
def test_integers_are_exact_on_one_core_and_two(example, name, x, w, stride, padding, dtype, settings):
    rng = np.random.default_rng(46)
    problem = problem_of(name, x, w, stride, padding, dtype)
    x, w = integer_inputs(rng, x, dtype), integer_inputs(rng, w, dtype)
    expected = reference.conv_ref(x, w, problem)
    for lnc in (1, 2):
        assert_exact(call(example, name, x, w, stride, padding, settings, lnc), expected, dtype)


@pytest.mark.parametrize("name", KERNELS)
# what is wrong; x, w, arguments; the error
@pytest.mark.parametrize(("what", "error"), [
    ({"groups": 2}, r"groups=2 is not supported"),
    ({"stride": (0, 1)}, r"stride=\(0, 1\); must be at least 1"),
    ({"padding": (0, -1)}, r"padding=\(0, -1\); must be at least 0"),
    ({"channels": 5}, r"w has 5 input channels, x has 4"),
    ({"dtype": "fp32"}, r"w is float32, x is bfloat16; they must be of one dtype"),
    ({"outputs": 16384}, r"w takes 294912 bytes per partition of SBUF, more than 98304; split K"),
])  # fmt: skip
def test_every_kernel_refuses_by_name(example, name, what, error):
    what = dict(what)
    C, K, dtype = what.pop("channels", 4), what.pop("outputs", 3), what.pop("dtype", "bf16")
    w = {"polyphase": (C, K, 3, 3), "activation_stationary": (3, 3, C, K)}.get(name, (K, C, 3, 3))
    x = (1, 8, 8, 4) if name == "activation_stationary" else (1, 4, 8, 8)
    kernel = example[name].conv_transpose2d if name == "polyphase" else example[name].conv2d
    with pytest.raises(AssertionError, match=error):
        nkiconv.profile(kernel[2])(nkiconv.spec(x, "bf16"), nkiconv.spec(w, dtype), **what)


def test_the_ladder_is_short_and_compiles():
    for name in KERNELS:
        lines = len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines())
        assert lines <= (150 if name == "weight_stationary" else 200), f"{name}.py has {lines} lines"
    assert lint([FOLDER], nki="0.7", strict=True).findings == ()


def test_the_page_names_every_algorithm():
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.split("## nkiconv's algorithms by axes")[1], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    known = {name for operation in OPERATIONS.values() for name in operation.algorithms}
    assert named == known, "docs/tensor_engine.md: the tables by axes have a row per algorithm; add or delete rows"


@pytest.mark.slow
def test_a_row_is_that_of_the_page(capsys):
    assert ran("examples/training_layers.py", "--only", "kda") == 0
    titles, ruler, row = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").splitlines()
    assert titles in page
    assert row in page
    assert set(ruler) == set("|-: ")
