"""nki.jit, nki.simulate and launches: what may be called how, with what configs, and what an error leaves behind."""

import functools
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from nkiconv import simulator as nki
from nkiconv.simulator import ArraySpec, KernelAssertionError, NkiError, execute, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.compiler import AddressRotation, CompileConfig, SpecializationConfig
from nkiconv.simulator.running import running

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def scaled(x, factor=2.0):
    """x * factor."""
    tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nisa.dma_copy(out, tile)
    return out


def halves(x):
    """x + 1, each core half of the rows."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs()
    tile = nl.ndarray((rows, x.shape[1]), x.dtype)
    part = slice(rows * nl.program_id(0), rows * (nl.program_id(0) + 1))
    nisa.dma_copy(tile, x[part])
    nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nisa.dma_copy(out[part], tile)
    return out


CALLS = {
    "with parentheses": lambda: nki.jit()(scaled)(X),
    "grid": lambda: nki.jit(scaled)[1](X),
    "simulated grid": lambda: nki.simulate(nki.jit(scaled)[1])(X),
    "plain function": lambda: nki.simulate(scaled)(X),
    "partial": lambda: nki.simulate(functools.partial(scaled, factor=2.0))(X),
    "jitted twice": lambda: nki.jit(nki.jit(scaled))(X),
    "keywords": lambda: nki.jit(scaled)(factor=2, x=X),
    "executed": lambda: nki.execute(nki.jit(scaled), (X,)).outputs,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ways_to_call(call):
    np.testing.assert_array_equal(call(), 2 * X)


def test_removed_options_of_jit_are_refused():
    with pytest.raises(TypeError, match=r"takes no debug, platform_target: removed in NKI 0\.3"):
        nki.jit(platform_target="trn2", debug=True)
    with pytest.warns(DeprecationWarning, match="ignores mode") as caught:
        assert nki.jit(mode="torchxla") is nki.Kernel
    assert caught[0].filename == __file__


def test_launch_queries():
    seen = []

    def kernel():
        seen.append((nl.program_id(0), nl.program_id()))
        return nl.num_programs(), nl.num_programs(axes=0), nl.program_ndim()

    assert nki.jit(kernel)() == (1, 1, 0)
    assert nki.jit(kernel)[1]() == (1, 1, 1)
    assert nki.jit(kernel)[2]() == (2, 2, 1)
    assert seen == [(0, 0), (0, 0), (0, 0), (1, 1)]


def test_the_environment_sets_the_degree(monkeypatch):
    kernel = nki.jit(lambda: nl.num_programs())
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert kernel() == 2
    assert kernel[2]() == 2
    with pytest.raises(NkiError, match=r"NKI026.*kernel\[1\] contradicts NEURON_LOGICAL_NC_CONFIG=2"):
        kernel[1]()
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    with pytest.raises(NkiError, match=r"kernel\[2\] contradicts"):
        kernel[2]()
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "4")
    with pytest.raises(NkiError, match="'4' is neither 1 nor 2"):
        kernel()


def test_kernels_inside_kernels_are_inlined():
    inner = nki.jit(scaled)

    def outer(x):
        return inner(inner[1](x), 3.0)

    execution = nki.execute(nki.jit(outer), (X,))
    np.testing.assert_array_equal(execution.outputs, 6 * X)
    assert [i.op for i in execution.instructions] == ["dma_copy", "tensor_scalar", "dma_copy"] * 2
    with pytest.raises(NkiError, match=r"NKI026.*kernel\[2\] called by a kernel that runs on 1 cores"):
        nki.jit(lambda x: inner[2](x))(X)
    with pytest.raises(NkiError, match=r"NKI026.*a launch from inside a kernel"):
        nki.jit(lambda x: nki.simulate(inner)(x))(X)


class Mine(Exception):
    """An exception of the kernel's own."""


@pytest.mark.parametrize(
    ("lnc", "core", "error"), [(1, 0, KeyError("k")), (2, 0, KeyboardInterrupt()), (2, 1, Mine("no"))]
)
def test_own_exceptions_pass_unchanged(lnc, core, error):
    def kernel():
        if nl.program_id(0) == core:
            raise error

    before = threading.active_count()
    with pytest.raises(type(error)) as caught:
        nki.jit(kernel)[lnc]()
    assert caught.value is error
    assert running() is None
    assert threading.active_count() == before
    np.testing.assert_array_equal(nki.jit(scaled)(X), 2 * X)


def test_assertions_say_what_and_where():
    def kernel(size):
        assert size % 2 == 0, f"size={size}: must be even"

    def bare(size):
        assert size < 4

    def by_a_helper(size):
        bare(size)

    nki.jit(kernel)(2)
    for lnc in (1, 2):
        with pytest.raises(KernelAssertionError, match="size=3: must be even") as caught:
            nki.jit(kernel)[lnc](3)
        assert isinstance(caught.value, (AssertionError, NkiError))
        assert caught.value.location == f"{__file__}:{kernel.__code__.co_firstlineno + 1}"
        assert isinstance(caught.value.__cause__, AssertionError)
    with pytest.raises(KernelAssertionError, match="< 4") as caught:
        nki.jit(by_a_helper)(5)
    helper, caller = (f"{__file__}:{one.__code__.co_firstlineno + 1}" for one in (bare, by_a_helper))
    assert caught.value.location == f"{helper}, called at {caller}"


def test_an_assertion_of_the_simulator_is_not_the_kernels(monkeypatch):
    def broken(self, *args):
        raise_inside = compile("assert False, 'a bug'", nki.launch.__file__, "exec")
        exec(raise_inside)

    monkeypatch.setattr(nki.program.Program, "record", broken)
    with pytest.raises(AssertionError, match="a bug") as caught:
        nki.jit(scaled)(X)
    assert not isinstance(caught.value, NkiError)


def test_trace_only_gives_specs_and_the_same_instructions():
    spec = ArraySpec((4, 8), "float32")
    traced = nki.execute(nki.jit(halves)[2], (spec,), trace_only=True)
    ran = nki.execute(nki.jit(halves)[2], (X,))
    assert traced.outputs == spec
    assert [(i.op, i.line, i.bytes) for i in traced.instructions] == [(i.op, i.line, i.bytes) for i in ran.instructions]
    assert (traced.sbuf_peak_bytes, traced.psum_peak_bytes) == (ran.sbuf_peak_bytes, ran.psum_peak_bytes)
    assert nki.simulate(nki.jit(scaled), trace_only=True)(X) == spec


class Sizes(nl.NKIObject):
    """Fields in order, those without annotation last; methods are none."""

    rows: int
    columns: int = 8
    depth = "shallow"

    def area(self):
        return self.rows * self.columns

    @property
    def wide(self):
        return self.columns > self.rows


class Counted(Sizes):
    """A subclass with a field more, and a hook."""

    extra: int = 1

    def __post_init__(self):
        self.total = self.area() * self.extra


@dataclass
class Section(nl.NKIObject):
    """A dataclass whose fields have no annotations, as kernels of nki-library have them."""

    first = None
    length = 4
    kind: str


def test_nki_objects_get_an_init():
    sizes = Sizes(3)
    assert (sizes.rows, sizes.columns, sizes.depth, sizes.area(), sizes.wide) == (3, 8, "shallow", 24, True)
    assert (Sizes(columns=2).rows, Sizes(1, 2, depth="deep").depth) == (None, "deep")
    assert (Counted(3, 4, extra=2).total, Counted(3, 4, "deep", 5).total) == (24, 60)
    assert (Section(length=2), Section("a").kind, Section().kind) == (Section(None, None, 2), "a", None)
    assert Section(length=2) != Section()
    for args, kwargs, words in (
        ((1, 2, 3, 4), {}, r"Sizes takes each of the fields \['rows', 'columns', 'depth'\]"),
        ((), {"wrong": 1}, "wrong"), ((1,), {"rows": 1}, "at most once"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=words):
            Sizes(*args, **kwargs)


def test_a_tensor_of_an_ended_run_is_not_returned():
    kept = []

    def kernel():
        kept.append(nl.zeros((4, 8), nl.float32, nl.shared_hbm))
        return kept[0]

    nki.execute(nki.jit(kernel), ())
    with pytest.raises(NkiError, match="returned a tensor of an ended run") as caught:
        nki.execute(nki.jit(kernel), ())
    assert caught.value.rule == "NKI021"


CHECKED = CompileConfig(barrier_check=True, address_rotation=AddressRotation.DISABLE)


def copied(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


@pytest.mark.parametrize("name", ["compile_config", "specialization_config"])
def test_other_values_are_refused(name):
    with pytest.raises(TypeError, match=rf"{name}=\{{\}} is no nki\.compiler\."):
        jit(copied, **{name: {}})
    with pytest.raises(TypeError, match="no_such_field"):
        CompileConfig(no_such_field=True)


#: configs of the kernel that is called and of the one that calls it, whether they agree
NESTED = {
    "none inside": (None, CHECKED, True),
    "equal": (CHECKED, CompileConfig(barrier_check=True, address_rotation=AddressRotation.DISABLE), True),
    "only inside": (CHECKED, None, False),
    "other": (CHECKED, CompileConfig(barrier_check=False), False),
}


@pytest.mark.parametrize(("inside", "outside", "agree"), NESTED.values(), ids=NESTED)
def test_kernels_that_call_kernels(inside, outside, agree):
    inner = jit(copied, compile_config=inside)
    if agree:
        np.testing.assert_array_equal(execute(jit(lambda x: inner(x), compile_config=outside), (X,)).outputs, X)
        return
    with pytest.raises(NkiError, match=r"NKI185: .*barrier_check=True"):
        execute(jit(lambda x: inner(x), compile_config=outside), (X,))
    asked = SpecializationConfig(allow_nested_config_override=True)
    with pytest.warns(UserWarning, match=r"barrier_check=True.*which holds"):
        found = execute(jit(lambda x: inner[1](x), compile_config=outside, specialization_config=asked)[1], (X,))
    np.testing.assert_array_equal(found.outputs, X)
