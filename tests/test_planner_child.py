"""The planner's process: the same plans and errors as in this one, one process for all, which ends as it should."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nkiconv import cases
from nkiconv.errors import FileFormatError, NkiconvError, PlanningError, UnsupportedError
from nkiconv.planner import Asked, Request, child, entry
from nkiconv.simulator.profiling.settings import ignore

pytestmark = pytest.mark.simulator_only
REQUEST = Request(
    problem=cases.get("short").problem,
    lnc=1,
    asked=Asked(bias=True, activation="silu"),
    constants=(("scalar.ns_per_elem", 1.5),),
    algorithms=("vector", "update"),
)


def search(request=REQUEST, advance=ignore):
    return child.search(request, wide=False, advance=advance)


@pytest.fixture(autouse=True, scope="module")
def ended():
    """No test's process outlives this file."""
    yield
    child.stop()


def test_the_same_plan_and_progress_as_here(plans):
    there, here = [], []
    found = search(advance=lambda *told: there.append(told))
    assert found == entry.answer(REQUEST, use_cache=False, advance=lambda *told: here.append(told))
    assert there == here != []
    assert not plans.exists()


def test_the_same_errors_and_one_process():
    refused = Request(problem=REQUEST.problem, algorithms=("dot",), asked=Asked(strict_nonfinite=True))
    several = Request(problem=REQUEST.problem, lnc=3, algorithms=("none", "nothing"))
    search()
    first = child._process._popen.pid
    for request in (refused, several):
        errors = []
        for ask in (search, lambda one: entry.answer(one, use_cache=False)):
            with pytest.raises(NkiconvError) as caught:
                ask(request)
            errors.append((type(caught.value), str(caught.value), caught.value.violations))
        assert errors[0] == errors[1]
        assert errors[0][0] is UnsupportedError
    search()
    assert child._process._popen.pid == first


def test_a_search_that_is_broken_off_ends_its_process():
    def advance(_what, _share):
        raise KeyboardInterrupt

    search()
    process = child._process
    with pytest.raises(KeyboardInterrupt):
        search(advance=advance)
    assert process.ended
    assert child._process is None
    search()


def test_a_process_that_ended_meanwhile_is_started_again():
    search()
    child._process._popen.kill()
    child._process._popen.wait()
    search()


def test_one_that_cannot_start(monkeypatch):
    child.stop()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(
        PlanningError, match=r"^the planner's process cannot start \(FileNotFoundError: .*/no/such/python"
    ):
        search()


def test_what_it_prints_is_no_reply(monkeypatch, tmp_path):
    """A kernel, or whatever it imports, may print."""
    (tmp_path / "chatty.py").write_text(
        "import runpy, nkiconv.planner.entry as entry\n"
        "answer = entry.answer\n"
        "entry.answer = lambda *a, **b: print('chat', flush=True) or answer(*a, **b)\n"
        "runpy.run_module('nkiconv.planner.serve', run_name='__main__')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "MODULE", "chatty")
    child.stop()
    assert search().algorithm
    child.stop()


def test_an_error_of_nobody_is_told(monkeypatch):
    with pytest.raises(PlanningError, match="says OSError, which is no error of nkiconv"):
        raise child._error("OSError", "full", [])
    assert isinstance(child._error("FileFormatError", "empty", ["empty"]), FileFormatError)


PARENT = """
import os
from nkiconv import cases
from nkiconv.planner import Request, child

def advance(what, share):
    print(child._process._popen.pid, flush=True)
    os.kill(os.getpid(), 9)

child.search(Request(problem=cases.get("short").problem), wide=False, advance=advance)
"""


@pytest.mark.slow
def test_it_ends_with_the_process_that_asks():
    """Which is killed in a search."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PARENT], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    deadline = time.monotonic() + 60
    while alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(done.stdout))


def alive(pid):
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
