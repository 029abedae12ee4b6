"""What is public says what it is, takes, returns and raises, and the pages of it are made without a warning."""

import importlib
import inspect
import re

import pytest
from commands import ROOT, process

import nkiconv
from nkiconv.tools.tables.support import signatures

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


def test_names_say_what_they_are_and_functions_what_they_return_and_raise():
    """A dataclass's own docstring repeats its fields: it says what the class is. Methods have one too."""
    for name, one in NAMES.items():
        text = one.__doc__ if inspect.ismodule(one) else vars(one).get("__doc__", getattr(one, "__doc__", None))
        assert text, f"say what {name} is"
        assert not text.startswith(f"{one.__name__}("), f"say what {name} is"
        parts = vars(one).values() if inspect.isclass(one) else ()
        parts = [getattr(part, "fget", getattr(part, "__func__", part)) for part in parts]
        methods = [part for part in parts if inspect.isfunction(part) and not part.__name__.startswith("_")]
        assert [part.__qualname__ for part in methods if not part.__doc__] == []
    for name, function in FUNCTIONS.items():
        lines = inspect.getdoc(function).splitlines()
        for heading in ("Returns:", "Raises:"):
            assert any(line.startswith(heading) for line in lines), f"{name}: say it in a paragraph after {heading}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, in which nothing warned."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"needs {package}, which is not installed: make setup")
    folder = tmp_path_factory.mktemp("site")
    words = "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "doctrees", "docs", folder
    made = process(*words, cwd=ROOT)
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


SIGNED = [
    pytest.param(where, one, id=f"{where}.{name}")
    for where in (signatures.ARRAYS, signatures.TENSORS)
    for name, one in signatures.functions(where).items()
]
#: Types that depend on how many axes there are, or on what is computed, and defaults of layouts.
DIFFERENT = {"stride", "padding", "dilation", "lhs_dilation", "output_padding", "layout", "filter_layout", "out_dtype"}


@pytest.mark.parametrize(("where", "function"), SIGNED)
def test_every_argument_has_a_meaning(where, function):
    for one in signatures.arguments(function, where).values():
        assert one.meaning, f"say what {one.name} is, or name a function that does: The rest: as in `conv2d`"


@pytest.mark.parametrize("where", [signatures.ARRAYS, signatures.TENSORS])
def test_functions_agree_on_types_and_defaults(where):
    found = {}
    for function in signatures.functions(where).values():
        for one in signatures.arguments(function, where).values():
            if one.default and one.name not in DIFFERENT:
                found.setdefault(one.name, set()).add((one.kind, one.default))
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}
    assert len(found) >= 8


def test_words_of_another_function_are_followed():
    def like(x, lnc, groups, beta=1.0, **more):
        """Convolve.

        Args:
            x: [N, C]. beta: as in `conv2d`; not of rows.
            The rest: as in `conv2d`, for rows.

        Returns: y.
        """

    found = signatures.arguments(like)
    assert list(found) == ["x", "lnc", "groups", "beta"]
    assert (found["x"].meaning, found["lnc"].meaning) == ("[N, C].", "cores that share the work, 1 or 2.")
    assert found["beta"].meaning == "its factor; here not of rows."
    assert found["beta"].default == "1.0"
    text = signatures.in_full(like, signatures.ARRAYS)
    assert "\n    groups: divides C and K.\n" in text
    assert text.endswith("\n\nReturns: y.")
    like.__doc__ = "Convolve.\n\nArgs: x: [N, C].\n"
    assert set(signatures.meanings(like, signatures.ARRAYS)) == {"x"}
    with pytest.raises(KeyError, match="lnc"):
        signatures.arguments(like)
