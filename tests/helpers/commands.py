"""Commands of the repository that are folders of their own and no packages: their modules, for tests."""

import importlib.util
import sys
from pathlib import Path

import pytest


def module_of(folder, name, monkeypatch):
    """A module of a command's folder, which finds its neighbours there as it does when the command runs."""
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def of_command(folder, name="__main__"):
    """A fixture: a module of a command's folder, by the folder's name in tests/."""

    @pytest.fixture
    def found(monkeypatch):
        return module_of(Path(__file__).parents[1] / folder, name, monkeypatch)

    return found
