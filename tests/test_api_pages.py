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


NAMES = {f"{module}.{name}": one for module in MODULES for name, one in public(module)}
FUNCTIONS = {
    name: one for name, one in NAMES.items() if inspect.isfunction(one) and not name.startswith(f"{MODULES[-1]}.")
}


def test_names_have_docstrings():
    """A dataclass's own repeats its fields: it says what the class is."""
    for name, one in NAMES.items():
        text = one.__doc__ if inspect.ismodule(one) else vars(one).get("__doc__", getattr(one, "__doc__", None))
        assert text, f"say what {name} is"
        assert not text.startswith(f"{one.__name__}("), f"say what {name} is"


def test_functions_say_what_they_return_and_raise():
    for name, function in FUNCTIONS.items():
        lines = inspect.getdoc(function).splitlines()
        for heading in ("Returns:", "Raises:"):
            assert any(line.startswith(heading) for line in lines), f"{name}: say it in a paragraph after {heading}"


def test_methods_have_docstrings():
    for one in filter(inspect.isclass, NAMES.values()):
        found = {name: getattr(part, "fget", getattr(part, "__func__", part)) for name, part in vars(one).items()}
        functions = [part for name, part in found.items() if inspect.isfunction(part) and not name.startswith("_")]
        assert [part.__qualname__ for part in functions if not part.__doc__] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, in which nothing warned."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"needs {package}, which is not installed: make setup")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "doctrees", "docs", folder]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    return folder


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.parametrize("module", [*MODULES, "nkiconv.simulator.language", "nkiconv.simulator.profiling"])
def test_every_public_name_has_a_page(site, module):
    page = (site / "api" / module.rpartition(".")[2]).with_suffix(".html").read_text(encoding="utf-8")
    ids = set(re.findall(r'id="([\w.]+)"', page))
    elsewhere = {link.rpartition(".")[2] for link in re.findall(r'href="\w+\.html#([\w.]+)"', page)}
    lacking = {name for name, one in public(module) if f"{module}.{name}" not in ids and not inspect.ismodule(one)}
    assert lacking <= elsewhere, "it is neither on this page nor on one that this leads to"
    assert len(lacking) <= 1


def test_versions_agree():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert nkiconv.__version__ == declared
    assert f"\nversion: {declared}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(
        rf"^## {re.escape(declared)} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
