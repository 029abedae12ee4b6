"""Rules of tensors, memory, launches and cores (NKI001-NKI033, NKI150-NKI160) in pairs; see pairs.py."""

import re
from pathlib import Path

import numpy as np
import pytest
from pairs import check_error, dropped, each_pair, run, vary

from nkiconv.simulator import NkiError, execute, hardware, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.rules import RULES

F32, BF16, I32, U8 = nl.float32, nl.bfloat16, nl.int32, nl.uint8


def new(shape=(4, 8), dtype=F32, buffer=nl.sbuf, **settings):
    return nl.ndarray(shape, dtype, buffer, **settings)


def hbm(*shape):
    return new(shape, buffer=nl.hbm)


def used(view):
    """Write to a view: kernels may make one that they must not use."""
    if view.on_chip:
        return nisa.memset(view, 1.0)
    tile = new(view.shape if view.ndim > 1 else (1, *view.shape))
    nisa.memset(tile, 1.0)
    return nisa.dma_copy(view, tile)


def touched(*tensors):
    for tensor in tensors * 2:
        nisa.memset(tensor, 1.0)


def fill(buffer, *columns, **settings):
    touched(*(new((128, n), buffer=buffer, **settings) for n in columns))


def copy_in(columns):
    tile, out = new((4, 16)), new((4, 16))
    nisa.memset(tile[:, 0:8], 1.0)
    nisa.tensor_copy(out[:, 0:columns], tile[:, 0:columns])


def store_to(view):
    nisa.memset(view(new((4, 8))), 1.0)


def value_of(use):
    return use(nl.zeros((4, 8), F32))


def steer(use):
    return use(nisa.register_alloc(3))


def divided(rows):
    shared, tile = new((4, 8), buffer=nl.shared_hbm), nl.full((2, 8), float(nl.program_id(0)), F32)
    start = rows * nl.program_id(0)
    nisa.dma_copy(shared[start : start + 2], tile)


def shared_count(cores):
    if nl.program_id(0) < cores:
        new(buffer=nl.shared_hbm)


def barrier(buffer=nl.shared_hbm, cores=(0, 1), engine=nisa.engine.gpsimd):
    nisa.core_barrier(new(buffer=buffer), cores, engine)


def swap(dst=(4, 8), buffer=nl.sbuf, step=1, columns=8, dma_engine=nisa.dma_engine.dma, dtype=F32):
    src, peer = nl.zeros((4, columns), dtype), nl.program_id(0) ^ step
    dst = new((4, columns) if dst is None else dst, dtype, buffer)
    nisa.sendrecv(src, dst, peer, peer, 0, dma_engine=dma_engine)


def meets(cores):
    shared = new(buffer=nl.shared_hbm)
    if nl.program_id(0) < cores:
        nisa.core_barrier(shared, (0, 1))


# fmt: off
# ruff: noqa: E501  a table with one pair a line
PAIRS = [
    vary("NKI001", "unknown name", lambda t: new(dtype=t), F32, "float64", "dtype='float64'"),
    vary("NKI001", "short name", lambda t: new(dtype=t), BF16, "bf16", r"write nl\.bfloat16"),
    vary("NKI002", "1-d on chip", new, (4, 1), (4,), r"shape=\(4,\) in sbuf"),
    vary("NKI002", "not a tuple", new, [4, 1], 4, "shape=4 is not a tuple"),
    vary("NKI002", "float", new, (4, 8), (4, 8.0), r"size=8\.0"),
    vary("NKI002", "squeeze_dim on chip", lambda s: new(s).squeeze_dim(1), (4, 1, 8), (4, 1), "fewer than 2 dims"),
    vary("NKI002", "reshape", lambda s: new((4, 1)).reshape(s), (4, 1), (4,), "no free dim"),
    vary("NKI002", "reshape to a size", lambda s: hbm(8).reshape(s), (8,), 8, "shape=8 is not a tuple"),
    vary("NKI002", "broadcast", lambda n: new((4, 1)).broadcast(1, n), 1, 0, "broadcast size 0"),
    vary("NKI002", "ap count", lambda n: new().ap([[8, 4], [1, n]]), 1, 0, "count below 1"),
    vary("NKI002", "ap without a free dim", lambda p: new().ap(p), [[8, 4], [1, 1]], [[8, 4]], "free dim"),
    vary("NKI003", "SBUF", lambda n: new((n, 8)), 128, 129, "129 partitions in sbuf"),
    vary("NKI004", "ndarray", new, (2,) * 5, (2,) * 6, "6 dims"),
    vary("NKI004", "ap", lambda n: hbm(4, 8).ap([[0, 2]] * n), 5, 6, "6 dims"),
    vary("NKI005", "string", lambda b: new(buffer=b), nl.sbuf, "sbuf", "buffer='sbuf'"),
    vary("NKI006", "int", lambda i: new()[:, i], 7, 8, "index 8 is outside dim 1 of size 8"),
    vary("NKI006", "stop", lambda i: new()[:, 0:i], 8, 9, "slice 0:9 is outside dim 1"),
    vary("NKI006", "too many", lambda k: new()[k], (0, 0), (0, 0, 0), "does not fit 2 dims"),
    vary("NKI006", "float", lambda i: new()[:, i], 1, 1.0, r"1\.0 must be a compile-time int"),
    vary("NKI006", "bool", lambda i: new()[:, i], 1, True, "True must be"),
    vary("NKI006", "slice from the end", lambda i: new().slice(1, i, 8), 0, -1, "does not count from the end"),
    vary("NKI006", "select from the end", lambda i: new().select(1, i), 7, -1, "does not count from the end"),
    vary("NKI006", "dim", lambda d: new().select(d, 0), -1, 2, "dim 2 of 2 dims"),
    vary("NKI006", "expand_dim", lambda d: new().expand_dim(d), 2, 3, r"expand_dim\(3\)"),
    vary("NKI007", "backwards", lambda s: new()[:, 0:8:s], 1, -1, "slice 0:8:-1"),
    vary("NKI007", "empty slice method", lambda e: new().slice(1, 0, e), 1, 0, "slice 0:0:1 of dim 1"),
    vary("NKI007", "a view of nothing", lambda i: used(new()[:, 3:i][0:2]), 4, 3, "chooses nothing"),
    vary("NKI008", "permute", lambda d: new((4, 8, 2)).permute(d), (0, 2, 1), (1, 0, 2), "moves the partition dim"),
    vary("NKI008", "broadcast", lambda d: new((1, 1)).broadcast(d, 2), 1, 0, "broadcast of dim 0"),
    vary("NKI008", "flatten_dims", lambda d: new((4, 8, 2)).flatten_dims(d, 2), 1, 0, "flatten_dims"),
    vary("NKI008", "reshape", lambda s: new().reshape(s), (4, 2, 4), (2, 2, 8), "changes the 4 partitions"),
    vary("NKI009", "two unknown", lambda s: new().reshape(s), (4, -1, 2), (4, -1, -1), "does not hold"),
    vary("NKI009", "view", lambda n: new((4, n), U8).view(F32), 8, 6, "6 elements of uint8"),
    vary("NKI010", "reshape", lambda n: new((4, 2, 4))[:, :, 0:n].reshape((4, 2 * n)), 4, 3, "reshape"),
    vary("NKI010", "flatten_dims", lambda n: new((4, 2, 4))[:, :, 0:n].flatten_dims(1, 2), 4, 3, "not contiguous"),
    vary("NKI010", "view", lambda s: new()[:, 0:8:s].view(BF16), 1, 2, "contiguous last dim"),
    vary("NKI011", "ap", lambda s: new().ap([[s, 2], [1, 8]]), 8, 16, "steps by 16 elements, one partition is 8"),
    vary("NKI011", "a step beyond the only partition", lambda n: new()[0:n:3], 1, 4, "steps by 24"),
    vary("NKI012", "past the partition", lambda n: used(new().ap([[8, 2], [1, n]], offset=2)), 6, 7, "leaves the partition"),
    vary("NKI012", "past the tile", lambda n: used(new().ap([[8, n], [1, 8]])), 4, 5, r"elements 0\.\.39 of a storage of 32"),
    vary("NKI013", "explicit offset", lambda i: new()[:, i:].ap([[8, 4], [1, 2]], offset=1), 0, 1, "starts at element 1"),
    vary("NKI014", "broadcast", lambda n: new((4, n)).broadcast(1, 3), 1, 2, "broadcast of dim 1 of size 2"),
    vary("NKI014", "squeeze_dim", lambda n: new((4, n, 8)).squeeze_dim(1), 1, 2, "squeeze_dim of dim 1 of size 2"),
    vary("NKI015", "twice", lambda d: hbm(2, 3).permute(d), (1, 0), (1, 1), r"permute\(\(1, 1\)\)"),
    vary("NKI015", "not an int", lambda d: hbm(2, 3).permute(d), (1, 0), ("1", 0), "compile-time int"),
    vary("NKI015", "flatten_dims", lambda d: hbm(2, 3).flatten_dims(*d), (0, 1), (1, 0), r"flatten_dims\(1, 0\)"),
    vary("NKI015", "permute's dims in a tuple", lambda d: hbm(2, 3).permute(d), (1, 0), 1, "permute"),
    vary("NKI015", "rearrange's pattern in a tuple", lambda d: hbm(2, 3).rearrange(("a", "b"), d), ("b", "a"), 3, "rearrange"),
    vary("NKI015", "rearrange's names are text", lambda d: hbm(2, 3).rearrange(("a", "b"), d), ("b", "a"), ("b", 1), "rearrange"),
    vary("NKI015", "rearrange names", lambda d: hbm(2, 3).rearrange(("a", "b"), d), ("b", "a"), ("b", "c"), "rearrange"),
    vary("NKI016", "one column too many", copy_in, 8, 9, r"element \(0, 8\) of the view \(and 3 more\)"),
    vary("NKI017", "interleaved", lambda s: store_to(lambda t: t.ap([[8, 4], [s, 2], [2, 3]])), 3, 2, "more than once"),
    vary("NKI017", "runs that overlap", lambda s: store_to(lambda t: t.ap([[8, 4], [s, 2], [1, 4]])), 4, 3, "more than once"),
    vary("NKI017", "stride 0 of one", lambda n: store_to(lambda t: t.ap([[8, 4], [0, n], [1, 6]])), 1, 2, "more than once"),
    vary("NKI018", "two tiles", lambda n: fill(nl.sbuf, 53_181, n), 1, 2, "SBUF of core 0 needs 212,732 of 212,728"),
    vary("NKI019", "one tile", lambda n: new((128, n), buffer=nl.psum), 4096, 4097, "needs 16,388 of 16,384"),
    vary("NKI019", "tiles stay in a bank", lambda n: fill(nl.psum, *(n,) * 9), 256, 257, "9 of 8 banks"),
    vary("NKI020", "overlap", lambda b: touched(*(new((32, 8), address=(0, at)) for at in (0, b))), 32, 31, r"address \(0, 31\) and \(0, 0\) of SBUF overlap"),
    vary("NKI020", "quadrant", lambda p: new(address=(p, 0)), 96, 95, "4 partitions from 95"),
    vary("NKI020", "last byte", lambda b: new(address=(0, b)), 212_696, 212_697, "of 212728"),
    vary("NKI020", "alignment", lambda b: new(buffer=nl.psum, address=(0, b)), 4, 2, "aligned to 4"),
    vary("NKI020", "pair", lambda a: new(address=a), (0, 0), 0, "not"),
    vary("NKI020", "on chip", lambda b: new(buffer=b, address=(0, 0)), nl.sbuf, nl.hbm, "only on chip"),
    vary("NKI027", "shape", lambda n: new((4, n if nl.program_id(0) else 8), buffer=nl.shared_hbm), 8, 9, r"shared tensor 0 is \[4, 9\] float32 on this core", lnc=2),
    vary("NKI028", "two writes", divided, 2, 1, r"core 1 writes element \(0, 0\).* core 0 writes it at", lnc=2),
    vary("NKI030", "string", lambda e: nisa.tensor_copy(new(), nl.zeros((4, 8), F32), engine=e), nisa.engine.vector, "vector", "engine='vector'"),
    vary("NKI030", "int", lambda m: nisa.dma_copy(new(), nl.zeros((4, 8), F32), dge_mode=m), nisa.dge_mode.none, 3, "dge_mode=3"),
    vary("NKI030", "a DMA's engine", lambda e: nisa.dma_copy(new(), nl.zeros((4, 8), F32), engine=e), nisa.engine.unknown, 0, "engine=0"),
    vary("NKI030", "a barrier's engine", lambda e: barrier(engine=e), nisa.engine.gpsimd, 1, "engine=1 is not a member", lnc=2),
    vary("NKI030", "an exchange's engine", lambda e: swap(dma_engine=e), nisa.dma_engine.dma, 1, "dma_engine=1 is not a member", lnc=2),
    vary("NKI031", "iteration", value_of, lambda t: t[0], list, "iteration"),
    vary("NKI031", "NumPy", value_of, repr, np.max, "a tensor given to NumPy"),
    vary("NKI031", "assignment", value_of, lambda t: t[0, 0], lambda t: t.__setitem__((0, 0), 1.0), "item assignment"),
    vary("NKI032", "truth", steer, repr, bool, "register used as a Python value"),
    vary("NKI032", "int", steer, repr, int, "register used"),
    vary("NKI032", "slice", steer, repr, lambda r: new()[:, r:], "register used"),
    vary("NKI032", "sum", steer, repr, lambda r: r + 1, "Python arithmetic"),
    vary("NKI032", "equality", steer, repr, lambda r: r == 3, "register used"),
    vary("NKI151", "engine", lambda e: barrier(engine=e), nisa.engine.gpsimd, nisa.engine.dma, "engine=dma", lnc=2),
    vary("NKI151", "memory", lambda b: barrier(b), nl.shared_hbm, nl.hbm, "data in private_hbm", lnc=2),
    vary("NKI151", "cores in a tuple", lambda c: barrier(cores=c), (0, 1), 2, "cores=2", lnc=2),
    vary("NKI151", "cores", lambda c: barrier(cores=c), (0, 1), (0,), r"cores=\(0,\)", lnc=2),
    vary("NKI152", "shape", lambda s: swap(s), (4, 8), (4, 4), "differ", lnc=2),
    vary("NKI152", "to itself", lambda s: swap(step=s), 1, 0, "sends to itself", lnc=2),
    vary("NKI152", "rank", lambda s: swap(step=s), 1, 2, "send_to_rank=2", lnc=2),
    vary("NKI153", "fp32", lambda n: swap(None, columns=n, dma_engine=nisa.dma_engine.gpsimd_dma), 256, 257, "1028 bytes", lnc=2),
    vary("NKI154", "one core only", meets, 2, 1, "core 0 waits at core_barrier .* ended without", lnc=2),
    vary("NKI160", "value", lambda v: nisa.register_alloc(v), 2**32 - 1, 2**32, "is not an int of 32 bits"),
    vary("NKI160", "register", lambda r: nisa.register_move(r(0), 1), nisa.register_alloc, int, "dst=0 is not a register"),
    vary("NKI160", "one element", lambda n: nisa.register_load(nisa.register_alloc(), nl.zeros((1, n), I32)), 1, 2, "2 elements"),
]
# fmt: on

test_pair = each_pair(PAIRS, __file__)


def returning(buffer, columns=8):
    """Run a kernel that writes so many of 8 columns of a tensor and returns it."""

    def kernel():
        out = new((4, 8), buffer=buffer)
        nisa.dma_copy(out[:, 0:columns], nl.zeros((4, columns), F32))
        return out

    return jit(kernel)()


def given(value):
    """Run a kernel that does nothing with its argument."""
    return execute(jit(lambda pair: None), (value,))


def results(same):
    """Run a kernel whose cores return the same tensor, or not."""

    def kernel():
        tensors = [
            nl.zeros((4, 8), F32, nl.shared_hbm) if nl.program_id(0) == 0 else new(buffer=nl.shared_hbm) for _ in "ab"
        ]
        return tensors[not same and nl.program_id(0)]

    return execute(jit(kernel)[2], ())


def targeted(target):
    """Run a kernel for a target."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        run(lambda: dropped(new()))


DTYPES = ("complex64", "float64", ">f4", "object")
GRIDS = (0, 3, True, "2", (1, 2))


# Rules of arguments, results and launches: what passes, what raises, what it says, and whether it names a line here.
@pytest.mark.parametrize(("rule", "passes", "raises", "match", "named_line"), [
    *(("NKI022", lambda: returning(nl.shared_hbm), lambda b=b: run(lambda: new(buffer=b)),
       f"returned a tensor of {b.name}", False) for b in (nl.hbm, nl.private_hbm, nl.sbuf, nl.psum)),
    ("NKI023", lambda: returning(nl.shared_hbm), lambda: returning(nl.shared_hbm, 7),
     r"element \(0, 7\) and 3 more were never written", False),
    ("NKI022", lambda: returning(nl.shared_hbm), lambda: run(lambda: (nl.num_programs() for _ in "a")),
     "returned a generator, whose code has not run", False),
    ("NKI024", lambda: given((1, (2,))), lambda: given((1, [2])), r"pair\[1\] is a list", False),
    *(("NKI025", lambda: given(np.zeros((4, 8), "float32")), lambda d=d: given(np.zeros((4, 8), d)),
       f"pair has dtype {re.escape(str(np.dtype(d)))}; accepted are", False) for d in DTYPES),
    *(("NKI026", lambda: [jit(lambda: nl.num_programs())[good]() for good in (1, 2, (2,))],
       lambda g=g: jit(lambda: None)[g], r"trn2 has LNC degrees \(1, 2\)", False) for g in GRIDS),
    ("NKI026", lambda: run(lambda: nl.program_id(0)), lambda: run(lambda: nl.program_id(1)), r"program_id\(1\)", True),
    ("NKI026", lambda: run(lambda: nl.num_programs(0)), lambda: run(lambda: nl.num_programs(1)),
     r"num_programs\(1\)", True),
    ("NKI027", lambda: run(lambda: shared_count(2), lnc=2), lambda: run(lambda: shared_count(1), lnc=2),
     "allocated 1 and 0 shared tensors", False),
    ("NKI027", lambda: results(True), lambda: results(False), "core 1 does not return what core 0 returns", False),
    ("NKI029", lambda: run(lambda: dropped(new())), new, "called outside a kernel", True),
    ("NKI035", lambda: [targeted(one) for one in ("trn2", "gen3")], lambda: targeted("trn3"), "only trn2", False),
    *(("NKI150", lambda c=c: run(c, lnc=2), lambda c=c: run(c, lnc=1), "runs on 1 core", True)
      for c in (barrier, swap)),
])  # fmt: skip
def test_launches(rule, passes, raises, match, named_line):
    passes()
    with pytest.raises(NkiError, match=rule) as caught:
        raises()
    check_error(caught.value, rule, match, __file__ if named_line else "")


def test_NKI021_another_core():
    held = {}

    def kernel(core):
        tile = held.setdefault(nl.program_id(0), nl.zeros((4, 8), F32))
        nisa.memset(held[core] if core is not None else tile, 1.0 + nl.program_id(0))

    execute(jit(kernel)[2], (None,))
    held.clear()
    with pytest.raises(NkiError, match="another core") as caught:
        execute(jit(kernel)[2], (0,))
    check_error(caught.value, "NKI021", "another core or of an ended run", __file__)
    assert (held[0].storage.data.view(np.float32) == 1).all(), "refused before it was written"


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.hbm], ids=["sbuf", "hbm"])
@pytest.mark.parametrize("trace_only", [False, True], ids=["numeric", "traced"])
def test_NKI021_an_ended_run(buffer, trace_only):
    held = []

    def first():
        held.append(new(buffer=buffer))

    def second():
        nisa.tensor_copy(new(), held[0]) if held[0].on_chip else nisa.dma_copy(new(), held[0])

    run(first, trace_only=trace_only)
    with pytest.raises(NkiError, match="ended run") as caught:
        run(second, trace_only=trace_only)
    check_error(caught.value, "NKI021", "ended run", __file__)


def test_NKI033():
    def kernel(x):
        nisa.dma_copy(x, nl.zeros((4, 8), F32))

    x = np.ones((4, 8), np.float32)
    execute(jit(kernel), (x,))
    assert not x.any()
    x = np.ones((4, 8), np.float32)
    x.flags.writeable = False
    with pytest.raises(NkiError, match="NKI033") as caught:
        execute(jit(kernel), (x,))
    check_error(caught.value, "NKI033", "read-only", __file__)
    assert x.all()


def test_NKI034(monkeypatch):
    def kernel():
        tile = new()
        for _ in range(3):
            nisa.memset(tile, 1.0)

    monkeypatch.setattr(hardware, "INSTRUCTIONS_MAX", 3)
    run(kernel)
    monkeypatch.setattr(hardware, "INSTRUCTIONS_MAX", 2)
    with pytest.raises(NkiError, match="NKI034") as caught:
        run(kernel)
    check_error(caught.value, "NKI034", "core 0 reached 2 instructions", __file__)


def test_every_rule_is_asked_for():
    """By a pair, or by the words of an error."""
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert set(re.findall(r'"\^?(NKI\d{3})', "".join(texts))) == set(RULES)
