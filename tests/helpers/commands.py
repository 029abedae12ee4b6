"""Commands of the repository that are folders of their own and no packages: their modules, for tests."""

import importlib.util
import sys


def module_of(folder, name, monkeypatch):
    """A module of a command's folder, which finds its neighbours there as it does when the command runs."""
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
