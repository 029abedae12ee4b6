"""Kernel sources keep to the Python that every NKI version compiles (0.3 to 0.7): what the language guide refuses."""

import ast
from pathlib import Path

import pytest

import nkiconv.kernels

SOURCES = sorted(Path(nkiconv.kernels.__file__).parent.rglob("*.py"))

REFUSED = {
    ast.Is: "is: write == None",
    ast.IsNot: "is not: write !=",
    ast.Try: "try/except",
    ast.With: "with",
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
    ast.Lambda: "lambda",
    ast.ListComp: "list comprehension",
    ast.SetComp: "set comprehension",
    ast.DictComp: "dict comprehension",
    ast.GeneratorExp: "generator expression",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.AsyncFunctionDef: "async",
    ast.NamedExpr: ":=",
    ast.Starred: "* in a call or target",
    ast.Match: "match",
    ast.Raise: "raise: use require",
    ast.Set: "set",
    ast.Delete: "del",
}


def findings(source):
    """(line, what) of every construct that NKI's compilers refuse."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if type(node) in REFUSED:
            found.append((node.lineno if hasattr(node, "lineno") else 0, REFUSED[type(node)]))
        if isinstance(node, ast.Compare):
            found += [(node.lineno, REFUSED[type(op)]) for op in node.ops if type(op) in REFUSED]
        if isinstance(node, ast.FunctionDef):
            if node.args.kwonlyargs or node.args.vararg or node.args.kwarg:
                found.append((node.lineno, "keyword-only or variable arguments"))
            if any(isinstance(d, (ast.List, ast.Dict, ast.Set)) for d in node.args.defaults):
                found.append((node.lineno, "mutable default argument"))
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            found.append((node.lineno, "tuple unpacking in a for"))
        if isinstance(node, ast.ClassDef) and [ast.unparse(b) for b in node.bases] != ["nl.NKIObject"]:
            found.append((node.lineno, "a class that is not only an nl.NKIObject"))
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "__future__" in ast.unparse(node):
            found.append((node.lineno, "__future__"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max") and len(node.args) != 2:
            found.append((node.lineno, "min or max of other than two values"))
        if isinstance(node, ast.Dict) and any(not isinstance(getattr(k, "value", None), str) for k in node.keys):
            found.append((node.lineno, "dict keys that are not strings"))
    return sorted(set(found))


def test_there_are_kernels():
    assert len(SOURCES) >= 5


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: "/".join(p.parts[-2:]))
def test_kernel_keeps_to_the_subset(path):
    assert findings(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "x is None",
        "x is not None",
        "def f(a, *, b=1): pass",
        "def f(*a): pass",
        "def f(a=[]): pass",
        "[t for t in x]",
        "lambda t: t",
        "try:\n    f()\nexcept E:\n    pass",
        "with f():\n    pass",
        "class A(B): pass",
        "for a, b in c:\n    pass",
        "def f():\n    yield 1",
        "raise E",
        "{1: 2}",
        "min(a, b, c)",
    ],
)
def test_the_check_sees(source):
    assert findings(source)


def test_kernels_call_only_documented_nki():
    """Every nisa.X and nl.X in a kernel is a name of AWS's documents that trn2 has."""
    from nkiconv.simulator import documented

    isa = {*documented.ISA_CALLS, *documented.ISA_ENUMS}
    language = {*documented.LANGUAGE_CALLS, *documented.LANGUAGE_CONSTANTS}
    used = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add((node.value.id, node.attr))
    assert {name for module, name in used if module == "nisa"} <= isa
    assert {name for module, name in used if module == "nl"} <= language
    assert ("nisa", "nc_matmul") in used
