"""Python that the parser of NKI 0.3 to 0.6 does not compile, binds too late or compares otherwise, and near misses."""

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
    ("NKL128", "if «x[0].shape:\n    n = 1"),
    ("NKL128", "if n and «x[0].shape == y:\n    n = 1"),
    ("NKL128", "if n:\n    n = 1\nelif «y(n).shape == 2:\n    n = 2"),
    ("NKL128", "for i in range(len(«x[n].parts)):\n    n = 1"),
    ("NKL128", "for i in «y(x).parts:\n    n = 1"),
    ("NKL128", "while n < «x[n].first:\n    n += 1"),
    ("NKL128", "while «x.loads[n].first.kn < n:\n    n += 1"),
    ("NKL128", "if «(x + y).kn:\n    n = 1"),
    ("NKL128", "if «x[«y(n).at].kn:\n    n = 1"),
    ("NKL128", "if n == (1 if «x[0].kn else 2):\n    n = 1"),
    ("NKL130", "«x.a, «x.b = 1, 2"),
    ("NKL130", "n, «x[0] = 1, 2"),
    ("NKL130", "n, (a, «x.b) = y"),
    ("NKL130", "[n, «x.b] = y"),
    ("NKL130", "«x.a = x.b = 1"),
    ("NKL130", "a = «x[0] = y(n)"),
    ("NKL131", "«x.a.b = 1"),
    ("NKL131", "«x.a.b += 1"),
    ("NKL131", "«x[0].a.b = 1"),
    ("NKL131", "«x.a.b.c = 1"),
    ("NKL133", "a = «len(x) == 1.0"),
    ("NKL133", "a = «0 != float(n)"),
    ("NKL133", "a = «len(x) > -1.5"),
    ("NKL133", "share = 1.0\nif «share <= 1:\n    n = 1"),
    ("NKL133", "share = len(x) / 2\na = n == 1 or «share == 2"),
    ("NKL133", "for i in range(n):\n    a = «i == 0.0"),
    ("NKL133", "a = 1\nb = a * 2\nc = 0.0 < 1.0 and «b == 2.0"),
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
    ("bound before the block", "one = x[0]\nif one.kn:\n    n = 1"),
    ("attributes of names", "if x.a.b == nl.tile_size.pmax:\n    n = 1"),
    ("subscripts of attributes", "while x.parts[0] < n and x.parts[1][2] < n:\n    n += 1"),
    ("calls of names", "for i in range(len(x.parts)):\n    n = min(n, x.most(i))"),
    ("inside the block", "if n:\n    a = x[0].kn"),
    ("in a statement", "a = x[0].kn + y(n).kn"),
    ("what guards comes first", "a = x[0].kn and n\nb = 1 if x[0].kn else 2"),
    ("a subscript that is guarded", "a = n and x[0]\nb = x[0] if n else x.kn"),
    ("an assertion", 'assert x[0].kn == n, f"{x[0].kn}"'),
    ("names together", "a, (b, c) = y\na = b = n"),
    ("the right side", "a, b = x.shape, x[0]"),
    ("one attribute, one subscript", "x.a = 1\nx[0] = 2\nx.a[0] = 3\nx[0].a = 4\nx.a.b[1] = 5\nx.a += 1"),
    ("an attribute of an attribute is read", "a = x.b.c"),
    ("the same types", "a = len(x) == 1 or 1.0 == float(n)"),
    ("whichever it is", "a = n == 1.0 or x == 1"),
    ("now one, now the other", "a = 1\nif n:\n    a = 2.5\nb = a == 1.0"),
    ("what equal numbers do not change", "a = len(x) < 1.5 or len(x) >= 0.5"),
    ("booleans", "a = 1.0 == True"),
    ("a name that grows", "a = 0\na += x\nb = a == 0.0"),
    ("a tensor's slice", "a = x[0:n]\nb = nl.zeros((2, n), nl.float32)[0:n, 0:2]"),
    ("an end that the length bounds", "a = [1, 2]\nb = a[0 : min(n, len(a))]\nc = a[n:]\nd = a[: len(a) - 1]"),
    ("an end that was bounded before", "end = min(n, len(x))\na = x[0:end]\nb = x[0 : end - 1]"),
    ("up to a place in it", "for i in range(len(x)):\n    a = x[:i] + x[: i + 1] + x[i + 1 :]"),
    ("a number", "a = (1, 2, 3)\nb = a[0:2] + a[:-1]\nk = 0 if n else 1\nc = a[:k]"),
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
    ("NKL129", "a = n and «x[0].kn"),
    ("NKL129", "a = n or x or «y(n).kn"),
    ("NKL129", "a = «x[0].kn if n else 1"),
    ("NKL129", "a = 1 if n else y(«x[0].view(2))"),
    ("NKL129", "y(n > 1 and «x[1].kn)"),
    ("NKL132", "a = [1, 2]\nb = «a[0:n]"),
    ("NKL132", "a = []\na.append(n)\nb = «a[:n]"),
    ("NKL132", "b = «x[0:n] if len(x) else y"),
    ("NKL132", "b = len(x.parts)\nc = «x.parts[n : 2 * n]"),
    ("NKL132", "for i in range(0, len(x), n):\n    a = «x[i : i + n]"),
    ("NKL132", "most = 2\nif n:\n    most = n\na = list(x)\nb = «a[0:most]"),
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
    ("NKL133", "@nki.jit\ndef kernel(x, scale: float = 1.0):\n    return x if «scale == 1 else None\n"),
    ("NKL133", "def helper(scale: int):\n    return «scale > 0.0\n\n@nki.jit\ndef kernel(x):\n    return helper(x)\n"),
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
    ("no annotation that says one type", "@nki.jit\ndef kernel(x, n: object = 1):\n    return n == 1.0\n"),
    ("its own len", "def len(x):\n    return x\n\n@nki.jit\ndef kernel(x):\n    return len(x) == 1.0\n"),
    ("Python beside kernels",
     "def host(x):\n    x.a, x.b.c = 1, 2\n    if x[0].a == len(x) == 1.0:\n        return x\n"),
]  # fmt: skip


ROWS = [(*row, False) for row in IN_KERNEL] + [(*row, True) for row in STRICT_IN_KERNEL]


@pytest.mark.parametrize(("rule", "body", "strict"), ROWS, ids=[f"{rule}-{body!r}" for rule, body, _ in ROWS])
def test_refused_in_a_kernel(tmp_path, rule, body, strict):
    """By NKI 0.6, of some by strict only; NKI 0.7 runs kernels as Python, so it has nothing against any of these."""
    text = in_kernel(body)
    assert found_at(findings(tmp_path, text, strict=strict)) == [(rule, *place) for place in places(text)]
    if strict:
        assert findings(tmp_path, text) == ()
    assert RULES[rule].versions in ((), ("0.6",))
    assert findings(tmp_path, text, nki="0.7", strict=True) == ()


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


def test_remedies_name_what_was_found(tmp_path):
    (store,) = findings(tmp_path, in_kernel("x[0].a.b = 1"))
    assert store.remedy == "bind x[0].a to a name, and assign to .b of that"
    (end,) = findings(tmp_path, in_kernel("a = [1, 2]\nb = a[0:n]"), strict=True)
    assert end.remedy == "write min(n, len(a)) for the end"
    (header,) = findings(tmp_path, in_kernel("while x[0].kn:\n    n = 1"))
    assert header.message.startswith("`x[0].kn` in the header of while: ")
