"""Two cores: races on shared HBM, barriers, exchanges, deadlocks, and cores that alternate where races are warnings."""

import inspect
import re
import threading
import warnings

import numpy as np
import pytest

from nkiconv.simulator import NkiError, RaceWarning, execute, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

F32 = nl.float32


def shared(*shape):
    return nl.ndarray(shape, F32, nl.shared_hbm)


def put(view, value):
    nisa.dma_copy(view, nl.full((1, view.size), float(value), F32))


def get(view):
    tile = nl.ndarray((1, view.size), F32)
    nisa.dma_copy(tile, view)
    return tile


def barrier(tensor):
    nisa.core_barrier(tensor, (0, 1))


def launch(kernel, *args, **options):
    """Run on two cores; no thread is left behind."""
    before = threading.active_count()
    try:
        return execute(jit(kernel)[2], args, **options)
    finally:
        assert threading.active_count() == before


#: Accesses of core 0 and core 1 that meet in some element, without a barrier.
CONFLICTS = {
    "write read": (lambda t: put(t[0:3], 1), lambda t: get(t[2]), "core 1 reads", "core 0 writes"),
    "read write": (lambda t: get(t[0:3]), lambda t: put(t[2], 1), "core 1 writes", "core 0 reads"),
    "strided": (lambda t: put(t[:, 0:6:2], 1), lambda t: put(t[:, 1:6:3], 2), "core 1 writes", "core 0 writes"),
    "other dtype": (lambda t: put(t[1], 1), lambda t: get(t.view(nl.bfloat16)[1, 3:4]), "core 1 reads",
     "core 0 writes"),
    "read after it was written anew": (lambda t: (put(t, 1), put(t, 3)), lambda t: (put(t, 3), get(t)), "core 1 reads",
     "core 0 writes"),
    "narrow first": (lambda t: nisa.dma_copy(t.view(nl.uint8)[1, 3:4], nl.ones((1, 1), nl.uint8)),
     lambda t: put(t[1, 0], 1), "core 1 writes", "core 0 writes"),
}  # fmt: skip


#: Accesses of both cores that leave the same bytes in whatever order they come.
HARMLESS = {
    "the same result": (lambda t: put(t, 3), lambda t: put(t, 3)),
    "parts of it": (lambda t: put(t, 3), lambda t: put(t[1:3, 2], 3)),
    "as other bytes": (lambda t: put(t[1], 3), lambda t: put(t.view(nl.bfloat16)[1, 1:2], 3.0)),
    "read by both": (lambda t: (put(t, 3), get(t)), lambda t: (put(t, 3), get(t))),
    "what another core has read": (lambda t: get(t), lambda t: put(t, 0)),
}


def gives(expected):
    """Makes of a kernel for two cores the test that this comes out."""

    def of(kernel):
        def test():
            np.testing.assert_array_equal(launch(kernel).outputs, expected)

        return test

    return of


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicts_name_both_lines(name):
    first, second, here, there = CONFLICTS[name]

    def kernel(x):
        tensor = x if name == "other dtype" else shared(4, 6)
        tensor.storage.complete = True
        (first, second)[nl.program_id(0)](tensor)

    with pytest.raises(NkiError, match=f"NKI028.*{here} element .* of the view here, {there} it at") as caught:
        launch(kernel, np.zeros((4, 6), np.float32))
    earlier = re.search(r"it at (.*):(\d+)$", caught.value.detail)
    assert earlier[1] == __file__
    assert caught.value.location.startswith(f"{__file__}:")


#: Accesses that share no element, or that only read.
PEACEFUL = {
    "interleaved": (lambda t: put(t[:, 0:6:2], 1), lambda t: put(t[:, 1:6:2], 1)),
    "write and read": (lambda t: put(t[0:2], 1), lambda t: get(t[2:4])),
    "own part twice": (lambda t: (put(t[0], 1), get(t[0]), put(t[0], 2)), lambda t: (put(t[1], 1), get(t[1]))),
    "halves of elements": (lambda t: nisa.dma_copy(t.view(nl.uint16)[1, 0:1], nl.ones((1, 1), nl.uint16)),
     lambda t: nisa.dma_copy(t.view(nl.uint16)[1, 1:2], nl.ones((1, 1), nl.uint16))),
}  # fmt: skip


@pytest.mark.parametrize("name", [*PEACEFUL, *HARMLESS])
def test_no_false_alarm(name):
    def kernel(x):
        tensor = x if name in HARMLESS else shared(4, 6)
        tensor.storage.complete = True
        (PEACEFUL | HARMLESS)[name][nl.program_id(0)](tensor)

    launch(kernel, np.zeros((4, 6), np.float32))


@gives([[2] * 8, [1] * 8])
def test_a_barrier_orders_the_others_part():
    core, out, both = nl.program_id(0), shared(2, 8), shared(2, 8)
    put(both[core], core + 1)
    barrier(both)
    put(out[core], 0)
    nisa.dma_copy(out[core], get(both[1 - core]))
    return out


def test_a_barrier_on_another_tensor_orders_nothing():
    def kernel():
        core, both, other = nl.program_id(0), shared(2, 8), shared(2, 8)
        put(both[core], core)
        barrier(other)
        get(both[1 - core])

    with pytest.raises(NkiError, match=r"NKI028.*core \d reads .* core \d writes it at"):
        launch(kernel)


@gives([[11] * 8, [10] * 8])
def test_sendrecv_swaps():
    core, out = nl.program_id(0), shared(2, 8)
    mine, theirs = nl.full((1, 8), 10.0 + core, F32), nl.ndarray((1, 8), F32)
    nisa.sendrecv(mine, theirs, 1 - core, 1 - core, 0)
    nisa.memset(mine, 0.0)  # what was sent is not what is here now
    nisa.dma_copy(out[core], theirs)
    return out


DEADLOCKS = {
    "core 1 skips": (lambda core, t: barrier(t) if core == 0 else None,
     "core 0 waits at .* core 1 ended without meeting it"),
    "core 0 skips": (lambda core, t: barrier(t) if core == 1 else None,
     "core 1 waits at .* core 0 ended without meeting it"),
    "kinds": (lambda core, t: barrier(t) if core else nisa.sendrecv(nl.ones((1, 8), F32), nl.ndarray((1, 8), F32), 1, 1,
     0), r"core 1 is at core_barrier \d+ at .*, core 0 at sendrecv 0, \(1, 8\), float32 at "),
    "pipes": (lambda core, t: nisa.sendrecv(nl.ones((1, 8), F32), nl.ndarray((1, 8), F32), 1 - core, 1 - core, core),
     "core 1 is at sendrecv 1, .*, core 0 at sendrecv 0"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "match"), DEADLOCKS.values(), ids=DEADLOCKS)
def test_deadlocks(body, match):

    def kernel():
        body(nl.program_id(0), shared(2, 8))

    with pytest.raises(NkiError, match=f"NKI154.*{match}") as caught:
        launch(kernel)
    assert caught.value.location.startswith(f"{__file__}:")
    assert caught.value.op in ("core_barrier", "sendrecv")


class Mine(Exception):
    """The kernel's own."""


@pytest.mark.parametrize(("core", "met"), [(0, 1), (1, 0), (1, 2)])
def test_an_error_while_the_other_waits_surfaces(core, met):
    error = Mine(f"core {core}")

    def kernel():
        both = shared(2, 8)
        for step in range(4):
            if step == met and nl.program_id(0) == core:
                raise error
            barrier(both)

    with pytest.raises(Mine) as caught:
        launch(kernel)
    assert caught.value is error


@gives([[0] * 8, [1] * 8])
def test_private_memory_is_private():
    core, out = nl.program_id(0), shared(2, 8)
    private = nl.ndarray((1, 8), F32, nl.private_hbm)
    put(private, core)
    barrier(out)
    nisa.dma_copy(out[core], get(private))
    return out


def fills_after_a_clear():
    """Each core clears everything and fills its half: right only if both clear before one fills."""
    tensor, ones = shared(4, 6), nl.ones((4, 6), F32)
    nisa.dma_copy(tensor, nl.zeros((4, 6), F32))
    half = nl.program_id(0) * 2
    nisa.dma_copy(tensor[half : half + 2], ones[half : half + 2])
    return tensor


def test_an_order_that_cores_keep_by_chance():
    with pytest.raises(NkiError, match="NKI028"):
        execute(jit(fills_after_a_clear)[2], ())
    with pytest.warns(RaceWarning) as told:
        found = launch(fills_after_a_clear, races=True).outputs
    assert (found == 1).all()
    lines, first = inspect.getsourcelines(fills_after_a_clear)
    clear, line = (first + i for i, one in enumerate(lines) if "nl.zeros" in one or "tensor[half" in one)
    assert {(one.filename, one.lineno) for one in told} == {(__file__, line)}
    assert f"core 1 writes it at {__file__}:{clear}" in str(told[0].message)


@pytest.mark.parametrize("core", [0, 1])
def test_a_core_that_fails_ends_both(core):
    def kernel(x):
        tile = nl.load(x)
        for turn in range(6):
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
            if nl.program_id(0) == core and turn == 2:
                nisa.tensor_copy(tile, tile[:, 0:3])

    with pytest.raises(NkiError, match="NKI045"):
        launch(kernel, np.zeros((1, 4), np.float32), races=True)


def harmless(x):
    """Core 1 has more to do before the barrier and at the end, and goes on alone."""
    core = nl.program_id(0)
    out, tile = shared(2, 4), nl.load(x)
    for _ in range(4 * core):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nisa.dma_copy(out[core], tile)
    nisa.core_barrier(out, (0, 1))
    nisa.dma_copy(tile, out[1 - core])
    nisa.sendrecv(tile, tile, 1 - core, 1 - core, 0)
    for _ in range(4 * core):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    return out


def test_without_a_race_nothing_changes():
    x = np.arange(4, dtype=np.float32)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = launch(harmless, x, races=True)
    plain = launch(harmless, x)
    np.testing.assert_array_equal(found.outputs, plain.outputs)
    for one, other in zip(found.programs, plain.programs, strict=True):
        assert [(i.op, i.line) for i in one.instructions] == [(i.op, i.line) for i in other.instructions]
