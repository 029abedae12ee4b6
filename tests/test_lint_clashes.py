"""One name for several constants, functions or classes within a kernel's reach, and near misses."""

import pytest
from lint_calls import HEAD, found_at, places, write

from nkiconv.lint import lint

KERNEL = f"from .b import helper\n{HEAD}SIZE = 1\n\n@nki.jit\ndef kernel(x):\n    return helper(x, SIZE)\n"
READS = "\ndef helper(x, size):\n    return x[SIZE]\n"

# why, the kernel's file, the helper's
CLASHES = [
    ("another number", KERNEL, f"SIZE = «2\n{READS}"),
    ("a tuple", KERNEL, f"SIZE = «(1,)\n{READS}"),
    ("one of several", KERNEL, f"OTHER, SIZE = 1, «2\n{READS}"),
    ("computed", KERNEL, f"SIZE = «1 + 1\n{READS}"),
    ("through a class", KERNEL, "SIZE = «2\n\ndef helper(x, size):\n    return A().f(x)\n"
     + "\nclass A(nl.NKIObject):\n    def f(self, x):\n        return x[SIZE]\n"),
    ("by another name", KERNEL, "from .c import THEIRS as SIZE\n" + READS),
]  # fmt: skip

FINE = [
    ("the same value", KERNEL, f"SIZE = 1\n{READS}"),
    ("the same one", KERNEL.replace("SIZE = 1", "from .c import SIZE"), f"from .c import SIZE\n{READS}"),
    ("one of several, the same", KERNEL, f"OTHER, SIZE = 2, 1\n{READS}"),
    ("its own", KERNEL, "SIZE = 2\n\ndef helper(x, SIZE):\n    return x[SIZE]\n"),
    ("not read", KERNEL, "SIZE = 2\n\ndef helper(x, size):\n    return x\n\ndef host():\n    return SIZE\n"),
    ("by its module", KERNEL, "from . import c\n\ndef helper(x, size):\n    return x[c.SIZE]\n"),
    ("another kernel's", KERNEL.replace("helper(x, SIZE)", "x[SIZE]"),
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
    ("a class", USES, f"«class work(nl.NKIObject):\n    a: int = 1\n\n{HELPS}"),
    ("a constant", USES, f"work = «1\n{HELPS.replace('work(x)', 'x[work]')}"),
    ("passed about", USES, f"«def work(x):\n    return x\n\n{HELPS.replace('work(x)', 'x.run(work)')}"),
    ("of a third file", USES, f"from .c import work\n{HELPS}"),
    ("called so on import", USES, f"from .c import theirs as work\n{HELPS}"),
]
THIRD = "def theirs(x):\n    return x\n\ndef work(x):\n    return x\n"

APART = [
    ("the same one", USES, f"from .a import work\n{HELPS}"),
    ("by its module", USES, f"from . import c\n\n{HELPS.replace('work(x)', 'c.work(x)')}"),
    ("called otherwise on import", USES, f"from .c import work as other\n\n{HELPS.replace('work(x)', 'other(x)')}"),
    ("a local name", USES, "def helper(work):\n    return work(work)\n"),
    ("a method", USES,
     "class A(nl.NKIObject):\n    def work(self):\n        return 1\n\ndef helper(x):\n    return A().work()\n"),
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
