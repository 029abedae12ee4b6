"""Commands for tests: of `nkiconv`, and of the repository's scripts, run as from a shell, and modules of these."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]


def process(*words, front=(), cwd=None, stdout=subprocess.PIPE, **environment):
    """A process of Python that has ended, with these words, and with folders in `front` of what it imports from."""
    paths = os.pathsep.join(map(str, (*front, ROOT)))
    return subprocess.run(
        [sys.executable, *map(str, words)], env={**os.environ, "PYTHONPATH": paths, **environment}, cwd=cwd,
        stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=900, check=False,
    )  # fmt: skip


def run(*arguments, width=120):
    """Invoke `nkiconv` with these arguments, so many columns wide; nothing but a clean exit may come out of it."""
    from nkiconv.tools.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(width)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def done(*arguments, width=120):
    """As `run`, of what must succeed."""
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    return result


def called(main, *arguments):
    """The exit status of a command's function with these words after its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["command", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return end.code or 0
        return 0


def ran(script, *arguments):
    """The exit status of a script, or of a folder's, in this process; what it imports of its folder is forgotten."""
    path, before = ROOT / script, set(sys.modules)
    path = path / "__main__.py" if path.is_dir() else path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        try:
            return called(lambda: runpy.run_path(str(path), run_name="__main__"), *arguments)
        finally:
            for name in set(sys.modules) - before:
                if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == path.parent:
                    del sys.modules[name]


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
        return module_of(ROOT / "tests" / folder, name, monkeypatch)

    return found
