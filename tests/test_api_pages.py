"""What is public says what it is, returns and raises, and the pages of it are made without a warning."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nkiconv

ROOT = Path(__file__).resolve().parents[1]
#: Modules whose functions say what they return and raise; the last one's raise what the simulator's rules say.
MODULES = ("nkiconv", "nkiconv.pytorch", "nkiconv.pytorch.nn", "nkiconv.simulator", "nkiconv.simulator.isa")


def public(module):
    """(name, object) of what a module says is public; a kernel as its function."""
    found = importlib.import_module(module)
    return [(name, getattr(getattr(found, name), "function", getattr(found, name))) for name in found.__all__]


NAMES = [pytest.param(one, id=f"{module}.{name}") for module in MODULES for name, one in public(module)]
FUNCTIONS = [
    pytest.param(one, id=f"{module}.{name}")
    for module in MODULES[:-1]
    for name, one in public(module)
    if inspect.isfunction(one)
]


def test_kernels_and_functions_are_among_them():
    ids = {one.id for one in FUNCTIONS}
    assert ids >= {"nkiconv.conv2d", "nkiconv.conv2d_implicit_gemm", "nkiconv.pytorch.convert", "nkiconv.simulator.jit"}


@pytest.mark.parametrize("one", NAMES)
def test_name_has_a_docstring(one):
    text = one.__doc__ if inspect.ismodule(one) else vars(one).get("__doc__", getattr(one, "__doc__", None))
    assert text, "say what it is"
    assert not text.startswith(f"{one.__name__}("), "a dataclass's own docstring repeats its fields; say what it is"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_says_what_it_returns_and_raises(function):
    lines = inspect.getdoc(function).splitlines()
    for heading in ("Returns:", "Raises:"):
        assert any(line.startswith(heading) for line in lines), f"say it in a paragraph that begins with {heading}"


@pytest.mark.parametrize("one", NAMES)
def test_methods_have_docstrings(one):
    if inspect.isclass(one):
        found = {name: getattr(part, "fget", getattr(part, "__func__", part)) for name, part in vars(one).items()}
        functions = [part for name, part in found.items() if inspect.isfunction(part) and not name.startswith("_")]
        assert [part.__name__ for part in functions if not part.__doc__] == []


@pytest.mark.simulator_only
def test_pages_have_every_name(tmp_path):
    made = subprocess.run([sys.executable, ROOT / "docs" / "pages.py", tmp_path], capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    for module in MODULES:
        page = tmp_path.joinpath(*module.split(".")).with_suffix(".html").read_text()
        for name, one in public(module):
            assert f'id="{name}"' in page or inspect.ismodule(one), f"{module}.{name} is not in the pages"
    text = (tmp_path / "nkiconv.html").read_text()
    assert "distance of neighbouring inputs, before padding" in text  # a field's comment
    assert "channels of the reduced problems that times and instructions are extrapolated from" in text  # a line above
    for module in ("nkiconv.pytorch", "nkiconv.simulator", "nkiconv.simulator.profiling"):
        assert f'href="{module.replace(".", "/")}.html"' in text, f"no way from the first page to {module}"
    assert "xp is x with lhs_dilation_w - 1 zeros between neighbours" in text  # a kernel's docstring


def test_versions_agree():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert nkiconv.__version__ == declared
    assert re.search(
        rf"^## {re.escape(declared)} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
