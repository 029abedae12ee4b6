"""simulate(races=True): the cores take turns, instruction by instruction, and a race is a warning."""

import inspect
import threading
import warnings

import numpy as np
import pytest

from nkiconv.simulator import NkiError, RaceWarning, execute, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.rendezvous import Rendezvous

F32 = nl.float32


def shared(*shape):
    return nl.ndarray(shape, F32, nl.shared_hbm)


def run(kernel, *args, **options):
    """On two cores; no thread is left behind."""
    before = threading.active_count()
    try:
        return execute(jit(kernel)[2], args, races=True, **options)
    finally:
        assert threading.active_count() == before


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(kernel)
    return next(first + i for i, line in enumerate(lines) if text in line)


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
        found = run(fills_after_a_clear).outputs
    assert (found == 1).all()
    line, clear = (line_of(fills_after_a_clear, text) for text in ("tensor[half", "nl.zeros"))
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
        run(kernel, np.zeros((1, 4), np.float32))


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
        raced = run(harmless, x)
    plain = execute(jit(harmless)[2], (x,))
    np.testing.assert_array_equal(raced.outputs, plain.outputs)
    for one, other in zip(raced.programs, plain.programs, strict=True):
        assert [(i.op, i.line) for i in one.instructions] == [(i.op, i.line) for i in other.instructions]


@pytest.mark.parametrize(("lnc", "trace_only"), [(1, False), (1, True), (2, True)])
def test_one_core_and_traces_take_no_turns(monkeypatch, lnc, trace_only):
    monkeypatch.setattr(Rendezvous, "step", lambda *_arguments: pytest.fail("a turn is taken"))
    found = execute(jit(fills_after_a_clear)[lnc], (), races=True, trace_only=trace_only)
    assert len(found.programs) == lnc
    with pytest.raises(pytest.fail.Exception, match="a turn is taken"):
        run(fills_after_a_clear)
