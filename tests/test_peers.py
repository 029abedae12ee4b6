"""The command that runs peers' own tests: with a stand-in checkout of causal-conv1d, and its parts."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from commands import module_of, of_command

FOLDER = Path(__file__).resolve().parent / "peers"
#: As theirs: a module that nobody without CUDA can import, a reference in it, and tests on a device that is not there.
INTERFACE = """
import causal_conv1d_cuda

@causal_conv1d_cuda.decorated
def causal_conv1d_ref(x: "torch.Tensor", weight):
    return F.conv1d(x, weight[:, None], padding=weight.shape[1] - 1, groups=len(weight))[..., : x.shape[2]]

def not_there(x): ...
"""
TESTS = """
import pytest, torch
from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_ref, not_there

@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("width", [2, 3])
def test_values(width, more):
    x, w = torch.ones(1, 4, 6, device="cuda"), torch.ones(4, width, device='cuda')
    assert torch.equal(causal_conv1d_fn(x, w), causal_conv1d_ref(x, w) + more)

def test_lent():
    not_there(torch.ones(1))

@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA")
def test_skipped(): ...

def test_long():
    import time
    time.sleep(60)

def test_repeats():
    assert len(range(10000)) == 3
"""


@pytest.fixture
def checkout(tmp_path):
    for name, text in (("tests/test_causal_conv1d.py", TESTS), ("causal_conv1d/causal_conv1d_interface.py", INTERFACE)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


suite = of_command("peers", "suite")
plugin = of_command("peers", "plugin")


@pytest.fixture
def command(monkeypatch):
    """The command, of its arguments."""
    module = module_of(FOLDER, "__main__", monkeypatch)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["peers", *map(str, arguments)])
        module.main()

    return run


@pytest.mark.slow
@pytest.mark.simulator_only
def test_a_page_of_a_checkout(checkout, command):
    page = checkout / "page.md"
    command(checkout, "--no-tables", "--mode", "simulate", "--lend", "--seconds", "5", "--sample", "0", "--out", page)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")][2:]
    lacking = "causal_conv1d.causal_conv1d_interface.not_there is lacking"
    assert rows == [
        "| test_values | 2 | 2 | 0 | 0 | 2 x assert False |",
        f"| test_lent | 0 | 1 | 0 | 0 | 1 x NotImplementedError: {lacking} |",
        "| test_skipped | 0 | 0 | 1 | 0 |  |",
        "| test_long | 0 | 0 | 0 | 1 |  |",
        "| test_repeats | 1 | 0 | 0 | 0 |  |",
        "| **all** | 3 | 3 | 1 | 1 | |",
    ]


def test_references_are_theirs(plugin, checkout):
    (function,) = plugin.references(checkout / "causal_conv1d").items()
    assert function[0] == "causal_conv1d_ref"
    x = torch.tensor([[[1.0, 2.0, 4.0]]])
    assert torch.equal(function[1](x, torch.tensor([[10.0, 1.0]])), torch.tensor([[[1.0, 12.0, 24.0]]]))


def test_a_sample_has_something_of_each_function(plugin):
    functions = ["many"] * 90 + ["few"] * 2 + ["some"] * 8
    chosen = plugin.sample(functions, 12, 3)
    assert Counter(functions[index] for index in chosen) == {"many": 5, "few": 2, "some": 5}
    assert chosen == plugin.sample(functions, 12, 3)
    assert chosen != plugin.sample(functions, 12, 4)
    assert plugin.sample(functions, 500, 0) == set(range(100))


def test_what_events_say(suite):
    events = [
        {"total": 4},
        {"test": "test_a.py::test_one[2-x]", "outcome": "passed", "message": ""},
        {"test": "test_a.py::test_one[3]", "outcome": "failed", "message": "E1 | E2"},
        {"test": "test_a.py::test_one[4]", "outcome": "failed", "message": "Failed: Timeout (>1.0s)"},
        {"test": "test_a.py", "outcome": "failed", "message": "does not load"},
    ]
    found = suite.collect(iter(events))
    assert found["test_one"] == suite.Found(1, 1, 0, 1, Counter({"E1 / E2": 1}))
    assert found["test_a.py"] == suite.Found(failed=1, reasons=Counter({"does not load": 1}))


def test_what_is_no_checkout_is_refused(command, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(tmp_path)
    assert "give a checkout of causal-conv1d" in capsys.readouterr().err
