"""Launches on a device: the LNC degree, kernels without a grid, hints, and arguments of Python's own types; the tests
of `tests/aws`, in a process where stand-ins play AWS's NKI and torch-neuronx.
"""

import re
import types
import warnings

import numpy as np
import pytest
from commands import ROOT, process

from nkiconv import LaunchWarning, launches, simulator
from nkiconv.api.conv import run_conv
from nkiconv.api.epilogue import Epilogue
from nkiconv.errors import UnsupportedError
from nkiconv.problem import ConvProblem

DEGREE, FLAGS, TARGET = "NEURON_LOGICAL_NC_CONFIG", "NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE"


@pytest.fixture
def setting(monkeypatch):
    """Sets variables of the environment, and unsets those that are None."""

    def set_(**values):
        for name, value in values.items():
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)

    return set_


# NEURON_LOGICAL_NC_CONFIG, NEURON_CC_FLAGS, what the launch says: its cores, or of what the refusal speaks
@pytest.mark.parametrize(("variable", "flags", "asked", "expected"), [
    (None, None, None, 2),
    (None, "--lnc=2", 2, 2),
    ("1", "-O1 --logical-nc-config 1", None, 1),
    ("1", " '-lnc=1' --target trn2", None, 1),
    ("1", "--lnc=2 --lnc=1", None, 1),
    ("2", "--lnc-like=1", None, 2),
    (None, "--lnc=1", None, "unset, taken for 2; --lnc in NEURON_CC_FLAGS is 1; the launch's LNC degree is unset: "),
    ("1", None, 2, "NEURON_LOGICAL_NC_CONFIG is 1; --lnc in NEURON_CC_FLAGS is unset; the launch's LNC degree is 2: "),
    ("2", "--lnc=1", 2, "NEURON_LOGICAL_NC_CONFIG is 2; --lnc in NEURON_CC_FLAGS is 1; the launch's LNC degree is 2: "),
    ("4", None, None, "^NEURON_LOGICAL_NC_CONFIG='4': must be 1 or 2"),
    ("2", "--lnc=two", None, "^--lnc in NEURON_CC_FLAGS='two': must be 1 or 2"),
])  # fmt: skip
def test_degrees(setting, variable, flags, asked, expected):
    setting(**{DEGREE: variable, FLAGS: flags})
    if isinstance(expected, int):
        assert launches.degree(asked) == expected
        return
    with pytest.raises(UnsupportedError, match=expected) as caught:
        launches.degree(asked)
    assert "must be 1 or 2" in str(caught.value) or "NCC_EVRF066" in str(caught.value)


@pytest.mark.parametrize("variable", [None, "1", "2"])
@pytest.mark.parametrize("lnc", [1, 2])
def test_kernels_with_and_without_a_grid(setting, variable, lnc):
    """Without one the variable decides, and kernels take 1 where it is unset."""
    setting(**{DEGREE: variable})
    assert launches.on_cores({lnc: "launched"}, lnc) == "launched"
    bare = types.SimpleNamespace()
    if (variable or "1") == str(lnc):
        assert launches.on_cores(bare, lnc) is bare
    else:
        with pytest.raises(UnsupportedError, match=rf"{DEGREE} is .*: must be {lnc}, .* take no grid; set it to {lnc}"):
            launches.on_cores(bare, lnc)


@pytest.fixture
def unadvised():
    launches.advise_target.cache_clear()
    yield
    launches.advise_target.cache_clear()


@pytest.mark.usefixtures("unadvised")
@pytest.mark.parametrize("target", [None, "trn2"])
def test_the_hint_comes_once_a_process_where_no_target_is_set(setting, target):
    setting(**{TARGET: target})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            launches.advise_target()
    assert [one.category for one in told] == [LaunchWarning] * (target is None)
    assert all(re.match(rf"{TARGET}: is unset, .* about 52 ms .*; set it to trn2", str(one.message)) for one in told)


@pytest.mark.simulator_only
def test_numbers_of_a_launch_are_pythons(monkeypatch):
    given = {}

    def execute(launched, args, kwargs, *, trace_only):
        given.update(kwargs)
        return types.SimpleNamespace(outputs=residual, instructions=(), sbuf_peak_bytes=0, psum_peak_bytes=0)

    monkeypatch.setattr(simulator, "execute", execute)
    x, w, residual = (np.ones(shape, np.float32) for shape in ((1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 6, 6)))
    problem = ConvProblem(N=1, C=8, H=8, W=8, K=8, R=3, S=3, dtype="fp32")
    epilogue = Epilogue(residual=residual, beta=np.float32(0.5))
    run_conv(x, w, problem, epilogue=epilogue, algorithm="implicit_gemm", config=(("warmup", np.int64(0)),))
    assert (given["algorithm"], given["residual"] is residual) == ("implicit_gemm", True)
    assert {type(value) for _, value in given["config"]} <= {int, str, bool}
    assert (dict(given["config"])["warmup"], type(given["beta"])) == (0, float)


#: The last one makes a device of a name that stays one for the rest of a process.
FILES = ("test_compiled.py", "test_compile_stages.py", "test_launches.py", "test_device.py")


@pytest.mark.simulator_only
@pytest.mark.timeout(900)  # it is all these files, of whose tests pytest there times each
def test_under_aws_nki(request):
    pytest.importorskip("torch")
    tests = ROOT / "tests"
    assert set(FILES) == {path.name for path in tests.glob("aws/test_*.py")}
    words = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", request.config.option.markexpr
    files, front = [tests / "aws" / name for name in FILES], [tests / "standins" / "aws", tests / "aws"]
    done = process(*words, *files, front=front, cwd=ROOT, NKICONV_NKI="aws")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
