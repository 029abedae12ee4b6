"""What is judged: all that kernels reach, in their file and in others; and one name for several things there."""

import pytest
from lint_calls import HEAD, findings, found_at, places, write

from nkiconv.lint import lint

BAD = "def helper(x):\n    return «lambda: x\n"
KERNEL = "@nki.jit\ndef kernel(x):\n    return {}\n"

# why, the kernel's file, the helper's path, the helper's text
ACROSS = [
    ("relative", f"from .b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "p/b.py", BAD),
    ("module", f"from . import b\n{HEAD}{KERNEL.format('b.helper(x)')}", "p/b.py", BAD),
    ("parent", f"from ..b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "b.py", BAD),
    ("absolute", f"from p.b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "p/b.py", BAD),
    ("absolute module", f"import p.b as b\n{HEAD}{KERNEL.format('b.helper(x)')}", "p/b.py", BAD),
    ("dotted", f"import p.b\n{HEAD}{KERNEL.format('p.b.helper(x)')}", "p/b.py", BAD),
    ("package", f"from .b import helper\n{HEAD}{KERNEL.format('helper(x)')}", "p/b/__init__.py", BAD),
    ("inside a function",
     f"{HEAD}def f(x):\n    return helper(x)\n\n{KERNEL.format('f(x)')}\ndef g():\n    from .b import helper\n",
     "p/b.py", BAD),
    ("with a stand-in", "try:\n    from .b import helper\nexcept ImportError:\n    helper = None\n" + HEAD
     + KERNEL.format("helper(x)"), "p/b.py", BAD),
    ("with another to stand in", "try:\n    from .b import helper\nexcept ImportError:\n    from c import helper\n"
     + HEAD + KERNEL.format("helper(x)"), "p/b.py", BAD),
    ("a class", f"from .b import A\n{HEAD}{KERNEL.format('A().f(x)')}", "p/b.py",
     f"{HEAD}class A(nl.NKIObject):\n    def f(self, x):\n        return «lambda: x\n"),
    ("a class that arrives as an argument", f"from .b import A\n{HEAD}@nki.jit\ndef kernel(x: A):\n    return x.f()\n",
     "p/b.py", f"{HEAD}class A(nl.NKIObject):\n    def f(self):\n        return «lambda: 1\n"),
    ("a table of functions", f"from .b import TABLE\n{HEAD}{KERNEL.format('TABLE[0](x)')}", "p/b.py",
     BAD + "TABLE = (helper,)\n"),
    ("a table twice in a table", f"from .b import TABLE\n{HEAD}{KERNEL.format('TABLE[0][0](x)')}", "p/b.py",
     BAD + "ONE = (helper,)\nTABLE = (ONE, ONE)\n"),
    ("a kernel made elsewhere", "from .b import helper\nimport nki\nkernel = nki.jit(helper)\n", "p/b.py", BAD),
]  # fmt: skip

# why, one file
REACHED = [
    ("a call", f"def helper(x):\n    return «lambda: x\n\n{KERNEL.format('helper(x)')}"),
    ("a function as an argument", f"def helper(x):\n    return «lambda: x\n\n{KERNEL.format('x.run(helper)')}"),
    ("a default", "def helper(x):\n    return «lambda: x\n\n@nki.jit\ndef kernel(x, f=helper):\n    return f(x)\n"),
    ("a method", f"class A(nl.NKIObject):\n    def f(self):\n        return «lambda: 1\n\n{KERNEL.format('A().f()')}"),
    ("what is called on construction",
     f"class A(nl.NKIObject):\n    def __init__(self):\n        self.f = «lambda: 1\n\n{KERNEL.format('A()')}"),
    ("an alias", f"def helper(x):\n    return «lambda: x\n\nalias = helper\n\n{KERNEL.format('alias(x)')}"),
    ("jit called with arguments", "@nki.jit(debug=True)\ndef kernel(x):\n    return «lambda: x\n"),
    ("jit by its name", "from nki import jit\n@jit\ndef kernel(x):\n    return «lambda: x\n"),
    ("jit as a call", "def kernel(x):\n    return «lambda: x\n\nrun = nki.jit(kernel)\n"),
    ("jit as a call of a call", "def kernel(x):\n    return «lambda: x\n\nrun = nki.jit()(kernel)\n"),
    ("a kernel in a function, with a helper beside it", "def make():\n    def helper(x):\n        return «lambda: x\n\n"
     "    @nki.jit\n    def kernel(x):\n        return helper(x)\n\n    return kernel\n"),
    ("jit in a function", "def make():\n    def kernel(x):\n        return «lambda: x\n\n    return nki.jit(kernel)\n"),
    ("functions that call each other",
     f"def f(x):\n    return g(x)\n\ndef g(x):\n    f(x)\n    return «lambda: x\n\n{KERNEL.format('f(x)')}"),
]  # fmt: skip

# why, one file: a lambda that no kernel reaches
UNREACHED = [
    ("no kernel", "def kernel(x):\n    return lambda: x\n"),
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


def found_in(folder, kernel, helper, third="SIZE = 3\nTHEIRS = «4\n"):
    write(folder, "", "p/__init__.py")
    write(folder, third, "p/c.py")
    write(folder, kernel, "p/a.py")
    write(folder, helper, "p/b.py")
    assert lint([folder], nki="0.6").findings == ()
    assert lint([folder], nki="0.7", strict=True).findings == ()
    return lint([folder], nki="0.6", strict=True).findings


@pytest.mark.parametrize(("why", "kernel", "helper"), CLASHES, ids=[why for why, *_ in CLASHES])
def test_constants_of_several_values(tmp_path, why, kernel, helper):
    found = found_in(tmp_path, kernel, helper)
    where = places(helper) or places("SIZE = 3\nTHEIRS = «4\n")
    assert found_at(found) == [("NKL134", *place) for place in where]
    assert found[0].message.startswith(f"SIZE has another value in {(tmp_path / 'p/a.py').as_posix()}:7, ")
    assert found[0].kernel == "kernel"


@pytest.mark.parametrize(("why", "kernel", "helper"), FINE, ids=[why for why, *_ in FINE])
def test_near_misses(tmp_path, why, kernel, helper):
    assert found_in(tmp_path, kernel, helper) == ()


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
THIRD = "def theirs(x):\n    return x\n\ndef work(x):\n    return x\n"

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
    (found,) = found_in(tmp_path, kernel, helper, THIRD)
    place, line = ("p/b.py", places(helper)[0][0]) if places(helper) else ("p/c.py", {"of a third file": 4}.get(why, 1))
    assert (found.path, found.line, found.rule) == ((tmp_path / place).as_posix(), line, "NKL135")
    first = (tmp_path / "p/a.py").as_posix()
    assert found.message.startswith(f"work names something else in {first}:7, ")
    assert found.remedy == "give them different names"
    assert found.kernel == "kernel"


@pytest.mark.parametrize(("why", "kernel", "helper"), APART, ids=[why for why, *_ in APART])
def test_names_of_one_thing(tmp_path, why, kernel, helper):
    assert found_in(tmp_path, kernel, helper, THIRD) == ()
