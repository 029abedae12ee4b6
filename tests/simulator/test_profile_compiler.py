"""What a profile says of instructions that the compiler may drop."""

from __future__ import annotations

import pytest

from nkiconv import spec
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import jit
from nkiconv.simulator import language as nl
from nkiconv.simulator.profiling import profile

NONE = nisa.dge_mode.none


@jit
def loads_again(x, between):
    """The same tile three times, with other DMAs between."""
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    for _ in range(3):
        a = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[:, 0:512])
        nisa.dma_copy(dst=out, src=a)
        for i in range(between):
            nisa.dma_copy(dst=nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf), src=x[:, 8 * i : 8 * i + 8])
    return out


def test_sensitivity_tries_loads_that_the_compiler_may_drop():
    """Loads 64 DMAs apart are dropped in all of the range, those 200 apart at its end only."""
    near, far = (profile(loads_again, sensitivity=True)(spec((128, 2048), "bf16"), n) for n in (60, 200))
    for found, moves in ((near, False), (far, True)):
        (window,) = (one for one in found.sensitivity if one.constant == "scheduling.reload_window")
        assert (abs(window.high_us - window.low_us) > 0.5) == moves
    plain = profile(warmed, sensitivity=True)(spec((128, 512), "bf16"), 0)
    assert "scheduling.reload_window" not in {one.constant for one in plain.sensitivity}


@jit
def warmed(x, count):
    """`count` matmuls that nobody reads while x is on its way, then one that counts."""
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    zeros, a = (nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.memset(dst=zeros, value=0.0)
    nisa.dma_copy(dst=a, src=x, dge_mode=NONE)
    warm, sums = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(2))
    for _ in range(count):
        nisa.nc_matmul(dst=warm, stationary=zeros[:, 0:128], moving=zeros, accumulate=False)
    for _ in range(20):
        nisa.nc_matmul(dst=sums, stationary=a[:, 0:128], moving=a)
    y = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=y, src=sums)
    nisa.dma_copy(dst=out, src=y, dge_mode=NONE)
    return out


def test_sensitivity_tries_a_compiler_that_drops_warm_ups():
    found = profile(warmed, sensitivity=True)(spec((128, 512), "bf16"), 10)
    (dropped,) = (one for one in found.sensitivity if one.constant == "scheduling.drops_unread")
    cold = profile(warmed)(spec((128, 512), "bf16"), 0)
    assert dropped.high_us == pytest.approx(cold.phases.phase0_us, rel=0.01)
    assert dropped.low_us == pytest.approx(found.phases.phase0_us)
    assert abs(dropped.high_us - dropped.low_us) > 0.1
    plain = profile(warmed, sensitivity=True)(spec((128, 512), "bf16"), 0)
    assert "scheduling.drops_unread" not in {one.constant for one in plain.sensitivity}
