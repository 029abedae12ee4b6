"""What kernels take and return, globals, registers and loops on the device: findings with their places, near misses."""

import pytest
from lint_calls import HEAD, findings, found_at, in_kernel, places, write

from nkiconv.lint import lint

BOTH = ("0.6", "0.7")
LOOP = "def body(i):\n    nisa.dma_copy(x, y)\n"

# rule, body of a kernel, versions that report it
IN_KERNEL = [
    ("NKL205", 'a = nl.ndarray((1, 2), nl.float32, buffer=«"sbuf")', BOTH),
    ("NKL205", 'a = nl.ndarray((1, 2), nl.float32, «"shared_hbm")', BOTH),
    ("NKL205", 'a = nl.zeros((1, 2), dtype=nl.float32, buffer=«"psum")', BOTH),
    ("NKL205", 'a = nl.full((1, 2), 0.0, nl.float32, «"hbm")', BOTH),
    ("NKL206", "nisa.dma_copy(x, y, dge_mode=«2)", BOTH),
    ("NKL206", "nisa.tensor_copy(x, y, engine=«0)", BOTH),
    ("NKL206", "nisa.dma_copy(x, y, oob_mode=«1)", BOTH),
    ("NKL207", "a = nl.ndarray((1, 2), nl.float32, buffer=nl.hbm)\nreturn «a", BOTH),
    ("NKL207", "a = nl.ndarray((1, 2), nl.float32)\nreturn «a", BOTH),
    ("NKL207", "a = nl.zeros((1, 2), nl.float32, nl.psum)\nreturn x, «a", BOTH),
    ("NKL207", "return «nl.ndarray((1, 2), nl.float32, buffer=nl.private_hbm)", BOTH),
    ("NKL211", "a = «nl.matmul(x, y)", ("0.6",)),
    ("NKL211", "a = «nl.matmul(x, y, transpose_x=False)", ("0.6",)),
    ("NKL303", "r = nisa.register_alloc(1)\nif «r:\n    n = 1", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\na = 1 if «r > 0 else 2", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\nwhile «r > 0:\n    n = 1", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\na = not «r", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\nassert «r != n", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\na = n or «r", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\nfor i in «range(r):\n    n = 1", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\nfor i in «nl.static_range(0, r):\n    n = 1", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\na = «int(r)", BOTH),
    ("NKL303", "r = nisa.register_alloc(1)\nif «1 + r > n:\n    n = 1", BOTH),
    ("NKL303", "def body(i):\n    s = 2 * i + 1\n    if «s < 3:\n        x(y)\nnl.fori_loop(0, n, body)", BOTH),
    ("NKL310", "r = «nisa.scalar_load(x)", ("0.6",)),
    ("NKL310", "«nisa.scalar_store(x, n)", ("0.6",)),
    ("NKL311", "def body(i):\n    nisa.dma_copy(x[«i // 2], y)\nnl.fori_loop(0, n, body)", ("0.7",)),
    ("NKL303", "def body(i):\n    if «i == 0:\n        nisa.dma_copy(x, y)\nnl.fori_loop(0, n, body)", BOTH),
    ("NKL304", "def body(i):\n    return i\n«nl.fori_loop(0, n, body)", BOTH),
    ("NKL304", f"r = nisa.register_alloc(1)\n{LOOP}«nl.while_loop(r, body)", BOTH),
    ("NKL304", f"r = nisa.register_alloc(1)\n{LOOP}«nl.while_loop(init=r, body_fun=body)", BOTH),
    ("NKL308", "m = [0]\ndef body(i):\n    «m[0] += 1\nnl.fori_loop(0, n, body)", BOTH),
    ("NKL308", "def body(i):\n    «x.count = 1\nnl.fori_loop(0, n, body)", BOTH),
    ("NKL308", "def body(i):\n    «x.tiles.append(i)\nnl.fori_loop(0, n, body)", BOTH),
    ("NKL305", f"{LOOP}with nl.no_reorder():\n    «nl.fori_loop(0, n, body)", BOTH),
    ("NKL306", f"{LOOP}nl.fori_loop(0, n, body, «-1)", BOTH),
    ("NKL306", f"{LOOP}nl.fori_loop(0, n, body, step=«0)", BOTH),
    ("NKL306", f"m = nisa.register_alloc(2)\n{LOOP}nl.fori_loop(0, n, body, step=«m)", BOTH),
    ("NKL306", f"m = nisa.register_alloc(2)\n{LOOP}nl.fori_loop(0, n, body, «m + 1)", BOTH),
]

# rule, body, versions that report it, versions that only --strict reports it for
STRICT_IN_KERNEL = [
    ("NKL301", "for i in «nl.dynamic_range(4):\n    nisa.dma_copy(x, y)", ("0.7",), ("0.6",)),
    ("NKL302", "r = nisa.register_alloc(1)\n«while r:\n    nisa.register_load(r, x)", ("0.7",), ("0.6",)),
    ("NKL313", "for i in «nl.affine_range(4):\n    nisa.dma_copy(x, y)", (), ("0.7",)),
]

LEFT = "for i in nl.dynamic_range(4):\n    if n:\n        «"
CHANGED = "m = 0\nk = []\nfor i in nl.dynamic_range(4):\n    «"
IN_DYNAMIC_RANGE = [
    ("NKL308", f"{CHANGED}m += 1"),
    ("NKL308", f"{CHANGED}k.append(1)"),
    ("NKL309", f"{LEFT}break"),
    ("NKL309", f"{LEFT}return x"),
    ("NKL309", "for i in nl.dynamic_range(4):\n    for j in range(2):\n        «return x"),
]

FINE_IN_KERNEL = [
    ("a buffer by its name", "a = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)"),
    ("a tensor called sbuf", 'a = nl.ndarray((1, 2), nl.float32, nl.sbuf, name="sbuf")'),
    ("a member", "nisa.dma_copy(x, y, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.vector)"),
    ("a transposed product", "a = nl.matmul(x, y, True)\nb = nl.matmul(x, y, transpose_x=n)"),
    ("a body's own list", "def body(i):\n    m = [i]\n    m.append(i)\n    m[0] += 1\nnl.fori_loop(0, n, body)"),
    ("a list in an unrolled loop", "m = []\nfor i in range(4):\n    m.append(i)"),
    ("a view in a body", "def body(i):\n    nisa.dma_copy(x[0:1], y[i])\nnl.fori_loop(0, n, body)"),
    ("no engine", "nisa.tensor_copy(x, y, engine=None)"),
    ("another function's engine", "x.run(engine=3)"),
    ("an output in shared HBM", "a = nl.ndarray((1, 2), nl.float32, buffer=nl.shared_hbm)\nreturn a"),
    ("an output that may be there", "if n:\n    a = nl.ndarray((1, 2), nl.float32, buffer=nl.shared_hbm)\n"
     "else:\n    a = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)\nreturn a"),
    ("a view of something unknown", "a = nl.ndarray((1, 2), nl.float32)\na = x.reshape(a.shape)\nreturn a"),
    ("a parameter", "return x"),
    ("a tensor or an element", "a = nl.ndarray((1, 2), nl.float32)\nfor a in x:\n    pass\nreturn a"),
    ("what an inner function returns", "def f():\n    a = nl.ndarray((1, 2), nl.float32)\n    return a\nreturn x(f())"),
    ("a return inside a body", "def body(i):\n    def g():\n        return 1\n    g()\nnl.fori_loop(0, n, body)"),
    ("the buffer is a variable", "a = nl.ndarray((1, 2), nl.float32, buffer=n)\nreturn a"),
    ("whether there is a register", "r = nisa.register_alloc(1)\nif r != None and n:\n    n = 1"),
    ("a register as an offset", "r = nisa.register_alloc(1)\nnisa.dma_copy(x, y.ap([[1, 1]], scalar_offset=r))"),
    ("sometimes a number", "r = 1\nif n:\n    r = nisa.register_alloc(1)\nif r:\n    n = 1"),
    ("a loop on the device", f"r = nisa.register_alloc(1)\n{LOOP}nl.fori_loop(0, r, body, 2)"),
    ("a while loop on the device",
     "r = nisa.register_alloc(1)\ndef body(r):\n    nisa.register_load(r, x)\n    return r\nnl.while_loop(r, body)"),
    ("an order kept inside it", "def body(i):\n    with nl.no_reorder():\n        x(y)\nnl.fori_loop(0, n, body)"),
    ("lists of its own", "a = []\na.append(n)\na[0] = 1\nb = {}\nb['c'] = 1"),
]  # fmt: skip

STATE = [
    ("NKL109", "COUNT = 0\n\n@nki.jit\ndef kernel(x):\n    «global COUNT\n    COUNT = 1\n    return x\n"),
    ("NKL110", "SEEN = []\n\n@nki.jit\ndef kernel(x):\n    «SEEN.append(1)\n    return x\n"),
    ("NKL110", "SEEN = {}\n\n@nki.jit\ndef kernel(x):\n    «SEEN['a'] = 1\n    return x\n"),
    ("NKL110", "SEEN = {}\n\n@nki.jit\ndef kernel(x):\n    «SEEN['a']['b'] = 1\n    return x\n"),
    ("NKL110", "SEEN = dict()\n\n@nki.jit\ndef kernel(x):\n    «SEEN.update(a=1)\n    return x\n"),
    ("NKL110", "class A(nl.NKIObject):\n    a: int = 1\n\n@nki.jit\ndef kernel(x):\n    «A.a = 2\n    return x\n"),
    ("NKL110", "N = 1\n\ndef turn():\n    global N\n    N = 2\n\n@nki.jit\ndef kernel(x):\n    return x[«N]\n"),
]

FINE_STATE = [
    ("a constant", "N = 4\nT = [1, 2]\n\n@nki.jit\ndef kernel(x):\n    return x[N, T[0], len(T)]\n"),
    ("its own list of that name", "S = []\n\n@nki.jit\ndef kernel(x):\n    S = []\n    S.append(1)\n    return x\n"),
    ("a parameter of that name", "S = []\n\n@nki.jit\ndef kernel(S):\n    S.append(1)\n    return S\n"),
    ("its own name beside a changing one",
     "def turn():\n    global N\n    N = 2\n\n@nki.jit\ndef kernel(N):\n    return N\n"),
    ("host code", "S = []\n\ndef host():\n    S.append(1)\n\n@nki.jit\ndef kernel(x):\n    return x\n"),
    ("an object's own field",
     "class A(nl.NKIObject):\n    def add(self):\n        self.a.append(1)\n        self.b = 2\n\n"
     "@nki.jit\ndef kernel(x):\n    A().add()\n    return x\n"),
]  # fmt: skip

ENTRY = [
    ("NKL202", "@nki.jit\ndef kernel(x, stride=«[1, 1]):\n    return x\n"),
    ("NKL202", "@nki.jit\ndef kernel(x, config=«{}):\n    return x\n"),
    ("NKL203", "@nki.jit\ndef kernel(x, stride):\n    return x\n\nkernel(1, «[1, 1])\n"),
    ("NKL203", "@nki.jit\ndef kernel(x, stride):\n    return x\n\ndef f(x):\n    return kernel[2](x, stride=«[1])\n"),
    ("NKL203", "@nki.jit\ndef kernel(x):\n    return x\n\nkernel(«[i for i in (1, 2)])\n"),
    ("NKL208", "@nki.jit(«platform_target='trn2')\ndef kernel(x):\n    return x\n"),
    ("NKL210", "«import neuronxcc.nki.language as nl\n\n@nki.jit\ndef kernel(x):\n    return nl.add(x, nl.exp(x))\n"),
    ("NKL210", "«from neuronxcc.nki import isa as nisa\n\n@nki.jit\ndef kernel(x):\n    return nisa.f(x)\n"),
    ("NKL210", "«import neuronxcc.nki\n\n@neuronxcc.nki.jit\ndef kernel(x):\n    return x\n"),
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

FINE_ENTRY = [
    ("a tuple by default", "@nki.jit\ndef kernel(x, stride=(1, 1), name=None):\n    return x\n\nkernel(1, (1, 1))\n"),
    ("names of other packages", "import numpy as np\n\n@nki.jit\ndef kernel(x):\n    return x\n\nx = np.mgrid[0:8]\n"),
    ("a list in a kernel's helper", "def f(a):\n    return a\n\n@nki.jit\ndef kernel(x):\n    return f([x])\n"),
    ("a list to a sub-kernel", "@nki.jit\ndef f(a):\n    return a[0]\n\n@nki.jit\ndef kernel(x):\n    return f([x])\n"),
    ("what a sub-kernel returns to a kernel",
     "@nki.jit\ndef f(x):\n    a = nl.ndarray((1, 2), nl.float32)\n    return a\n\n"
     "@nki.jit\ndef kernel(x):\n    f(x)\n    return x\n"),
    ("a list to another function", "def f(a):\n    return a\n\n@nki.jit\ndef kernel(x):\n    return x\n\nf([1])\n"),
    ("an old import that no kernel uses", "import neuronxcc.nki as old\n\n@nki.jit\ndef kernel(x):\n    return x\n"),
    ("a dataclass's equality",
     "@dataclass(frozen=True, eq=True)\nclass A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(x, b: A):\n"
     "    a = A(1)\n    assert a == b\n    return x\n"),
    ("an equality of its own",
     "class A(nl.NKIObject):\n    def __eq__(self, other):\n        return True\n\n@nki.jit\ndef kernel(x, b: A):\n"
     "    return b == x\n"),
    ("none at all", "class A(nl.NKIObject):\n    a: int\n\n@nki.jit\ndef kernel(b: A):\n    return b == None\n"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "body", "versions"), IN_KERNEL, ids=[f"{r}-{b!r}" for r, b, _ in IN_KERNEL])
def test_refused_in_a_kernel(tmp_path, rule, body, versions):
    text = in_kernel(body)
    for nki in BOTH:
        expected = [(rule, *place) for place in places(text)] if nki in versions else []
        assert found_at(findings(tmp_path, text, nki=nki)) == expected


@pytest.mark.parametrize("nki", BOTH)
@pytest.mark.parametrize(("rule", "body", "versions", "strict"), STRICT_IN_KERNEL, ids=lambda value: str(value)[:6])
def test_deprecated_before_it_is_gone(tmp_path, rule, body, versions, strict, nki):
    text = in_kernel(body)
    marked = [(rule, *place) for place in places(text)]
    assert found_at(findings(tmp_path, text, nki=nki)) == (marked if nki in versions else [])
    assert found_at(findings(tmp_path, text, nki=nki, strict=True)) == (marked if nki in (*versions, *strict) else [])


def test_a_scalar_is_stored_from_no_number(tmp_path):
    """In NKI 0.6, which has no scalars, that is what is wrong with the call."""
    text = in_kernel("nisa.scalar_store(x, «3)\nnisa.scalar_store(x, n)")
    assert found_at(findings(tmp_path, text, nki="0.7")) == [("NKL312", *place) for place in places(text)]
    assert {rule for rule, *_ in found_at(findings(tmp_path, text, nki="0.6"))} == {"NKL310"}


def test_a_nonlocal_name_of_a_body_is_no_python_of_nki_06_either(tmp_path):
    text = in_kernel("m = 0\ndef body(i):\n    «nonlocal m\n    m += 1\nnl.fori_loop(0, n, body)")
    [place] = places(text)
    assert found_at(findings(tmp_path, text, nki="0.6")) == [("NKL127", *place), ("NKL308", *place)]
    assert found_at(findings(tmp_path, text, nki="0.7")) == [("NKL308", *place)]


@pytest.mark.parametrize(("rule", "body"), IN_DYNAMIC_RANGE, ids=[f"{r}-{b!r}" for r, b in IN_DYNAMIC_RANGE])
def test_loops_over_a_range_on_the_device(tmp_path, rule, body):
    text = in_kernel(body)
    assert found_at(findings(tmp_path, text, nki="0.6")) == [(rule, *place) for place in places(text)]


@pytest.mark.parametrize(("why", "body"), FINE_IN_KERNEL, ids=[why for why, _ in FINE_IN_KERNEL])
def test_near_misses_in_a_kernel(tmp_path, why, body):
    for nki in BOTH:
        assert findings(tmp_path, in_kernel(body), nki=nki, strict=True) == ()


@pytest.mark.parametrize(("rule", "text"), STATE + ENTRY, ids=[f"{r}-{i}" for i, (r, _) in enumerate(STATE + ENTRY)])
def test_refused_in_a_module(tmp_path, rule, text):
    text = HEAD + text
    for nki in BOTH:
        assert found_at(findings(tmp_path, text, nki=nki)) == [(rule, *place) for place in places(text)]


@pytest.mark.parametrize(("why", "text"), FINE_STATE + FINE_ENTRY, ids=[why for why, _ in FINE_STATE + FINE_ENTRY])
def test_near_misses_in_a_module(tmp_path, why, text):
    assert findings(tmp_path, HEAD + text, strict=True) == ()


def test_mode_is_ignored_and_so_only_strict_says_it(tmp_path):
    text = HEAD + "@nki.jit(«mode='trace')\ndef kernel(x):\n    return x\n"
    assert findings(tmp_path, text) == ()
    assert found_at(findings(tmp_path, text, strict=True)) == [("NKL209", *place) for place in places(text)]


def test_a_global_statement_and_what_it_means(tmp_path):
    text = HEAD + "N = 1\n\n@nki.jit\ndef kernel(x):\n    «global N\n    N = 2\n    return x[«N]\n"
    rules = ("NKL109", "NKL110")
    expected = [(rule, *place) for rule, place in zip(rules, places(text), strict=True)]
    assert found_at(findings(tmp_path, text)) == expected


def test_changing_another_file(tmp_path):
    write(tmp_path, "FLAG = 1\n", "config.py")
    text = f"import config\n{HEAD}@nki.jit\ndef kernel(x):\n    «config.FLAG = 2\n    return x\n"
    write(tmp_path, text)
    assert found_at(lint([tmp_path], nki="0.6").findings) == [("NKL110", *place) for place in places(text)]
