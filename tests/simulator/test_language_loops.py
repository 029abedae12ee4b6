"""Device loops, nl.no_reorder, dependencies and schedules: what runs, in which order, and what is refused; and loops
over nl.dynamic_range, which NKI 0.6 deprecates and 0.7 no longer has.
"""

import inspect
import re
from functools import partial

import numpy as np
import pytest
from isa_tiles import evaluate, get, put, sb
from on_device import BOUNDS, MAKES, register, scalar, seen, value_of
from pairs import Pair, dropped, each_pair, run

from nkiconv.simulator import NkiError, execute, jit, profiling
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.allowed import Allowed, set_default
from nkiconv.simulator.hardware import CONSTANTS
from nkiconv.simulator.timing import Rates, price

F32, I32 = nl.float32, nl.int32


@pytest.mark.cover
@pytest.mark.parametrize("make", [*MAKES.values(), scalar], ids=[*MAKES, "scalars"])
@pytest.mark.parametrize(("lower", "upper", "step"), BOUNDS)
def test_counted_loops(lower, upper, step, make):
    expected = list(range(lower, upper, step))
    assert seen(lambda body: nl.fori_loop(make(lower), make(upper), body, step)) == expected
    assert seen(lambda body: nl.fori_loop(make(lower), upper, body_fun=body, step=step)) == expected


@pytest.mark.cover
@pytest.mark.usefixtures("nki06")
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(("lower", "upper", "step"), BOUNDS)
def test_ranges_on_the_device_of_nki_06(lower, upper, step, make):
    assert seen(partial(each, lambda: nl.dynamic_range(make(lower), make(upper), step))) == [*range(lower, upper, step)]
    assert seen(partial(each, lambda: nl.dynamic_range(make(upper)))) == [*range(upper)]


#: Bounds, and what a body gets: an NkiScalar, but a register where a bound is one, and always in NKI 0.6.
GIVEN = {"ints": (int, int), "a scalar": (int, scalar), "a register": (register, int), "both": (scalar, register)}


@pytest.mark.parametrize("name", GIVEN)
def test_what_a_body_gets(name):
    lower, upper = GIVEN[name]
    for nki, kind in (("0.7", nisa.VirtualRegister if register in GIVEN[name] else nisa.NkiScalar),
                      ("0.6", nisa.VirtualRegister)):  # fmt: skip
        if nki == "0.6" and scalar in GIVEN[name]:
            continue
        kinds = []
        execute(jit(lambda: nl.fori_loop(lower(0), upper(2), lambda i: kinds.append(type(i)))), (), nki=nki)  # noqa: B023
        assert kinds == [kind] * 2


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_while_loop_counts_down(count):
    def body():
        left, one = put(np.array([[count]], np.int32)), put(np.array([[1]], np.int32))
        total = nl.zeros((1, 1), F32)

        def step(r):
            nisa.tensor_scalar(total, total, nl.add, 2.0)
            nisa.tensor_tensor(left, left, one, nl.subtract)
            nisa.register_load(r, left)
            return r

        nl.while_loop(register(count), step)
        return get(total)

    assert evaluate(body) == 2 * count


def test_a_body_gets_a_register_of_its_own():
    def body():
        start, values = register(2), []

        def once(r):
            values.append(value_of(r))
            nisa.register_move(r, 0)
            return r

        nl.while_loop(start, once)
        nl.fori_loop(register(0), 3, lambda i: nisa.register_move(i, 7 if values.append(value_of(i)) is None else 0))
        return [*values, value_of(start)]

    assert evaluate(body) == [2, 0, 1, 2, 2]


def test_loops_beyond_what_is_recorded_are_refused_at_once():
    with pytest.raises(NkiError, match=r"NKI034.* 1,000,000,000 iterations of \d+ instructions"):
        run(lambda: nl.fori_loop(0, 10**9, lambda _: nisa.memset(nl.ndarray((4, 8), F32), 1.0)))


def test_a_branch_is_at_the_loop_and_has_a_price():
    def body():
        nl.fori_loop(0, 1, dropped)

    branch = run(body).instructions[-1]
    assert (branch.op, branch.file) == ("loop_branch", __file__)
    assert branch.line == inspect.getsourcelines(body)[1] + 1
    found = price(branch, Rates())
    assert (found.issue_ns, found.latency_ns) == 2 * (CONSTANTS["control.compare_branch_ns"].value,)
    assert found.constants == {"control.compare_branch_ns"}


def chain(executed):
    """For each instruction the indices of those it was told to wait for."""
    return [[producer.index for producer in i.after] for i in executed.instructions]


def fills(count):
    """So many memsets of their own tiles, which could run in any order."""
    for i in range(count):
        nisa.memset(nl.ndarray((4, 8), F32), float(i), engine=(nisa.engine.vector, nisa.engine.gpsimd)[i % 2])


def test_no_reorder_chains_what_runs_inside():
    def body():
        fills(2)
        with nl.no_reorder():
            fills(2)
            with nl.no_reorder():
                fills(1)
            fills(1)
        fills(1)
        with nl.no_reorder():
            fills(2)

    assert chain(run(body)) == [[], [], [], [2], [3], [4], [], [], [7]]


@jit
def two_named(x):
    """Two independent instructions with names, and one without."""
    tile = nl.load(x)
    nisa.reciprocal(nl.ndarray(x.shape, F32), tile, name="recip")
    nisa.tensor_scalar(nl.ndarray(x.shape, F32), tile, nl.add, 1.0, name="plus1")
    nisa.activation(nl.ndarray(x.shape, F32), nl.exp, tile, name="exp")


X = np.ones((4, 8), np.float32)


@pytest.mark.parametrize(
    ("edges", "told"),
    [([("plus1", "recip")], [[], [], [1], []]),
     ([("exp", ["recip", "plus1"]), ("plus1", ("recip",))], [[], [], [1], [1, 2]])],
)  # fmt: skip
def test_schedules(edges, told):
    scheduled = two_named.with_schedule(edges)
    executed = execute(scheduled[2], (X,))
    for program in executed.programs:
        assert [[producer.index for producer in i.after] for i in program.instructions] == told
    assert chain(execute(two_named, (X,))) == [[], [], [], []]
    assert scheduled.__name__ == "two_named"


def test_schedules_are_timed():
    @jit
    def parallel():
        nisa.memset(nl.ndarray((4, 512), F32), 0.0, engine=nisa.engine.gpsimd, name="slow")
        nisa.memset(nl.ndarray((4, 512), F32), 0.0, engine=nisa.engine.vector, name="quick")

    plain = profiling.profile(parallel)().modelled_us
    assert profiling.profile(parallel.with_schedule([("quick", "slow")]))().modelled_us > 1.1 * plain


@pytest.mark.parametrize(("edges", "match"), [
    ([("plus1", "nothing")], "0 instructions are named 'nothing'"),
    ([("recip", "plus1")], "'recip' does not come after 'plus1'"),
    ([("plus1",)], "is not a pair"),
    ([("plus1", 3)], "does not hold names"),
])  # fmt: skip
def test_schedules_refused(edges, match):
    with pytest.raises(NkiError, match=rf"NKI174.*{match}"):
        two_named.with_schedule(edges)(X)


def test_a_scheduled_kernel_is_launched_not_called():
    inner = two_named.with_schedule([("plus1", "recip")])
    with pytest.raises(NkiError, match=r"NKI174.*called by another kernel"):
        jit(lambda x: dropped(inner(x)))(X)


def loop_over(*bounds, **settings):
    nl.fori_loop(*bounds, dropped, **settings)


def ordered(inner):
    with nl.no_reorder():
        inner()


def across_iterations(own):
    """Wait for the previous iteration's instruction, or for the same one's."""
    made = []

    def step(i):
        made.append(nisa.memset(nl.ndarray((4, 8), F32), 0.0))
        nisa.memset(nl.ndarray((4, 8), F32), 1.0).depends_on(made[-1 if own else 0])

    nl.fori_loop(0, 2, step)


def counting(changes):
    tile, count = sb(4, 8), [0]

    def step(i):
        count[0] += changes
        nisa.tensor_scalar(tile, tile, nl.add, float(count[0]))

    nl.fori_loop(0, 3, step)


def growing(by):
    tile, count = sb(4, 8), [1]

    def step(i):
        for _ in range(count[0]):
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        count[0] += by

    nl.fori_loop(0, 3, step)


def kept(index):
    made = []
    nl.fori_loop(0, 3, lambda i: made.append(sb(4, 8)))
    nisa.tensor_scalar(made[index], made[index], nl.add, 1.0)


def counted_by_core(differs):
    """A loop whose bound is a register, of another value on the other core."""
    nl.fori_loop(
        0, nisa.register_alloc(1 + differs * nl.program_id(0)), lambda i: nisa.memset(nl.ndarray((4, 8), F32), 0.0)
    )


PAIRS = [
    Pair("NKI170", "positive step", lambda: loop_over(0, 2, step=1), lambda: loop_over(0, 2, step=0), "step=0"),
    Pair("NKI170", "int bounds", lambda: loop_over(0, 2), lambda: loop_over(0, 2.0), "upper=2.0"),
    Pair("NKI170", "bounds of 32 bits", lambda: loop_over(0, 2), lambda: loop_over(0, 2**70), "does not fit 32 bits"),
    Pair("NKI170", "body to call", lambda: nl.fori_loop(0, 1, dropped), lambda: nl.fori_loop(0, 1, 3), "body_fun=3"),
    Pair("NKI170", "value", lambda: loop_over(register(0), 1), lambda: loop_over(nisa.register_alloc(), 1), "lower"),
    Pair("NKI170", "body without a result", lambda: nl.fori_loop(0, 1, dropped),
         lambda: nl.fori_loop(0, 1, lambda i: i), "body_fun returned"),
    Pair("NKI170", "register condition", lambda: nl.while_loop(register(0), dropped),
         lambda: nl.while_loop(0, dropped), "init"),
    Pair("NKI170", "next condition", lambda: nl.while_loop(register(1), lambda r: nisa.register_alloc(0)),
         lambda: nl.while_loop(register(1), dropped), "what body_fun returned is None"),
    Pair("NKI171", "fori_loop", lambda: nl.fori_loop(0, 2, lambda i: ordered(partial(fills, 1))),
         lambda: ordered(lambda: loop_over(0, 2)), "a dynamic loop"),
    Pair("NKI171", "while_loop", lambda: ordered(lambda: dropped(register(0))),
         lambda: ordered(lambda: nl.while_loop(register(0), dropped)), "a dynamic loop"),
    Pair("NKI170", "narrow bounds", lambda: loop_over(0, scalar(2)),
         lambda: loop_over(0, scalar(2, "int64")), "upper.*int64"),
    Pair("NKI170", "endless", lambda: nl.while_loop(nisa.register_alloc(0), lambda r: r),
         lambda: nl.while_loop(nisa.register_alloc(1), lambda r: r), "never ends"),
    Pair("NKI176", "immediate", lambda: counting(0), lambda: counting(1),
         r"instruction 0 of iteration 1 is tensor_scalar\(.*operand0=2.0.*of the first tensor_scalar\(.*operand0=1.0"),
    Pair("NKI176", "length", lambda: growing(0), lambda: growing(1), "iteration 1 has 2 instructions and loops, the"),
    Pair("NKI178", "after the loop", lambda: kept(-1), lambda: kept(0), "an earlier iteration"),
    Pair("NKI179", "trip counts", lambda: counted_by_core(0), lambda: counted_by_core(1), "2 on core 1", lnc=2),
    Pair("NKI173", "iterations", lambda: across_iterations(True), lambda: across_iterations(False), "another loop or"),
]  # fmt: skip

test_pairs = each_pair([pair for pair in PAIRS if pair.lnc == 1], __file__)
test_pairs_of_cores = each_pair([pair for pair in PAIRS if pair.lnc == 2], "")


@pytest.mark.usefixtures("quickly")
def test_a_loop_whose_condition_is_loaded_is_not_traced():
    def step(r):
        nisa.register_load(r, nl.zeros((1, 1), I32))
        return r

    run(lambda: nl.while_loop(nisa.register_alloc(1), step))
    with pytest.raises(NkiError, match=r"NKI170.*what body_fun returned.*only traced"):
        run(lambda: nl.while_loop(nisa.register_alloc(1), step), trace_only=True)


def test_calls_outside_a_kernel():
    for call in (nl.no_reorder, lambda: loop_over(0, 2), lambda: nl.dynamic_range(2), lambda: nisa.scalar_load(None)):
        with pytest.raises(NkiError, match="NKI029"):
            call()


pytestmark = pytest.mark.filterwarnings("ignore:nl.dynamic_range")


@pytest.fixture
def nki06():
    """Launches that are for NKI 0.6, which has nl.dynamic_range."""
    set_default(Allowed(nki="0.6"))
    yield
    set_default(Allowed())


def test_dynamic_range_is_gone_in_nki_07():
    with pytest.raises(NkiError, match=r"NKI184: dynamic_range: .* gone in NKI 0\.7; .* nl\.fori_loop\(") as caught:
        run(lambda: dropped(nl.dynamic_range(2)))
    assert caught.value.location.startswith(__file__)


@pytest.mark.usefixtures("nki06")
def test_dynamic_range_is_deprecated_in_nki_06():
    with pytest.warns(DeprecationWarning, match=r"fori_loop") as caught:
        run(lambda: dropped(nl.dynamic_range(2)))
    assert caught[0].filename == __file__


def each(values, body):
    for value in values():
        body(value)


def ordered_range(values):
    with nl.no_reorder():
        each(values, dropped)


def left_by_break(leaves):
    for _ in nl.dynamic_range(3):
        if leaves:
            break
    nisa.memset(nl.ndarray((4, 8), nl.float32), 0.0)


PAIRS_OF_06 = [
    Pair("NKI171", "dynamic_range", lambda: ordered_range(lambda: range(2)),
         lambda: ordered_range(lambda: nl.dynamic_range(2)), "a dynamic loop inside"),
    Pair("NKI172", "move",
         lambda: each(lambda: nl.dynamic_range(2), lambda i: nisa.register_move(nisa.register_alloc(), i)),
         lambda: each(lambda: nl.dynamic_range(2), lambda i: nisa.register_move(i, 0)), "the induction register"),
    Pair("NKI177", "break", lambda: left_by_break(False), lambda: left_by_break(True), "the loop at"),
]  # fmt: skip

test_pairs_of_nki_06 = pytest.mark.usefixtures("nki06")(each_pair(PAIRS_OF_06, __file__))


@pytest.mark.usefixtures("nki06")
def test_a_break_at_a_kernels_end_is_seen():
    def body():
        for _ in nl.dynamic_range(3):
            break

    with pytest.raises(NkiError, match=rf"NKI177: .*the loop at {re.escape(__file__)}"):
        run(body)
