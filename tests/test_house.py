"""House rules that no linter knows, and what kernels call: each test names the offenders and the way to mend them."""

import ast
import re
from pathlib import Path

import pytest
from commands import ROOT

import nkiconv.kernels
from nkiconv.lint import lint
from nkiconv.simulator import documented

TEXT_SUFFIXES = {".py", ".toml", ".md", ".csv", ".yaml", ".yml", ".json", ".txt", ".cfg", ".cff", ".sh"}
MAX_LINES = 500
#: With Python of ours.
FOLDERS = ("nkiconv", "tests", "examples", "docs")


def python_files(*folders):
    """Every Python file below these folders of the repository."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no Python files below {folders}"
    return found


def text_files():
    """Every text file of the repository: what is not hidden (but for .ci and .github), generated or binary."""
    inside = [
        path
        for folder in ("nkiconv", "tests", "examples", "docs", "profiles", ".ci", ".github")
        for path in (ROOT / folder).rglob("*")
    ]
    candidates = [*ROOT.glob("[!.]*"), ROOT / ".pre-commit-config.yaml", *inside]
    return [path for path in candidates if path.is_file() and (path.suffix in TEXT_SUFFIXES or path.suffix == "")]


def pages():
    found = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.*")]
    return [path for path in found if path.is_file()]


#: Of which files no line has what; and how to mend it. Kernels have no price, clock or time, whose names would say ns.
NOWHERE = {
    "paths of a machine": (text_files, r"(^|[^\w.])/(home|Users|root|work|tmp)/\w",
     "use a path relative to the repository, or tmp_path"),
    "work left over": (lambda: python_files(*FOLDERS), r"\b(TOD[O]|FIXM[E])\b(?!\(#\d+\))",
     "write it with an issue, as in (#12), or do it"),
    "addresses of people or registries": (pages, r"[\w.+-]+@[\w-]+\.[a-z]{2,}|https?://[^\s/]*(pypi|index|mirror|registry)",
     "name the project"),
    "times in kernels": (lambda: python_files("nkiconv/kernels"), r"\b\w+_(ns|NS)\b", "choose in nkiconv/planner/cost"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "pattern", "remedy"), NOWHERE.values(), ids=NOWHERE)
def test_no_line_has(files, pattern, remedy):
    found = []
    for path in files():
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(lines, 1) if re.search(pattern, line)]
    assert found == [], remedy


def test_files_hold_one_idea():
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(*FOLDERS)}
    long = {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > MAX_LINES}
    assert long == {}, f"split by idea: more than {MAX_LINES} lines"


#: Names of typing that Python 3.10, the oldest that pyproject.toml names, does not have.
LATER = {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack", "override"}


def test_what_is_imported_of_typing_is_in_python_310():
    """Under TYPE_CHECKING nothing is imported."""
    later = [
        f"{path.relative_to(ROOT)}: {one.name}"
        for path in python_files("nkiconv", "examples")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        for one in node.names
        if one.name in LATER
    ]
    assert later == [], "import them under TYPE_CHECKING"


#: Functions of many arguments: signature and docstring, which are documentation, do not count.
OF_MANY_ARGUMENTS = {
    "nkiconv/api/conv.py: conv2d", "nkiconv/pytorch/models/conversion.py: convert",
    "nkiconv/tools/cli/measure.py: command", "nkiconv/tools/cli/run.py: command",
}  # fmt: skip


def test_functions_can_be_seen_whole():
    most, long = 80, []
    for path in python_files(*FOLDERS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{path.relative_to(ROOT)}: {node.name}"
                first = node.body[1] if name in OF_MANY_ARGUMENTS else node
                long += [name] if node.end_lineno - first.lineno >= most else []
    assert long == [], f"no function over {most} lines"


FOLDER = Path(nkiconv.kernels.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))
PROBES = FOLDER.parent / "tools" / "calibrate" / "kernels"


@pytest.mark.slow  # `make lint` asks for the findings too
def test_kernels_keep_to_what_nki_traces():
    """The linter has found and followed every kernel, so that no findings means something."""
    report = lint([FOLDER], strict=True)
    assert report.broken == ()
    assert not report.findings
    assert report.files == len(SOURCES)
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    assert report.kernels == sum(text.count("@nki.jit") for text in texts)
    assert report.functions > 0.9 * sum(text.count("def ") for text in texts)  # but for some inside of others


def test_kernels_call_only_documented_nki():
    """Every nisa.X and nl.X in a kernel or a probe is a name of AWS's documents that trn2 has."""
    isa = {*documented.ISA_CALLS, *documented.ISA_ENUMS}
    language = {*documented.LANGUAGE_CALLS, *documented.LANGUAGE_CONSTANTS}
    used = set()
    for path in (*SOURCES, *PROBES.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add((node.value.id, node.attr))
    assert {name for module, name in used if module == "nisa"} <= isa
    assert {name for module, name in used if module == "nl"} <= language
    assert ("nisa", "nc_matmul") in used
