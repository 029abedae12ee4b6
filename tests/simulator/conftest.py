"""These tests look inside our simulator: they mean nothing on AWS's."""

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark every test of this folder."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker("simulator_only")


@pytest.fixture
def rng():
    """Reproducible random numbers."""
    return np.random.default_rng(1)
