"""Loops over nl.dynamic_range, which NKI 0.6 deprecates and 0.7 no longer has."""

import re

import pytest
from on_device import BOUNDS, MAKES, seen
from pairs import Pair, check, dropped, named, run

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.allowed import Allowed, set_default

pytestmark = pytest.mark.filterwarnings("ignore:nl.dynamic_range")


@pytest.fixture
def nki06():
    """Launches that are for NKI 0.6, which has nl.dynamic_range."""
    set_default(Allowed(nki="0.6"))
    yield
    set_default(Allowed())


@pytest.mark.cover
@pytest.mark.usefixtures("nki06")
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(("lower", "upper", "step"), BOUNDS)
def test_ranges_on_the_device_of_nki_06(lower, upper, step, make):
    expected = list(range(lower, upper, step))

    def ranged(body):
        for i in nl.dynamic_range(make(lower), make(upper), step):
            body(i)

    assert seen(ranged) == expected

    def to(body):
        for i in nl.dynamic_range(make(upper)):
            body(i)

    assert seen(to) == list(range(upper))


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
    for value in values:
        body(value)


def ordered(values):
    with nl.no_reorder():
        each(values(), dropped)


def left_by_break(leaves):
    for _ in nl.dynamic_range(3):
        if leaves:
            break
    nisa.memset(nl.ndarray((4, 8), nl.float32), 0.0)


PAIRS = [
    Pair("NKI171", "dynamic_range", lambda: ordered(lambda: range(2)),
         lambda: ordered(lambda: nl.dynamic_range(2)), "a dynamic loop inside"),
    Pair("NKI172", "move", lambda: each(nl.dynamic_range(2), lambda i: nisa.register_move(nisa.register_alloc(), i)),
         lambda: each(nl.dynamic_range(2), lambda i: nisa.register_move(i, 0)), "the induction register"),
    Pair("NKI177", "break", lambda: left_by_break(False), lambda: left_by_break(True), "the loop at"),
]  # fmt: skip


@pytest.mark.usefixtures("nki06")
@named(PAIRS)
def test_pairs(pair):
    check(pair, __file__)


@pytest.mark.usefixtures("nki06")
def test_a_break_at_a_kernels_end_is_seen():
    def body():
        for _ in nl.dynamic_range(3):
            break

    with pytest.raises(NkiError, match=rf"NKI177: .*the loop at {re.escape(__file__)}"):
        run(body)
