"""Python that NKI's parser does not compile: each rule's finding with its place, and what comes near it and is fine."""

import pytest
from lint_calls import HEAD, findings, found_at, in_kernel, places

from nkiconv.lint import RULES

# rule, body of a kernel
IN_KERNEL = [
    ("NKL101", "a = «x is y"),
    ("NKL101", "a = «x.dtype is not y.dtype"),
    ("NKL101", "a = «n is True"),
    ("NKL101", "a = 1 < «n is y"),
    ("NKL101", 'a = "äß€" + («x is y)'),
    ("NKL103", "«try:\n    n = 1\nfinally:\n    n = 2"),
    ("NKL103", "if n:\n    «try:\n        n = 1\n    except ValueError:\n        n = 2"),
    ("NKL104", "«with open(n):\n    n = 1"),
    ("NKL104", "«with n:\n    n = 1"),
    ("NKL104", "«with nl.no_reorder(), nl.other():\n    n = 1"),
    ("NKL105", "«yield x"),
    ("NKL105", "«yield from x"),
    ("NKL107", "f = «lambda a: a"),
    ("NKL107", "f = x(key=«lambda: n)"),
    ("NKL108", "a = «[t for t in x]"),
    ("NKL108", "a = «{t: t for t in x}"),
    ("NKL108", "a = x«(t for t in y)"),
    ("NKL111", "a = («b := n)"),
    ("NKL112", "x(«*y)"),
    ("NKL112", "x(«**y)"),
    ("NKL112", "a, «*b = y"),
    ("NKL112", "a = [«*x, 1]"),
    ("NKL112", "a = «{**x}"),
    ("NKL113", "«match n:\n    case 1:\n        n = 2"),
    ("NKL114", "«raise n"),
    ("NKL114", "def inner():\n    «raise ValueError(n)\ninner()"),
    ("NKL115", "a = «{1, 2}"),
    ("NKL115", "a = «set(x)"),
    ("NKL115", "a = «frozenset()"),
    ("NKL116", "«del x"),
    ("NKL118", "«class Inner:\n    pass"),
    ("NKL119", 'a = {"b": 1, «2: 3}'),
    ("NKL119", "a = {«(1, 2): 3}"),
    ("NKL119", "a = {«None: 3}"),
    ("NKL120", 'a = «b"bytes"'),
    ("NKL120", "a = «2j"),
    ("NKL120", "a = «4294967296"),
    ("NKL122", "«import math"),
    ("NKL122", "«from math import inf"),
    ("NKL127", "def inner():\n    «nonlocal n\n    n = 1\ninner()"),
    ("NKL201", "def inner(a, *«b):\n    pass"),
    ("NKL204", "def inner(a=«[]):\n    pass"),
]

# why, body of a kernel: not even --strict speaks of it
FINE_IN_KERNEL = [
    ("equality", "a = x == None and y != None"),
    ("membership", "a = n in (1, 2) and n not in [3]"),
    ("the one block there is", "with nl.no_reorder():\n    n = 1"),
    ("assert with a message", 'assert n > 0, f"n={n}"'),
    ("displays", 'a = [1, 2]; b = (1, 2); c = {"d": 1}; e = {}; f = [0] * n'),
    ("a key that is computed", 'a = {x: 1}; b = {f"{n}": 2}'),
    ("unpacking a tuple", "a, b = x.shape"),
    ("a chain of assignments", "a = b = n"),
    ("nested functions", "def inner(a, b=(1, 2)):\n    return a\nz = inner(n)"),
    ("loops", "for i in range(0, n, 2):\n    if i == 1:\n        continue\n    break\nwhile n > 0:\n    n -= 1"),
    ("conditions", "a = 1 if n else 2; b = not n; c = 0 < n < 3"),
    ("32 bits", "a = 4294967295; b = -2147483648; c = 1e30; d = True"),
    ("strings", 'a = "b" + str(n) + f"{n:>4}"'),
    ("known builtins", "a = min(1, max(n, 2)); b = divmod(n, 2); c = isinstance(n, int)"),
    ("slices", "a = x[0:n:2, ...]; b = slice(0, n)"),
    ("an annotation is not compiled", "a: set[int] = n"),
    ("the word in a string", 'a = "x is y"  # try: lambda'),
]

# rule, body of a kernel: only --strict speaks of it
STRICT_IN_KERNEL = [
    ("NKL102", "a = «x is None"),
    ("NKL102", "a = «x is not None"),
    ("NKL102", "a = «None is x"),
    ("NKL117", "for «a, b in x:\n    pass"),
    ("NKL117", "for «(a, (b, c)) in x:\n    pass"),
    ("NKL121", "a = «min(1, 2, n)"),
    ("NKL121", "a = «max(x)"),
    ("NKL124", "a = «sorted(x)"),
    ("NKL124", "for i in «enumerate(x):\n    pass"),
    ("NKL125", "«for i in range(n):\n    pass\nelse:\n    n = 1"),
    ("NKL126", "@«cached\ndef inner():\n    pass"),
]

# rule, module
MODULES = [
    ("NKL106", "@nki.jit\n«async def kernel(x):\n    return x\n"),
    ("NKL118", "«class A:\n    pass\n\n@nki.jit\ndef kernel(x):\n    return A()\n"),
    ("NKL118", "«class A(nl.NKIObject, Enum):\n    pass\n\n@nki.jit\ndef kernel(x):\n    return A()\n"),
    ("NKL118", "«class A(nl.NKIObject, metaclass=B):\n    pass\n\n@nki.jit\ndef kernel(x):\n    return A()\n"),
    ("NKL118", "«class A(dict):\n    a: int\n\n@nki.jit\ndef kernel(x: A):\n    return x.a\n"),
    ("NKL123", "class E(Enum):\n    A = 1\n\n@nki.jit\ndef kernel(x, e):\n    return «E.A < e\n"),
    ("NKL123", "class E(Enum):\n    A = 1\n\n@nki.jit\ndef kernel(x, e):\n    return «e | E.A\n"),
    ("NKL201", "@nki.jit\ndef kernel(x, *, «flag=True):\n    return x\n"),
    ("NKL201", "@nki.jit\ndef kernel(x, **«rest):\n    return x\n"),
    ("NKL201", "@nki.jit\ndef kernel(«x, /, y):\n    return x\n"),
    ("NKL201", "def helper(x, *«rest):\n    return x\n\n@nki.jit\ndef kernel(x):\n    return helper(x)\n"),
]

FINE_MODULES = [
    ("a dataclass", "@dataclass\nclass A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(x):\n    return A(2).a\n"),
    ("NKIObject by name",
     "from nki.language import NKIObject\nclass A(NKIObject):\n    a: int\n\n@nki.jit\ndef k(x: A):\n    return x\n"),
    ("an enumeration", "class E(Enum):\n    A = 1\n\n@nki.jit\ndef kernel(e):\n    return E.A != e or E.A in e\n"),
    ("its value", "class E(Enum):\n    A = 1\n\n@nki.jit\ndef kernel(e):\n    return E.A.value + 1\n"),
    ("a static method", "class A(nl.NKIObject):\n    @staticmethod\n    def f(a):\n        return a\n\n"
     "@nki.jit\ndef kernel(x):\n    return A.f(x)\n"),
    ("its own max", "def max(a):\n    return a\n\n@nki.jit\ndef kernel(x):\n    return max(x)\n"),
    ("a parameter called set", "@nki.jit\ndef kernel(x, set):\n    return set(x)\n"),
    ("Python beside kernels",
     "def host(*a, b=[], **c):\n    return [t is None for t in {1}]\n\n@nki.jit\ndef kernel(x):\n    return x\n"),
]  # fmt: skip


def test_tables_hold_something():
    assert len(IN_KERNEL) > 30
    assert len(STRICT_IN_KERNEL) > 8
    assert len(MODULES) > 8


@pytest.mark.parametrize(("rule", "body"), IN_KERNEL, ids=lambda text: text.replace("\n", " "))
def test_refused_in_a_kernel(tmp_path, rule, body):
    text = in_kernel(body)
    assert found_at(findings(tmp_path, text)) == [(rule, *place) for place in places(text)]


@pytest.mark.parametrize(("rule", "body"), STRICT_IN_KERNEL, ids=lambda text: text.replace("\n", " "))
def test_refused_by_strict_only(tmp_path, rule, body):
    text = in_kernel(body)
    assert findings(tmp_path, text) == ()
    assert found_at(findings(tmp_path, text, strict=True)) == [(rule, *place) for place in places(text)]


@pytest.mark.parametrize(("why", "body"), FINE_IN_KERNEL, ids=[why for why, _ in FINE_IN_KERNEL])
def test_near_misses_in_a_kernel(tmp_path, why, body):
    assert findings(tmp_path, in_kernel(body), strict=True) == ()


@pytest.mark.parametrize(("rule", "text"), MODULES, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(MODULES)])
def test_refused_in_a_module(tmp_path, rule, text):
    text = HEAD + text
    assert found_at(findings(tmp_path, text, strict=True)) == [(rule, *place) for place in places(text)]


@pytest.mark.parametrize(("why", "text"), FINE_MODULES, ids=[why for why, _ in FINE_MODULES])
def test_near_misses_in_a_module(tmp_path, why, text):
    assert findings(tmp_path, HEAD + text, strict=True) == ()


@pytest.mark.parametrize(("rule", "body"), IN_KERNEL + STRICT_IN_KERNEL, ids=lambda text: text.replace("\n", " "))
def test_tracing_takes_all_of_python(tmp_path, rule, body):
    """NKI 0.7 runs kernels as Python, so it has nothing against any of these."""
    assert RULES[rule].versions in ((), ("0.6",))
    assert findings(tmp_path, in_kernel(body), nki="0.7", strict=True) == ()
