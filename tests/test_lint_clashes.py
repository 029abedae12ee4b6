"""Constants of one name and several values within a kernel's reach, and near misses."""

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
    (
        "through a class",
        KERNEL,
        "SIZE = «2\n\ndef helper(x, size):\n    return A().f(x)\n"
        + "\nclass A(nl.NKIObject):\n    def f(self, x):\n        return x[SIZE]\n",
    ),
    ("by another name", KERNEL, "from .c import THEIRS as SIZE\n" + READS),
]

FINE = [
    ("the same value", KERNEL, f"SIZE = 1\n{READS}"),
    ("the same one", KERNEL.replace("SIZE = 1", "from .c import SIZE"), f"from .c import SIZE\n{READS}"),
    ("one of several, the same", KERNEL, f"OTHER, SIZE = 2, 1\n{READS}"),
    ("its own", KERNEL, "SIZE = 2\n\ndef helper(x, SIZE):\n    return x[SIZE]\n"),
    ("not read", KERNEL, "SIZE = 2\n\ndef helper(x, size):\n    return x\n\ndef host():\n    return SIZE\n"),
    ("by its module", KERNEL, "from . import c\n\ndef helper(x, size):\n    return x[c.SIZE]\n"),
    (
        "another kernel's",
        KERNEL.replace("helper(x, SIZE)", "x[SIZE]"),
        f"{HEAD}SIZE = 2\n\n@nki.jit\ndef other(x):\n    return x[SIZE]\n",
    ),
]


def found_in(folder, kernel, helper):
    write(folder, "", "p/__init__.py")
    write(folder, "SIZE = 3\nTHEIRS = «4\n", "p/c.py")
    write(folder, kernel, "p/a.py")
    write(folder, helper, "p/b.py")
    assert lint([folder]).findings == ()
    assert lint([folder], nki="0.7", strict=True).findings == ()
    return lint([folder], strict=True).findings


@pytest.mark.parametrize(("why", "kernel", "helper"), CLASHES, ids=[why for why, *_ in CLASHES])
def test_constants_of_several_values(tmp_path, why, kernel, helper):
    found = found_in(tmp_path, kernel, helper)
    where = places(helper) or places("SIZE = 3\nTHEIRS = «4\n")
    assert found_at(found) == [("NKL134", *place) for place in where]
    assert found[0].message.startswith(f"SIZE has another value in {(tmp_path / 'p/a.py').as_posix()}, ")
    assert found[0].kernel == "kernel"


@pytest.mark.parametrize(("why", "kernel", "helper"), FINE, ids=[why for why, *_ in FINE])
def test_near_misses(tmp_path, why, kernel, helper):
    assert found_in(tmp_path, kernel, helper) == ()
