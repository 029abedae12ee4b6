"""What holds for every test: a clean environment, reproducible random examples, and what the machine lacks."""

import gc
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

#: The one variable of the NKI family that the tests obey: "aws" runs the kernels on AWS's NKI instead of our simulator.
KEPT = "NKICONV_NKI"

#: What tests import and nkiconv runs without. Who lacks one of them still runs the tests that do not import it.
OPTIONAL = (
    "torch", "transformers", "kernels", "safetensors", "matplotlib", "PIL", "sphinx", "myst_parser", "furo", "build",
    "mypy", "expecttest",
)  # fmt: skip
LACKING = tuple(name for name in OPTIONAL if find_spec(name) is None)


def pytest_configure(config):
    """Drop settings of the user's shell that would change results, before any test imports nkiconv; random examples in
    `make test` are a quarter of those of `make test-all` (`draws`)."""
    for name in [*os.environ]:
        if name.startswith(("NEURON_", "NKI")) and name != KEPT:
            del os.environ[name]
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes, each of which imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads of two processes wait for each other: ten times
    count = 25 if "not slow" in config.option.markexpr else 100
    hypothesis.settings.register_profile("nkiconv", deadline=None, derandomize="CI" in os.environ, max_examples=count)
    hypothesis.settings.load_profile("nkiconv")


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Mark rows slow that `cover` does without, and make no tests of slow rows in `make test`, where they are more than
    half of all."""
    yield
    calls, test = metafunc._calls, metafunc.definition  # pytest has no public name for a test's rows
    rows = [] if test.get_closest_marker("slow") else [row for row in calls if not _is_slow(row)]
    if rows and test.get_closest_marker("cover"):
        for row in _thinned(test.nodeid, test.get_closest_marker("cover"), rows):
            row.marks.append(pytest.mark.slow.mark)
    if metafunc.config.option.markexpr == "not slow":
        calls[:] = [row for row in rows if not _is_slow(row)] or calls[:1]


def _is_slow(row):
    return any(mark.name == "slow" for mark in row.marks)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skip what the machine at hand cannot run, with the reason in the report; the longest come first, so that no
    process waits for another's at the end."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    runs_on_aws_nki = os.environ.get(KEPT) == "aws"
    has_device = Path("/dev/neuron0").exists()
    for item in items:
        if runs_on_aws_nki and item.get_closest_marker("simulator_only"):
            item.add_marker(pytest.mark.skip(reason="only our simulator can check this"))
        if not has_device and item.get_closest_marker("device"):
            item.add_marker(pytest.mark.skip(reason="no Trainium device"))


def _thinned(name, mark, table):
    """The rows of a table that only `make test-all` runs: all but those of `cover(most, keep=...)`."""
    from cover import cover, sample  # only where it is needed: this file is also read without its neighbours

    ids = [row.id for row in table]
    keep = mark.kwargs.get("keep", ())
    assert set(keep) <= set(ids), f"{name} has no row {sorted(set(keep) - set(ids))}"
    kept = sorted(cover([one.split("-") for one in ids]))
    if mark.args:
        kept = [kept[place] for place in sample([ids[one].split("-") for one in kept], *mark.args, name)]
    return [row for place, row in enumerate(table) if place not in kept and ids[place] not in keep]


def _lacks(name):
    """Why a test that imports this is skipped, or None: what is installed and does not import is a failure."""
    package = (name or "").partition(".")[0]
    return f"needs {package}, which is not installed: make setup" if package in LACKING else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the collector of garbage off what stays to the end: some twenty thousand tests, torch, transformers."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip a file that imports, itself or by its helpers, what is lacking."""
    report = yield
    found = re.search(r"^E +ModuleNotFoundError: No module named '([\w.]+)'", str(report.longrepr), re.MULTILINE)
    if report.failed and found and _lacks(found[1]):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {_lacks(found[1])}")
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Estimates of this session's own, beside those of tests that have a folder each (`plans`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NKICONV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Skip a test that imports what is lacking only when it runs."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if _lacks(error.name):
            pytest.skip(_lacks(error.name))
        raise


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: What searches of tests with caches of their own found and told, for others that search for the same.
SEARCHED = {}


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """An empty cache of plans, of this test's own: the folder that it will be in."""
    from nkiconv.planner import cache, entry  # only now is the environment clean

    search = entry.search

    def searched(request, *, advance, **how):
        key = request, *how.items()
        if key not in SEARCHED:
            told = []
            SEARCHED[key] = search(request, **how, advance=lambda *one: told.append(one)), told
        found, told = SEARCHED[key]
        for one in told:
            advance(*one)
        return found

    monkeypatch.setattr(entry, "search", searched)
    cache.forget()
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture
def plainly(monkeypatch):
    """Kernels run by the algorithm that takes most problems, with its default settings, in a tenth of an estimate's
    time: calls with estimates are held to torch in tests/test_functions.py. Gives what estimates."""
    from nkiconv.planner import estimate
    from nkiconv.planner.operations import operation_for
    from nkiconv.planner.plan import Estimate
    from nkiconv.simulator.timing import Rates

    own = estimate.chosen

    def chosen(request):
        operation = operation_for(request)
        refused = operation.kernel_reason(operation.fallback, operation.shape(request, Rates()), None)
        return own(request) if refused else Estimate(operation.fallback, None)

    monkeypatch.setattr(estimate, "chosen", chosen)
    return own


@pytest.fixture
def change(monkeypatch):
    """Changes a constant of a module; plans that were built before are forgotten, and those of the test after it."""
    from nkiconv.schedules import implicit_gemm_schedule
    from nkiconv.schedules.conv_algorithms import plan_of

    def forget():
        plan_of.cache_clear()
        implicit_gemm_schedule.build.cache_clear()

    def changed(module, name, value):
        monkeypatch.setattr(module, name, value)
        forget()

    yield changed
    monkeypatch.undo()
    forget()


@pytest.fixture
def quickly():
    """Ends a test after 10 seconds of CPU time, of estimates and refusals that take 0.2 and once had no end."""

    def late(*_):
        raise TimeoutError("took more than 10 seconds of CPU time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, 10)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
