"""Plans on disk: where, under which key, whole or not at all, and what happens when something is wrong with them."""

import json
import os
import sys

import numpy as np
import pytest

from nkiconv import ConvProblem, depthwise_conv1d, plan
from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.planner import Plan, Request, cache, entry

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
PROBLEM = ConvProblem(N=1, C=8, W=40, S=3, groups=8)


def no_search(*_args, **_kwargs):
    raise AssertionError("searched although the plan is in the cache")


def the_file(plans):
    (found,) = plans.iterdir()
    return found


def test_a_plan_comes_back_from_disk_and_from_memory(plans, monkeypatch):
    first = plan(PROBLEM)
    assert not first.cached
    assert the_file(plans) == cache.directory() / cache.named(Request(problem=PROBLEM), "plan")[1]
    monkeypatch.setattr(entry, "search", no_search)
    for forget in (False, True):
        if forget:
            cache.forget()
        again = plan(PROBLEM)
        assert again.cached
        assert again == first


def test_a_wide_plan_replaces_the_quick_one_and_stays():
    quick = plan(PROBLEM)
    wide = plan(PROBLEM, wide=True)
    assert (quick.effort, wide.effort) == ("timed", "tuned")
    cache.forget()
    found = plan(PROBLEM)
    assert (found.effort, found.cached) == ("tuned", True)
    assert plan(PROBLEM, wide=True).cached


@pytest.mark.parametrize("other", [
    {"lnc": 1}, {"bias": True}, {"strict_nonfinite": True}, {"constants": {"scalar.ns_per_elem": 1.0}},
    {"algorithms": ("banded",)},
], ids=lambda other: next(iter(other)))  # fmt: skip
def test_everything_asked_for_is_in_the_key(other, monkeypatch):
    plan(PROBLEM)
    monkeypatch.setattr(entry, "search", no_search)
    assert plan(PROBLEM).cached
    with pytest.raises(AssertionError, match="searched"):
        plan(PROBLEM, **other)


GONE = object()
#: What a kept document is told to say instead, and where.
SPOILT = {
    "wrong key": (1, "key", "lnc"),
    "wrong problem": (41, "plan", "problem", "W"),
    "no checksum": (GONE, "sha256"),
    "no plan": (GONE, "plan"),
    "half a plan": (GONE, "plan", "config"),
    "text for a number": ("4.5", "plan", "modelled_us"),
    "no time of an alternative": (None, "plan", "alternatives", 0, "us"),
    "a negative time": (-1.0, "plan", "phase0_us"),
    "a number beyond all": (10**400, "plan", "instructions"),
    "an algorithm that is none": ("fft", "plan", "algorithm"),
    "markup": ("[red]vector[/red]", "plan", "bound_by"),
    "a pair that is none": ([1, 2], "plan", "config", 0),
    "a setting that the kernel refuses": ("everything", "plan", "config", 0, 1),
    "no time": (0, "plan", "modelled_us"),
}


def spoil(document, what):
    value, *path, last = SPOILT[what]
    for name in path:
        document = document[name]
    if value is GONE:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    "what", [*[*SPOILT][:5], b"", b"[1,2]", b"\xff\xfe", b"[" * 100_000], ids=lambda one: str(one)[:20]
)
def test_foreign_files_are_ignored_with_a_warning(plans, what):
    plan(PROBLEM)
    file = the_file(plans)
    if isinstance(what, bytes):
        file.write_bytes(what)
    else:
        document = json.loads(file.read_text())
        spoil(document, what)
        file.write_text(json.dumps(document))
    cache.forget()
    with pytest.warns(cache.CacheWarning, match=file.name):
        assert not plan(PROBLEM).cached
    cache.forget()
    assert plan(PROBLEM).cached


@pytest.mark.parametrize("what", [*SPOILT][3:])
def test_a_document_that_is_no_plan_is_refused_by_name(what):
    document = {"plan": json.loads(plan(PROBLEM).to_json())}
    spoil(document, what)
    text = json.dumps(document.get("plan"))
    if what in ("an algorithm that is none", "a setting that the kernel refuses"):
        found = Plan.from_json(text)  # has the form of a plan; the call that takes it refuses it
        with pytest.raises(UnsupportedError):
            depthwise_conv1d(np.ones((1, 8, 40), np.float32), np.ones((8, 3), np.float32), **found.arguments)
    else:
        with pytest.raises(FileFormatError, match=r"is not what Plan\.to_json writes"):
            Plan.from_json(text)


def test_users_without_a_directory_have_plans_and_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path / "file" / "plans"))
    with pytest.warns(cache.CacheWarning, match="set NKICONV_CACHE"):
        assert plan(PROBLEM).algorithm

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    for name in ("NKICONV_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("nkiconv.planner.cache.Path.home", nowhere)
    with pytest.warns(cache.CacheWarning, match="home directory.*set NKICONV_CACHE"):
        assert plan(PROBLEM).algorithm
    with pytest.raises(FileFormatError, match="NKICONV_CACHE: is not set"):
        list(cache.entries())


def test_an_estimate_that_was_edited_is_made_again(plans):
    request = Request(problem=PROBLEM)
    cache.store(request, cache.Estimate("banded", (("block", 8),)))
    file = the_file(plans)
    file.write_text(file.read_text().replace("banded", "fft"))
    cache.forget()
    with pytest.warns(cache.CacheWarning, match="was changed"):
        assert cache.load(request, cache.Estimate) is None


def test_a_plan_that_is_tuned_during_a_search_stays(plans, monkeypatch):
    search = entry.search

    def slow(request, *, wide, advance, quick):
        found = search(request, wide=wide, advance=advance, quick=quick)
        if not wide:
            monkeypatch.setattr(entry, "search", search)
            plan(PROBLEM, wide=True)
            cache.forget()  # another process did that
        return found

    monkeypatch.setattr(entry, "search", slow)
    assert plan(PROBLEM).effort == "tuned"
    cache.forget()
    assert plan(PROBLEM).effort == "tuned"


@pytest.mark.skipif(os.name != "posix", reason="there is no umask")
def test_who_may_read_a_plan_is_as_the_umask_says(plans):
    before = os.umask(0o007)
    try:
        plan(PROBLEM)
    finally:
        os.umask(before)
    assert the_file(plans).stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize(("system", "variables", "expected"), [
    ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/nkiconv"),
    ("linux", {"XDG_CACHE_HOME": ""}, "/h/.cache/nkiconv"),
    ("linux", {"XDG_CACHE_HOME": "relative"}, "/h/.cache/nkiconv"),
    ("darwin", {"XDG_CACHE_HOME": ""}, "/h/Library/Caches/nkiconv"),
    ("win32", {"LOCALAPPDATA": "/l"}, "/l/nkiconv/cache"),
    ("linux", {"NKICONV_CACHE": "/own"}, "/own"),
])  # fmt: skip
def test_where_plans_are_kept(monkeypatch, system, variables, expected):
    monkeypatch.delenv("NKICONV_CACHE")
    monkeypatch.setenv("HOME", "/h")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert cache.directory().as_posix() == expected
