"""What the linter finds in kernels, by the versions of NKI that have something against it, and near misses."""

import pytest
from lint_calls import HEAD, findings, found_at, in_kernel, places, write

from nkiconv.lint import lint

OLD, NEW, BOTH = ("0.6",), ("0.7",), ("0.6", "0.7")
LOOP = "def body(i):\n    nisa.dma_copy(x, y)\n"
#: A rule, versions that report it, versions that only --strict reports it for, and bodies of kernels.
IN_KERNEL = [
    ("NKL101", OLD, (), "a = «x is y", "a = «n is True", 'a = "äß€" + («x is y)'),
    ("NKL103", OLD, (), "«try:\n    n = 1\nfinally:\n    n = 2"),
    ("NKL104", OLD, (), "«with open(n):\n    n = 1", "«with nl.no_reorder(), nl.other():\n    n = 1"),
    ("NKL105", OLD, (), "«yield x", "«yield from x"),
    ("NKL107", OLD, (), "f = «lambda a: a"),
    ("NKL108", OLD, (), "a = «[t for t in x]", "a = x«(t for t in y)"),
    ("NKL111", OLD, (), "a = («b := n)"),
    ("NKL112", OLD, (), "x(«*y)", "x(«**y)", "a, «*b = y", "a = «{**x}"),
    ("NKL113", OLD, (), "«match n:\n    case 1:\n        n = 2"),
    ("NKL114", OLD, (), "«raise n"),
    ("NKL115", OLD, (), "a = «{1, 2}", "a = «set(x)"),
    ("NKL116", OLD, (), "«del x"),
    ("NKL118", OLD, (), "«class Inner:\n    pass"),
    ("NKL119", OLD, (), 'a = {"b": 1, «2: 3}', "a = {«None: 3}"),
    ("NKL120", OLD, (), 'a = «b"bytes"', "a = «4294967296"),
    ("NKL122", OLD, (), "«import math"),
    ("NKL127", OLD, (), "def inner():\n    «nonlocal n\n    n = 1\ninner()"),
    ("NKL201", OLD, (), "def inner(a, *«b):\n    pass"),
    ("NKL204", OLD, (), "def inner(a=«[]):\n    pass"),
    ("NKL128", OLD, (), "if «x[0].shape:\n    n = 1", "if n and «x[0].shape == y:\n    n = 1",
     "for i in range(len(«x[n].parts)):\n    n = 1", "while n < «x[n].first:\n    n += 1",
     "while «x.loads[n].first.kn < n:\n    n += 1", "if «x[«y(n).at].kn:\n    n = 1"),
    ("NKL130", OLD, (), "«x.a, «x.b = 1, 2", "n, (a, «x.b) = y", "«x.a = x.b = 1", "a = «x[0] = y(n)"),
    ("NKL131", OLD, (), "«x.a.b = 1", "«x.a.b.c = 1"),
    ("NKL133", OLD, (), "a = «len(x) == 1.0", "a = «len(x) > -1.5", "share = 1.0\nif «share <= 1:\n    n = 1",
     "share = len(x) / 2\na = n == 1 or «share == 2", "a = 1\nb = a * 2\nc = 0.0 < 1.0 and «b == 2.0"),
    ("NKL205", BOTH, (), 'a = nl.ndarray((1, 2), nl.float32, buffer=«"sbuf")',
     'a = nl.full((1, 2), 0.0, nl.float32, «"hbm")'),
    ("NKL206", BOTH, (), "nisa.dma_copy(x, y, dge_mode=«2)", "nisa.tensor_copy(x, y, engine=«0)"),
    ("NKL207", BOTH, (), "a = nl.ndarray((1, 2), nl.float32, buffer=nl.hbm)\nreturn «a",
     "a = nl.ndarray((1, 2), nl.float32)\nreturn «a", "return «nl.ndarray((1, 2), nl.float32, buffer=nl.private_hbm)"),
    ("NKL211", OLD, (), "a = «nl.matmul(x, y)", "a = «nl.matmul(x, y, transpose_x=False)"),
    ("NKL303", BOTH, (), "r = nisa.register_alloc(1)\nif «r:\n    n = 1",
     "r = nisa.register_alloc(1)\nwhile «r > 0:\n    n = 1", "r = nisa.register_alloc(1)\na = not «r",
     "r = nisa.register_alloc(1)\nassert «r != n", "r = nisa.register_alloc(1)\nfor i in «range(r):\n    n = 1",
     "r = nisa.register_alloc(1)\na = «int(r)",
     "def body(i):\n    s = 2 * i + 1\n    if «s < 3:\n        x(y)\nnl.fori_loop(0, n, body)",
     "def body(i):\n    if «i == 0:\n        nisa.dma_copy(x, y)\nnl.fori_loop(0, n, body)"),
    ("NKL310", OLD, (), "r = «nisa.scalar_load(x)", "«nisa.scalar_store(x, n)"),
    ("NKL311", NEW, (), "def body(i):\n    nisa.dma_copy(x[«i // 2], y)\nnl.fori_loop(0, n, body)"),
    ("NKL304", BOTH, (), "def body(i):\n    return i\n«nl.fori_loop(0, n, body)",
     f"r = nisa.register_alloc(1)\n{LOOP}«nl.while_loop(r, body)"),
    ("NKL308", BOTH, (), "m = [0]\ndef body(i):\n    «m[0] += 1\nnl.fori_loop(0, n, body)",
     "def body(i):\n    «x.count = 1\nnl.fori_loop(0, n, body)",
     "def body(i):\n    «x.tiles.append(i)\nnl.fori_loop(0, n, body)"),
    ("NKL305", BOTH, (), f"{LOOP}with nl.no_reorder():\n    «nl.fori_loop(0, n, body)"),
    ("NKL306", BOTH, (), f"{LOOP}nl.fori_loop(0, n, body, «-1)",
     f"m = nisa.register_alloc(2)\n{LOOP}nl.fori_loop(0, n, body, step=«m)",
     f"m = nisa.register_alloc(2)\n{LOOP}nl.fori_loop(0, n, body, «m + 1)"),
    ("NKL102", (), OLD, "a = «x is None", "a = «x is not None"),
    ("NKL117", (), OLD, "for «a, b in x:\n    pass", "for «(a, (b, c)) in x:\n    pass"),
    ("NKL121", (), OLD, "a = «min(1, 2, n)", "a = «max(x)"),
    ("NKL124", (), OLD, "a = «sorted(x)", "for i in «enumerate(x):\n    pass"),
    ("NKL125", (), OLD, "«for i in range(n):\n    pass\nelse:\n    n = 1"),
    ("NKL126", (), OLD, "@«cached\ndef inner():\n    pass"),
    ("NKL129", (), OLD, "a = n and «x[0].kn", "a = «x[0].kn if n else 1", "a = 1 if n else y(«x[0].view(2))"),
    ("NKL132", (), OLD, "a = [1, 2]\nb = «a[0:n]", "a = []\na.append(n)\nb = «a[:n]",
     "b = len(x.parts)\nc = «x.parts[n : 2 * n]", "for i in range(0, len(x), n):\n    a = «x[i : i + n]",
     "most = 2\nif n:\n    most = n\na = list(x)\nb = «a[0:most]"),
    ("NKL301", NEW, OLD, "for i in «nl.dynamic_range(4):\n    nisa.dma_copy(x, y)"),
    ("NKL302", NEW, OLD, "r = nisa.register_alloc(1)\n«while r:\n    nisa.register_load(r, x)"),
    ("NKL313", (), NEW, "for i in «nl.affine_range(4):\n    nisa.dma_copy(x, y)"),
]  # fmt: skip

LEFT = "for i in nl.dynamic_range(4):\n    if n:\n        «"
CHANGED = "m = 0\nk = []\nfor i in nl.dynamic_range(4):\n    «"
IN_DYNAMIC_RANGE = [
    ("NKL308", f"{CHANGED}m += 1"),
    ("NKL308", f"{CHANGED}k.append(1)"),
    ("NKL309", f"{LEFT}break"),
    ("NKL309", f"{LEFT}return x"),
    ("NKL309", "for i in nl.dynamic_range(4):\n    for j in range(2):\n        «return x"),
]

# why, body of a kernel: not even --strict speaks of it
FINE = [
    ("the one block there is", "with nl.no_reorder():\n    n = 1"),
    ("unpacking a tuple", "a, b = x.shape"),
    ("a chain of assignments", "a = b = n"),
    ("nested functions", "def inner(a, b=(1, 2)):\n    return a\nz = inner(n)"),
    ("an annotation is not compiled", "a: set[int] = n"),
    ("bound before the block", "one = x[0]\nif one.kn:\n    n = 1"),
    ("attributes of names", "if x.a.b == nl.tile_size.pmax:\n    n = 1"),
    ("what guards comes first", "a = x[0].kn and n\nb = 1 if x[0].kn else 2"),
    ("a subscript that is guarded", "a = n and x[0]\nb = x[0] if n else x.kn"),
    ("one attribute, one subscript", "x.a = 1\nx[0] = 2\nx.a[0] = 3\nx[0].a = 4\nx.a.b[1] = 5\nx.a += 1"),
    ("now one, now the other", "a = 1\nif n:\n    a = 2.5\nb = a == 1.0"),
    ("what equal numbers do not change", "a = len(x) < 1.5 or len(x) >= 0.5"),
    ("booleans", "a = 1.0 == True"),
    ("a name that grows", "a = 0\na += x\nb = a == 0.0"),
    ("a tensor's slice", "a = x[0:n]\nb = nl.zeros((2, n), nl.float32)[0:n, 0:2]"),
    ("an end that the length bounds", "a = [1, 2]\nb = a[0 : min(n, len(a))]\nc = a[n:]\nd = a[: len(a) - 1]"),
    ("an end that was bounded before", "end = min(n, len(x))\na = x[0:end]\nb = x[0 : end - 1]"),
    ("up to a place in it", "for i in range(len(x)):\n    a = x[:i] + x[: i + 1] + x[i + 1 :]"),
    ("a number", "a = (1, 2, 3)\nb = a[0:2] + a[:-1]\nk = 0 if n else 1\nc = a[:k]"),
    ("a tensor called sbuf", 'a = nl.ndarray((1, 2), nl.float32, nl.sbuf, name="sbuf")'),
    ("a transposed product", "a = nl.matmul(x, y, True)\nb = nl.matmul(x, y, transpose_x=n)"),
    ("a body's own list", "def body(i):\n    m = [i]\n    m.append(i)\n    m[0] += 1\nnl.fori_loop(0, n, body)"),
    ("another function's engine", "x.run(engine=3)"),
    ("an output in shared HBM", "a = nl.ndarray((1, 2), nl.float32, buffer=nl.shared_hbm)\nreturn a"),
    ("an output that may be there", "if n:\n    a = nl.ndarray((1, 2), nl.float32, buffer=nl.shared_hbm)\n"
     "else:\n    a = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)\nreturn a"),
    ("a view of something unknown", "a = nl.ndarray((1, 2), nl.float32)\na = x.reshape(a.shape)\nreturn a"),
    ("a tensor or an element", "a = nl.ndarray((1, 2), nl.float32)\nfor a in x:\n    pass\nreturn a"),
    ("a return inside a body", "def body(i):\n    def g():\n        return 1\n    g()\nnl.fori_loop(0, n, body)"),
    ("whether there is a register", "r = nisa.register_alloc(1)\nif r != None and n:\n    n = 1"),
    ("a register as an offset", "r = nisa.register_alloc(1)\nnisa.dma_copy(x, y.ap([[1, 1]], scalar_offset=r))"),
    ("sometimes a number", "r = 1\nif n:\n    r = nisa.register_alloc(1)\nif r:\n    n = 1"),
    ("a loop on the device", f"r = nisa.register_alloc(1)\n{LOOP}nl.fori_loop(0, r, body, 2)"),
    ("a while loop on the device",
     "r = nisa.register_alloc(1)\ndef body(r):\n    nisa.register_load(r, x)\n    return r\nnl.while_loop(r, body)"),
    ("an order kept inside it", "def body(i):\n    with nl.no_reorder():\n        x(y)\nnl.fori_loop(0, n, body)"),
]  # fmt: skip

# rule, module: NKI 0.6 has something against it
OF_06 = [
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

# rule, module: both have
OF_BOTH = [
    ("NKL109", "COUNT = 0\n\n@nki.jit\ndef kernel(x):\n    «global COUNT\n    COUNT = 1\n    return x\n"),
    ("NKL110", "SEEN = []\n\n@nki.jit\ndef kernel(x):\n    «SEEN.append(1)\n    return x\n"),
    ("NKL110", "SEEN = {}\n\n@nki.jit\ndef kernel(x):\n    «SEEN['a']['b'] = 1\n    return x\n"),
    ("NKL110", "SEEN = dict()\n\n@nki.jit\ndef kernel(x):\n    «SEEN.update(a=1)\n    return x\n"),
    ("NKL110", "class A(nl.NKIObject):\n    a: int = 1\n\n@nki.jit\ndef kernel(x):\n    «A.a = 2\n    return x\n"),
    ("NKL110", "N = 1\n\ndef turn():\n    global N\n    N = 2\n\n@nki.jit\ndef kernel(x):\n    return x[«N]\n"),
    ("NKL202", "@nki.jit\ndef kernel(x, stride=«[1, 1]):\n    return x\n"),
    ("NKL203", "@nki.jit\ndef kernel(x, stride):\n    return x\n\nkernel(1, «[1, 1])\n"),
    ("NKL203", "@nki.jit\ndef kernel(x, stride):\n    return x\n\ndef f(x):\n    return kernel[2](x, stride=«[1])\n"),
    ("NKL208", "@nki.jit(«platform_target='trn2')\ndef kernel(x):\n    return x\n"),
    ("NKL210", "«import neuronxcc.nki.language as nl\n\n@nki.jit\ndef kernel(x):\n    return nl.add(x, nl.exp(x))\n"),
    ("NKL210", "«import neuronxcc.nki\n\n@nki.jit\ndef kernel(x):\n    return neuronxcc.nki.isa.f(x)\n"),
    ("NKL210", "«import neuronxcc.nki.isa\n\n@nki.jit\ndef kernel(x):\n    return neuronxcc.nki.isa.f(x)\n"),
    ("NKL212",
     "@nki.jit\ndef kernel(x):\n    i, j = «nl.mgrid[0:8, 0:4]\n    return x\n\nx = «nki.simulate_kernel(kernel)\n"),
    ("NKL212", "from nki.language import arange, zeros\nfrom nki import baremetal as timed\n\n@«timed\n@nki.jit\n"
     "def kernel(x):\n    zeros(«arange(4))\n    return x\n"),
    ("NKL307", "class A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(x):\n    a = A(1)\n    b = A(1)\n"
     "    assert «a == b\n    return x\n"),
    ("NKL307", "@dataclass(eq=False)\nclass A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(x, a: A, b):\n"
     "    assert «a != b\n    return x\n"),
]  # fmt: skip

FINE_MODULES = [
    ("a dataclass", "@dataclass\nclass A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(x):\n    return A(2).a\n"),
    ("NKIObject by name",
     "from nki.language import NKIObject\nclass A(NKIObject):\n    a: int\n\n@nki.jit\ndef k(x: A):\n    return x\n"),
    ("a base in a module of a long name",
     "class A(kernels_of_this_company.language_of_kernels.NKIObject):\n    a: int\n\n"
     "@nki.jit\ndef kernel(x):\n    return A(2).a\n"),
    ("an enumeration", "class E(Enum):\n    A = 1\n\n@nki.jit\ndef kernel(e):\n    return E.A != e or E.A in e\n"),
    ("its own max", "def max(a):\n    return a\n\n@nki.jit\ndef kernel(x):\n    return max(x)\n"),
    ("a parameter called set", "@nki.jit\ndef kernel(x, set):\n    return set(x)\n"),
    ("Python beside kernels",
     "def host(*a, b=[], **c):\n    return [t is None for t in {1}]\n\n@nki.jit\ndef kernel(x):\n    return x\n"),
    ("its own len", "def len(x):\n    return x\n\n@nki.jit\ndef kernel(x):\n    return len(x) == 1.0\n"),
    ("Python beside kernels",
     "def host(x):\n    x.a, x.b.c = 1, 2\n    if x[0].a == len(x) == 1.0:\n        return x\n"),
    ("its own list of that name", "S = []\n\n@nki.jit\ndef kernel(x):\n    S = []\n    S.append(1)\n    return x\n"),
    ("a parameter of that name", "S = []\n\n@nki.jit\ndef kernel(S):\n    S.append(1)\n    return S\n"),
    ("an object's own field",
     "class A(nl.NKIObject):\n    def add(self):\n        self.a.append(1)\n        self.b = 2\n\n"
     "@nki.jit\ndef kernel(x):\n    A().add()\n    return x\n"),
    ("a list to a sub-kernel", "@nki.jit\ndef f(a):\n    return a[0]\n\n@nki.jit\ndef kernel(x):\n    return f([x])\n"),
    ("what a sub-kernel returns to a kernel",
     "@nki.jit\ndef f(x):\n    a = nl.ndarray((1, 2), nl.float32)\n    return a\n\n"
     "@nki.jit\ndef kernel(x):\n    f(x)\n    return x\n"),
    ("an old import that no kernel uses", "import neuronxcc.nki as old\n\n@nki.jit\ndef kernel(x):\n    return x\n"),
    ("a dataclass's equality",
     "@dataclass(frozen=True, eq=True)\nclass A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(x, b: A):\n"
     "    a = A(1)\n    assert a == b\n    return x\n"),
    ("an equality of its own",
     "class A(nl.NKIObject):\n    def __eq__(self, other):\n        return True\n\n@nki.jit\ndef kernel(x, b: A):\n"
     "    return b == x\n"),
]  # fmt: skip


ROWS = [
    (rule, body, *versions) for rule, *versions, bodies in ((*row[:3], row[3:]) for row in IN_KERNEL) for body in bodies
]
MODULES = [*((*row, OLD) for row in OF_06), *((*row, BOTH) for row in OF_BOTH)]


@pytest.mark.parametrize(("rule", "body", "versions", "strict"), ROWS, ids=[f"{row[0]}-{row[1]!r}" for row in ROWS])
def test_refused_in_a_kernel(tmp_path, rule, body, versions, strict):
    text = in_kernel(body)
    marked = [(rule, *place) for place in places(text)]
    for nki in BOTH:
        assert found_at(findings(tmp_path, text, nki=nki)) == (marked if nki in versions else [])
        if strict:
            wanted = marked if nki in (*versions, *strict) else []
            assert found_at(findings(tmp_path, text, nki=nki, strict=True)) == wanted


@pytest.mark.parametrize(("why", "body"), FINE, ids=[why for why, _ in FINE])
def test_near_misses_in_a_kernel(tmp_path, why, body):
    for nki in BOTH:
        assert findings(tmp_path, in_kernel(body), nki=nki, strict=True) == ()


@pytest.mark.parametrize(("rule", "text", "versions"), MODULES, ids=[f"{i}-{row[0]}" for i, row in enumerate(MODULES)])
def test_refused_in_a_module(tmp_path, rule, text, versions):
    text = HEAD + text
    for nki in versions:
        found = findings(tmp_path, text, nki=nki, strict=versions == OLD)
        assert found_at(found) == [(rule, *place) for place in places(text)]


@pytest.mark.parametrize(("why", "text"), FINE_MODULES, ids=[why for why, _ in FINE_MODULES])
def test_near_misses_in_a_module(tmp_path, why, text):
    assert findings(tmp_path, HEAD + text, strict=True) == ()


NONLOCAL = in_kernel("m = 0\ndef body(i):\n    «nonlocal m\n    m += 1\nnl.fori_loop(0, n, body)")
MODE = HEAD + "@nki.jit(«mode='trace')\ndef kernel(x):\n    return x\n"


# Version, whether strictly, a module, and the rules of its marks, of one mark several. NKI 0.6 has no scalars, and
# ignores mode.
@pytest.mark.parametrize(("nki", "strict", "text", "rules"), [
    *(("0.6", False, in_kernel(body), [rule]) for rule, body in IN_DYNAMIC_RANGE),
    ("0.7", False, in_kernel("nisa.scalar_store(x, «3)\nnisa.scalar_store(x, n)"), ["NKL312"]),
    ("0.6", False, NONLOCAL, ["NKL127", "NKL308"]), ("0.7", False, NONLOCAL, ["NKL308"]),
    ("0.6", False, MODE, []), ("0.6", True, MODE, ["NKL209"]),
    ("0.6", False, HEAD + "N = 1\n\n@nki.jit\ndef kernel(x):\n    «global N\n    N = 2\n    return x[«N]\n",
     ["NKL109", "NKL110"]),
])  # fmt: skip
def test_refused_by_one_version(tmp_path, nki, strict, text, rules):
    marks = places(text) if len(places(text)) == len(rules) else places(text) * len(rules)
    expected = [(rule, *place) for rule, place in zip(rules, marks, strict=True)]
    assert found_at(findings(tmp_path, text, nki=nki, strict=strict)) == expected


def test_changing_another_file(tmp_path):
    write(tmp_path, "FLAG = 1\n", "config.py")
    text = f"import config\n{HEAD}@nki.jit\ndef kernel(x):\n    «config.FLAG = 2\n    return x\n"
    write(tmp_path, text)
    assert found_at(lint([tmp_path], nki="0.6").findings) == [("NKL110", *place) for place in places(text)]


def test_remedies_name_what_was_found(tmp_path):
    (store,) = findings(tmp_path, in_kernel("x[0].a.b = 1"))
    assert store.remedy == "bind x[0].a to a name, and assign to .b of that"
    (end,) = findings(tmp_path, in_kernel("a = [1, 2]\nb = a[0:n]"), strict=True)
    assert end.remedy == "write min(n, len(a)) for the end"
    (header,) = findings(tmp_path, in_kernel("while x[0].kn:\n    n = 1"))
    assert header.message.startswith("`x[0].kn` in the header of while: ")
