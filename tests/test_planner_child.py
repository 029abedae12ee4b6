"""The planner's process: the same plans and errors as in this one, one process for all, which ends as it should; and
what a search traces of problems whose kernels are long: instructions are counted, not seconds.
"""

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import process

from nkiconv import ConvProblem, cases, plan
from nkiconv.errors import FileFormatError, NkiconvError, PlanningError, UnsupportedError
from nkiconv.planner import Asked, Request, child, entry, search, timekeeper
from nkiconv.planner.plan import ESTIMATED, Plan
from nkiconv.simulator.profiling.settings import ignore
from nkiconv.simulator.program import Program

pytestmark = pytest.mark.simulator_only
REQUEST = Request(
    problem=cases.get("short").problem,
    lnc=1,
    asked=Asked(bias=True, activation="silu"),
    constants=(("scalar.ns_per_elem", 1.5),),
    algorithms=("vector", "update"),
)


def searched(request=REQUEST, advance=ignore):
    return child.search(request, wide=False, advance=advance)


@pytest.fixture(autouse=True, scope="module")
def ended():
    """No test's process outlives this file."""
    yield
    child.stop()


def test_the_same_plan_and_progress_as_here(plans):
    there, here = [], []
    found = searched(advance=lambda *told: there.append(told))
    assert found == entry.answer(REQUEST, use_cache=False, advance=lambda *told: here.append(told))
    assert there == here != []
    assert not plans.exists()


def test_the_same_errors_and_one_process():
    refused = Request(problem=REQUEST.problem, algorithms=("dot",), asked=Asked(strict_nonfinite=True))
    several = Request(problem=REQUEST.problem, lnc=3, algorithms=("none", "nothing"))
    searched()
    first = child._process._popen.pid
    for request in (refused, several):
        errors = []
        for ask in (searched, lambda one: entry.answer(one, use_cache=False)):
            with pytest.raises(NkiconvError) as caught:
                ask(request)
            errors.append((type(caught.value), str(caught.value), caught.value.violations))
        assert errors[0] == errors[1]
        assert errors[0][0] is UnsupportedError
    searched()
    assert child._process._popen.pid == first


def test_a_search_that_is_broken_off_ends_its_process():
    def advance(_what, _share):
        raise KeyboardInterrupt

    searched()
    process = child._process
    with pytest.raises(KeyboardInterrupt):
        searched(advance=advance)
    assert process.ended
    assert child._process is None
    searched()


def test_a_process_that_ended_meanwhile_is_started_again():
    searched()
    child._process._popen.kill()
    child._process._popen.wait()
    searched()


def test_one_that_cannot_start(monkeypatch):
    child.stop()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(
        PlanningError, match=r"^the planner's process cannot start \(FileNotFoundError: .*/no/such/python"
    ):
        searched()


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
    assert searched().algorithm
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
    done = process("-W", "error", "-c", PARENT)
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


SAME = ((1, 1), (1, 1))
LONG_PROBLEMS = {
    "depthwise": ConvProblem(N=20000, C=20000, W=16, S=4, groups=20000, padding=((0, 0), (3, 0))),
    "video": ConvProblem(N=64, C=512, H=128, W=128, K=512, R=3, S=3, padding=SAME),
    "one channel": ConvProblem(N=64, C=1, H=256, W=256, K=1, R=5, S=5, padding=((2, 2), (2, 2))),
}


@pytest.mark.cover(0, keep=["depthwise-0.1"])
@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LONG_PROBLEMS)
def test_a_search_traces_no_more_than_its_budget(monkeypatch, name, share):
    """Of a budget that is a tenth of its own, and its own."""
    traced, trace = [], timekeeper.trace

    def counted(*asked, **limits):
        found = trace(*asked, **limits)
        traced.append(found.instructions)
        return found

    monkeypatch.setattr(timekeeper, "trace", counted)
    limits = [(timekeeper, one) for one in ("BUDGET", "WHOLE_INSTRUCTIONS", "VERIFIED_INSTRUCTIONS")]
    for module, limit in (*limits, (search, "WHOLE_INSTRUCTIONS")):
        monkeypatch.setattr(module, limit, int(share * getattr(module, limit)))
    found = plan(LONG_PROBLEMS[name], use_cache=False)
    verified = search.VERIFIED * timekeeper.VERIFIED_INSTRUCTIONS
    assert sum(traced) <= timekeeper.BUDGET + timekeeper.WHOLE_INSTRUCTIONS + verified
    assert found.whole or found.extrapolated_from > 0
    assert found.explain()


def upsampled(size, taps, channels=1, dtype="bf16"):
    """A request for a transposed row whose windows overlap by a half."""
    problem = ConvProblem.transpose(
        N=1, C=channels, K=channels, W=size, stride=(1, taps // 2), padding=((0, 0),) * 2, output_padding=(0, 0),
        dilation=(1, 1), taps=(1, taps), dtype=dtype,
    )  # fmt: skip
    return Request(problem=problem, operation="conv_transpose2d")


#: What quick plans once took minutes for, and what the plan says of the part that was timed, or why nothing runs.
QUICK = {
    "many phases": (upsampled(50_000, 640), "of 16000320 columns of outputs, as the whole has more than"),
    "many filters": (Request(problem=ConvProblem(N=1, C=65_536, K=65_536, W=1, S=1)), "of 65536 K, as the whole"),
    "long row": (upsampled(100, 200_000), "per partition of SBUF"),
}


@pytest.mark.cover(0, keep=["long row"])
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_plan_records_so_many_instructions(monkeypatch, quickly, name):
    """Floors and traces that are given up counted in."""
    recorded, record = [0], Program.record

    def counted(*asked, **options):
        recorded[0] += 1
        return record(*asked, **options)

    monkeypatch.setattr(Program, "record", counted)
    request, words = QUICK[name]
    if name == "long row":
        with pytest.raises(UnsupportedError, match=words):
            entry.answer(request, quick=True, use_cache=False)
        assert recorded[0] == 0
        return
    found = entry.answer(request, quick=True, use_cache=False)
    assert 0 < recorded[0] < 100_000
    assert (found.effort, found.whole) == (ESTIMATED, False)
    assert Plan.from_json(found.to_json()) == found
    for text in (str(found), found.explain()):
        assert words in " ".join(text.split())


#: Short enough to be timed whole, by the extent that parts have less of.
SAMPLED = {
    "columns": upsampled(10_000, 64, 2),
    "images": Request(problem=ConvProblem(N=512, C=64, H=14, W=14, K=64, R=3, S=3, padding=SAME)),
    "filters": Request(problem=ConvProblem(N=1, C=512, H=7, W=7, K=8192, R=3, S=3, padding=SAME)),
    "groups": Request(problem=ConvProblem(N=8, C=2048, K=2048, H=28, W=28, R=3, S=3, groups=128, padding=SAME)),
    "depthwise": Request(problem=ConvProblem(N=8, C=2048, W=4000, S=4, groups=2048, padding=((0, 0), (3, 0)))),
    # cut along rows, planes are packed anew: the extrapolated time was 1.7 times that of the whole; a tile has pixels
    # of several planes, so a part needs some 32 planes
    "planes of a filter gradient": Request(problem=ConvProblem(
        N=1, C=128, K=64, D=96, T=1, H=64, W=64, R=3, S=3, stride=(1, 1, 1), padding=((0, 0), *SAME)).toward("wgrad")),
}  # fmt: skip


@pytest.mark.cover(0, keep=["depthwise"])
@pytest.mark.parametrize("name", SAMPLED)
def test_parts_that_a_quick_plan_traces_foretell_the_time(monkeypatch, name):
    whole = entry.answer(SAMPLED[name], quick=True, use_cache=False)
    monkeypatch.setattr(search, "ESTIMATE_INSTRUCTIONS", (whole.instructions // 2, whole.instructions // 2))
    part = entry.answer(SAMPLED[name], quick=True, use_cache=False)
    assert whole.whole
    assert not part.whole
    assert "as the whole has more than" in " ".join(part.explain().split())
    assert (part.algorithm, part.config) == (whole.algorithm, whole.config)
    assert part.modelled_us == pytest.approx(whole.modelled_us, rel=0.05)


def test_a_quick_plan_of_what_has_no_short_part_is_refused(monkeypatch):
    request = Request(problem=ConvProblem(N=64, C=64, H=14, W=14, K=64, R=3, S=3, padding=SAME))
    monkeypatch.setattr(search, "ESTIMATE_INSTRUCTIONS", (10, 10))
    with pytest.raises(UnsupportedError, match=r"more than 10 instructions, which a quick plan does not trace; search"):
        entry.answer(request, quick=True, use_cache=False)
