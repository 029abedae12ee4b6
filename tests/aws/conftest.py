"""Tests under AWS's NKI and torch-neuronx, for both of which stand-ins play; `test_launches` runs them in a process.

Tensors on the host stand for those on a device.
"""

import sys
from pathlib import Path

import pytest

STANDINS = Path(__file__).resolve().parents[1] / "standins" / "aws"
if str(STANDINS) not in sys.path:
    collect_ignore_glob = ["test_*.py"]


#: What the planner's process has answered, for tests that ask it the same.
FOUND = {}


@pytest.fixture
def searched(monkeypatch):
    """Requests that the planner's process is asked, as launches ask for plans; the device has forgotten others'.

    It times estimates, a tenth of a search's work: what it finds is for `test_planner_child`.
    """
    from nkiconv.planner import child
    from nkiconv.pytorch.computers import device

    asked, search = [], child.search

    def counted(request, *, wide, advance, quick=False):
        asked.append(request)
        key = child.MODULE, request, wide, quick
        if key not in FOUND:
            FOUND[key] = search(request, wide=wide, advance=advance, quick=True)
        return FOUND[key]

    monkeypatch.setattr(child, "search", counted)
    monkeypatch.setenv("NKICONV_PLAN", "timed")
    device._arguments.cache_clear()
    return asked


@pytest.fixture
def launches(monkeypatch, plans, searched):
    import nki

    from nkiconv.pytorch.computers import modes

    monkeypatch.setattr(modes, "NEURON", ("cpu",))
    nki.launches.clear()
    return nki.launches
