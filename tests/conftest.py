"""What holds for every test: a clean environment, reproducible random examples, and who runs the kernels."""

import os
from pathlib import Path

import hypothesis
import pytest

#: The one variable of the NKI family that the tests obey: "aws" runs the kernels on AWS's NKI instead of our simulator.
KEPT = "NKICONV_NKI"


def pytest_configure():
    """Drop settings of the user's shell that would change results, before any test imports nkiconv."""
    for name in [*os.environ]:
        if name.startswith(("NEURON_", "NKI")) and name != KEPT:
            del os.environ[name]
    hypothesis.settings.register_profile("nkiconv", deadline=None, derandomize="CI" in os.environ)
    hypothesis.settings.load_profile("nkiconv")


def pytest_collection_modifyitems(items):
    """Skip what the machine at hand cannot run, with the reason in the report."""
    runs_on_aws_nki = os.environ.get(KEPT) == "aws"
    has_device = Path("/dev/neuron0").exists()
    for item in items:
        if runs_on_aws_nki and item.get_closest_marker("simulator_only"):
            item.add_marker(pytest.mark.skip(reason="only our simulator can check this"))
        if not has_device and item.get_closest_marker("device"):
            item.add_marker(pytest.mark.skip(reason="no Trainium device"))


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """An empty cache of plans, of this test's own: the folder that it will be in."""
    from nkiconv.planner import cache  # only now is the environment clean

    cache.forget()
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path / "plans"))
    return tmp_path / "plans"
