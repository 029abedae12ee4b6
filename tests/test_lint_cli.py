"""`nkiconv lint`: formats, exit status, rules, excuses, bad input, the hook that other repositories use; and what is
judged: all that kernels reach, in their file and in others; one name for several things there.
"""

import json
import re

import pytest
from commands import ROOT, run
from lint_calls import HEAD, findings, found_at, places, write

from nkiconv.lint import RULES, lint
from nkiconv.tools.cli import app

#: The version whose rules BAD breaks.
PARSED = ("--nki", "0.6")
BAD = HEAD + "@nki.jit\ndef kernel(x):\n    if x is True:\n        raise x\n    return x\n"


def test_text(here):
    write(here, BAD, "src/bad.py")
    result = run("lint", "src", "--strict", *PARSED)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "src/bad.py:8:8: NKL101 `x is True` compares identity, which is not compiled; write == or !=",
        "src/bad.py:9:9: NKL114 `raise` is not compiled; assert the condition, with a message",
    ]
    assert "1 file: 2 findings (NKI 0.3 to 0.6, strict)" in result.stderr


def test_github(here):
    write(here, BAD, "a,b/50%:bad.py")
    result = run("lint", "a,b", "--format", "github", *PARSED)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == (
        "::error file=a%2Cb/50%25%3Abad.py,line=8,col=8,title=NKL101::"
        "`x is True` compares identity, which is not compiled; write == or !="
    )
    assert ",line=9,col=9,title=NKL114::" in second
    write(here, HEAD + "@nki.jit\ndef kernel(x):\n    a = x % 2 is True\n    return a\n", "a.py")
    (line,) = run("lint", "a.py", "--format", "github", *PARSED).stdout.splitlines()
    assert "::`x %25 2 is True` compares" in line


def test_json(here):
    write(here, BAD, "bad.py")
    result = run("lint", "bad.py", "--json", *PARSED)
    assert result.exit_code == 1
    assert result.stderr == ""
    document = json.loads(result.stdout)
    first = document["findings"][0]
    assert (document["nki"], document["strict"], document["broken"]) == ("0.6", False, [])
    assert (document["files"], document["kernels"], document["functions"]) == (1, 1, 1)
    assert first == {
        "path": "bad.py", "line": 8, "column": 8, "rule": "NKL101", "kernel": "kernel", "remedy": "write == or !=",
        "message": "`x is True` compares identity, which is not compiled",
    }  # fmt: skip


def test_versions(here):
    write(here, BAD, "bad.py")
    assert run("lint", "bad.py", "--nki", "0.6").exit_code == 1
    for traced in (run("lint", "bad.py", "--nki", "0.7"), run("lint", "bad.py")):
        assert traced.exit_code == 0
        assert "no findings (NKI 0.7)" in traced.stderr
    assert json.loads(run("lint", "bad.py", "--json").stdout)["nki"] == "0.7"
    assert lint(["bad.py"]).findings == ()


def test_rules_left_out(here):
    write(here, BAD, "bad.py")
    assert [line.split()[1] for line in run("lint", "bad.py", "--ignore", "NKL101", *PARSED).stdout.splitlines()] == [
        "NKL114"
    ]
    both = run("lint", "bad.py", "--ignore", "NKL101", "--ignore", "NKL114", *PARSED)
    assert (both.exit_code, both.stdout) == (0, "")
    [left] = lint("./bad.py", nki="0.6", ignore="NKL101").findings
    assert left.rule == "NKL114"


# why, the line of the kernel, whether NKL101 is excused on it
EXCUSES = [
    ("among others", "if x is True:  # nki: noqa[NKL107, NKL101]", True),
    ("after another comment", "if x is True:  # no choice  # nki:noqa[NKL101]", True),
    ("another rule", "if x is True:  # nki: noqa[NKL107]", False),
    ("all rules", "if x is True:  # nki: noqa", False),
    ("another tool's", "if x is True:  # noqa: NKL101", False),
    ("in a string", 'if (x is True) == "# nki: noqa[NKL101]":', False),
    ("the line above", "# nki: noqa[NKL101]\n    if x is True:", False),
]


@pytest.mark.parametrize(("why", "line", "excused"), EXCUSES, ids=[row[0] for row in EXCUSES])
def test_excuses(here, why, line, excused):
    write(here, HEAD + f"@nki.jit\ndef kernel(x):\n    {line}\n        return 1\n    return x\n", "a.py")
    assert [one.rule for one in lint(["a.py"], nki="0.6").findings] == ([] if excused else ["NKL101"])


# why, name, bytes, pattern in stderr
BROKEN = [
    ("syntax", "a.py", b"def f(:\n", r"a\.py:1: not Python"),
    ("encoding", "a.py", b"x = '\xff'\n", r"a\.py: not Python|a\.py:1: not Python"),
    ("not text", "a.npy", b"\x93NUMPY\x01\x00", r"a\.npy(:\d+)?: not Python"),
]


@pytest.mark.parametrize(("why", "name", "content", "pattern"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_file_is_named_and_others_judged(here, why, name, content, pattern):
    (here / name).write_bytes(content)
    write(here, BAD, "bad.py")
    result = run("lint", name, "bad.py", *PARSED)
    assert result.exit_code == 2
    assert re.search(pattern, result.stderr)
    assert "bad.py:8:8: NKL101" in result.stdout
    assert len(json.loads(run("lint", name, "bad.py", "--json").stdout)["broken"]) == 1
    annotations = run("lint", name, "bad.py", "--format", "github").stdout.splitlines()
    assert re.match(rf"::error file={name},line=\d+,title=syntax::", annotations[-1])


def test_a_file_without_kernels(here):
    write(here, "x = 1\n", "a.py")
    assert run("lint", ".").stderr.strip() == "no @nki.jit in 1 file: nothing to judge"


def test_rules_are_listed():
    text = run("lint", "--rules").stdout
    assert re.findall(r"^(NKL\d+) ", text, re.MULTILINE) == list(RULES)
    assert (
        "NKL301 nl.dynamic_range is deprecated in NKI 0.6 and gone in 0.7\n    --nki 0.7; 0.6 with --strict\n" in text
    )
    assert not re.search(r"\{\d?\}", text)
    listed = json.loads(run("lint", "--rules", "--json").stdout)["rows"]
    assert [rule["id"] for rule in listed] == list(RULES)


def test_every_rule_has_a_snippet():
    """Each id stands in a table of the tests, so none is untested."""
    tables = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").glob("test_lint_*.py")))
    assert [rule for rule in RULES if f'"{rule}"' not in tables] == []


def test_the_hook_for_other_repositories():
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^  entry: (.+)$", text, re.MULTILINE)
    program, command = entry.split()[:2]
    assert program == "nkiconv"
    assert command in [one.name for one in app.registered_commands]
    assert "pass_filenames: false" in text


HELPER = "def helper(x):\n    return «lambda: x\n"
KERNEL = "@nki.jit\ndef kernel(x):\n    return {}\n"

# why, the kernel's file, the helper's path, the helper's text
ACROSS = [
    ("parent", f"from ..b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "b.py", HELPER),
    ("absolute", f"from p.b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "p/b.py", HELPER),
    ("absolute module", f"import p.b as b\n{HEAD}{KERNEL.format('b.helper(x)')}", "p/b.py", HELPER),
    ("dotted", f"import p.b\n{HEAD}{KERNEL.format('p.b.helper(x)')}", "p/b.py", HELPER),
    ("package", f"from .b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "p/b/__init__.py", HELPER),
    ("inside a function",
     f"{HEAD}def f(x):\n    return helper(x)\n\n{KERNEL.format('f(x)')}\ndef g():\n    from .b import helper\n",
     "p/b.py", HELPER),
    ("with a stand-in", "try:\n    from .b import helper\nexcept ImportError:\n    helper = None\n" + HEAD
     + KERNEL.format("helper(x)"), "p/b.py", HELPER),
    ("a class", f"from .b import A\n{HEAD}{KERNEL.format('A().f(x)')}", "p/b.py",
     f"{HEAD}class A(nl.NKIObject):\n    def f(self, x):\n        return «lambda: x\n"),
    ("a class that arrives as an argument", f"from .b import A\n{HEAD}@nki.jit\ndef kernel(x: A):\n    return x.f()\n",
     "p/b.py", f"{HEAD}class A(nl.NKIObject):\n    def f(self):\n        return «lambda: 1\n"),
    ("a table of functions", f"from .b import TABLE\n{HEAD}{KERNEL.format('TABLE[0](x)')}", "p/b.py",
     HELPER + "TABLE = (helper,)\n"),
    ("a table twice in a table", f"from .b import TABLE\n{HEAD}{KERNEL.format('TABLE[0][0](x)')}", "p/b.py",
     HELPER + "ONE = (helper,)\nTABLE = (ONE, ONE)\n"),
    ("a kernel made elsewhere", "from .b import helper\nimport nki\nkernel = nki.jit(helper)\n", "p/b.py", HELPER),
]  # fmt: skip

# why, one file
REACHED = [
    ("a function as an argument", f"def helper(x):\n    return «lambda: x\n\n{KERNEL.format('x.run(helper)')}"),
    ("a default", "def helper(x):\n    return «lambda: x\n\n@nki.jit\ndef kernel(x, f=helper):\n    return f(x)\n"),
    ("a method", f"class A(nl.NKIObject):\n    def f(self):\n        return «lambda: 1\n\n{KERNEL.format('A().f()')}"),
    ("what is called on construction",
     f"class A(nl.NKIObject):\n    def __init__(self):\n        self.f = «lambda: 1\n\n{KERNEL.format('A()')}"),
    ("an alias", f"def helper(x):\n    return «lambda: x\n\nalias = helper\n\n{KERNEL.format('alias(x)')}"),
    ("jit called with arguments", "@nki.jit(debug=True)\ndef kernel(x):\n    return «lambda: x\n"),
    ("jit by its name", "from nki import jit\n@jit\ndef kernel(x):\n    return «lambda: x\n"),
    ("jit as a call of a call", "def kernel(x):\n    return «lambda: x\n\nrun = nki.jit()(kernel)\n"),
    ("a kernel in a function, with a helper beside it", "def make():\n    def helper(x):\n        return «lambda: x\n\n"
     "    @nki.jit\n    def kernel(x):\n        return helper(x)\n\n    return kernel\n"),
    ("jit in a function", "def make():\n    def kernel(x):\n        return «lambda: x\n\n    return nki.jit(kernel)\n"),
    ("functions that call each other",
     f"def f(x):\n    return g(x)\n\ndef g(x):\n    f(x)\n    return «lambda: x\n\n{KERNEL.format('f(x)')}"),
]  # fmt: skip

# why, one file: a lambda that no kernel reaches
UNREACHED = [
    ("another decorator", "@other.jit\ndef kernel(x):\n    return lambda: x\n"),
    ("what calls the kernel", f"{KERNEL.format('x')}\ndef host(x):\n    return kernel(lambda: x)\n"),
    ("a name that is its own", "def f():\n    return lambda: 1\n\n@nki.jit\ndef kernel(f):\n    return f\n"),
    ("a method that none calls",
     f"class A(nl.NKIObject):\n    def f(self):\n        return lambda: 1\n\n{KERNEL.format('A()')}"),
    ("what Python calls on import", f"def make():\n    return (lambda: 1)()\n\nN = make()\n\n{KERNEL.format('x[N]')}"),
    ("the top of the file", f"N = (lambda: 1)()\n\n{KERNEL.format('x[N]')}"),
    ("an annotation", "@nki.jit\ndef kernel(x: (lambda: 1)) -> (lambda: 1):\n    y: (lambda: 1) = x\n    return y\n"),
]  # fmt: skip


@pytest.mark.parametrize(("why", "kernel", "path", "helper"), ACROSS, ids=[row[0] for row in ACROSS])
def test_helpers_in_other_files(tmp_path, why, kernel, path, helper):
    write(tmp_path, "", "p/__init__.py")
    write(tmp_path, kernel, "p/a.py")
    write(tmp_path, helper, path)
    found = lint([tmp_path], nki="0.6").findings
    assert [(one.path, one.line, one.column) for one in found] == [
        ((tmp_path / path).as_posix(), *place) for place in places(helper)
    ]
    assert len(found) == 1


@pytest.mark.parametrize(("why", "text"), REACHED, ids=[why for why, _ in REACHED])
def test_reached(tmp_path, why, text):
    assert found_at(findings(tmp_path, HEAD + text)) == [("NKL107", *place) for place in places(HEAD + text)] != []


@pytest.mark.parametrize(("why", "text"), UNREACHED, ids=[why for why, _ in UNREACHED])
def test_not_reached(tmp_path, why, text):
    assert findings(tmp_path, HEAD + text) == ()


def test_modules_that_import_each_other(tmp_path):
    write(tmp_path, f"from .b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "p/a.py")
    write(tmp_path, "from .c import helper\n", "p/b.py")
    write(tmp_path, "from .b import helper\n", "p/c.py")
    assert lint([tmp_path], nki="0.6").findings == ()


@pytest.mark.slow
def test_a_long_chain_of_helpers(tmp_path):
    """Deeper than Python's own stack."""
    chain = "".join(f"def f{i}(x):\n    return f{i + 1}(x)\n\n" for i in range(1500))
    text = f"{HEAD}{chain}def f1500(x):\n    return «lambda: x\n\n{KERNEL.format('f0(x)')}"
    assert found_at(findings(tmp_path, text)) == [("NKL107", *place) for place in places(text)]


def test_folders_of_other_people_are_left_out(tmp_path):
    text = HEAD + KERNEL.format("lambda: x")
    for name in (".hidden/a.py", "site-packages/a.py", "env/lib/a.py", "kept/a.py"):
        write(tmp_path, text, name)
    write(tmp_path, "", "env/pyvenv.cfg")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "kept")
    assert lint([tmp_path / "inside"], nki="0.6").files == 0
    report = lint([tmp_path], nki="0.6")
    assert [one.path for one in report.findings] == [(tmp_path / "kept/a.py").as_posix()]
    assert report.files == 1


SIZED = f"from .b import helper\n{HEAD}SIZE = 1\n\n@nki.jit\ndef kernel(x):\n    return helper(x, SIZE)\n"
READS = "\ndef helper(x, size):\n    return x[SIZE]\n"

# why, the kernel's file, the helper's
CLASHES = [
    ("another number", SIZED, f"SIZE = «2\n{READS}"),
    ("one of several", SIZED, f"OTHER, SIZE = 1, «2\n{READS}"),
    ("through a class", SIZED, "SIZE = «2\n\ndef helper(x, size):\n    return A().f(x)\n"
     + "\nclass A(nl.NKIObject):\n    def f(self, x):\n        return x[SIZE]\n"),
    ("by another name", SIZED, "from .c import THEIRS as SIZE\n" + READS),
]  # fmt: skip

FINE = [
    ("the same value", SIZED, f"SIZE = 1\n{READS}"),
    ("the same one", SIZED.replace("SIZE = 1", "from .c import SIZE"), f"from .c import SIZE\n{READS}"),
    ("its own", SIZED, "SIZE = 2\n\ndef helper(x, SIZE):\n    return x[SIZE]\n"),
    ("by its module", SIZED, "from . import c\n\ndef helper(x, size):\n    return x[c.SIZE]\n"),
    ("another kernel's", SIZED.replace("helper(x, SIZE)", "x[SIZE]"),
     f"{HEAD}SIZE = 2\n\n@nki.jit\ndef other(x):\n    return x[SIZE]\n"),
]  # fmt: skip


#: What both may import, too.
THIRD = "SIZE = 3\nTHEIRS = «4\n\ndef theirs(x):\n    return x\n\ndef work(x):\n    return x\n"


def found_in(folder, kernel, helper):
    write(folder, "", "p/__init__.py")
    write(folder, THIRD, "p/c.py")
    write(folder, kernel, "p/a.py")
    write(folder, helper, "p/b.py")
    assert lint([folder], nki="0.6").findings == ()
    assert lint([folder], nki="0.7", strict=True).findings == ()
    return lint([folder], nki="0.6", strict=True).findings


@pytest.mark.parametrize(("why", "kernel", "helper"), CLASHES, ids=[why for why, *_ in CLASHES])
def test_constants_of_several_values(tmp_path, why, kernel, helper):
    found = found_in(tmp_path, kernel, helper)
    where = places(helper) or places(THIRD)
    assert found_at(found) == [("NKL134", *place) for place in where]
    assert found[0].message.startswith(f"SIZE has another value in {(tmp_path / 'p/a.py').as_posix()}:7, ")
    assert found[0].kernel == "kernel"


USES = (
    f"from .b import helper\n{HEAD}def work(x):\n    return x\n\n@nki.jit\ndef kernel(x):\n    return work(helper(x))\n"
)
HELPS = "def helper(x):\n    return work(x)\n"
CALLS = f"from .b import helper\n{HEAD}@nki.jit\ndef kernel(x):\n    return helper(x)\n"

# why, the kernel's file, the helper's: work is something else in it than in the kernel's
SHARED = [
    ("a function", USES, f"«def work(x):\n    return x\n\n{HELPS}"),
    ("a constant", USES, f"work = «1\n{HELPS.replace('work(x)', 'x[work]')}"),
    ("passed about", USES, f"«def work(x):\n    return x\n\n{HELPS.replace('work(x)', 'x.run(work)')}"),
    ("of a third file", USES, f"from .c import work\n{HELPS}"),
    ("called so on import", USES, f"from .c import theirs as work\n{HELPS}"),
]
APART = [
    ("the same one", USES, f"from .a import work\n{HELPS}"),
    ("by its module", USES, f"from . import c\n\n{HELPS.replace('work(x)', 'c.work(x)')}"),
    ("not reached", USES,
     "def work(x):\n    return x\n\ndef helper(x):\n    return x\n\ndef host(x):\n    return work(x)\n"),
    ("in annotations only", CALLS, "from .c import work\n\ndef helper(x: work):\n    return x\n"),
    ("another kernel's", USES.replace("work(helper(x))", "work(x)"),
     f"{HEAD}def work(x):\n    return x\n\n@nki.jit\ndef other(x):\n    return work(x)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("why", "kernel", "helper"), SHARED, ids=[why for why, *_ in SHARED])
def test_names_of_several_things(tmp_path, why, kernel, helper):
    """Found at the second place; the message names the first."""
    (found,) = found_in(tmp_path, kernel, helper)
    place, line = ("p/b.py", places(helper)[0][0]) if places(helper) else ("p/c.py", {"of a third file": 7}.get(why, 4))
    assert (found.path, found.line, found.rule) == ((tmp_path / place).as_posix(), line, "NKL135")
    first = (tmp_path / "p/a.py").as_posix()
    assert found.message.startswith(f"work names something else in {first}:7, ")
    assert found.remedy == "give them different names"
    assert found.kernel == "kernel"


@pytest.mark.parametrize(("why", "kernel", "helper"), FINE + APART, ids=[why for why, *_ in FINE + APART])
def test_near_misses(tmp_path, why, kernel, helper):
    assert found_in(tmp_path, kernel, helper) == ()
