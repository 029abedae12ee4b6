"""Profiles: what they add up to, on kernels small enough to check by hand."""

import json

import numpy as np
import pytest

from nkiconv import simulator as nki
from nkiconv import spec
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.profiling import NoTimelineError, Problem, Profile, profile, profile_timed
from nkiconv.simulator.profiling.perfetto import trace
from nkiconv.simulator.profiling.roofline import roofline
from nkiconv.simulator.timing import Rates, UnknownConstantError

NONE = nisa.dge_mode.none
X = spec((128, 512), "fp32")


def tile_of(x, dtype=None, buffer=nl.sbuf, columns=None):
    return nl.ndarray((x.shape[0], columns or x.shape[1]), dtype=dtype or x.dtype, buffer=buffer)


@nki.jit
def copied(x):
    """Load, copy on Vector, store; static DMA."""
    out, a, b = tile_of(x, buffer=nl.shared_hbm), tile_of(x), tile_of(x)
    nisa.dma_copy(dst=a, src=x, dge_mode=NONE)
    nisa.tensor_copy(dst=b, src=a)
    nisa.dma_copy(dst=out, src=b, dge_mode=NONE)
    return out


@nki.jit
def multiplied(x, count):
    """Load a bf16 tile, multiply it by itself `count` times into one bank, read that out, store it."""
    out, a, y = tile_of(x, nl.float32, nl.shared_hbm), tile_of(x), tile_of(x, nl.float32)
    nisa.dma_copy(dst=a, src=x, dge_mode=NONE)
    acc = tile_of(x, nl.float32, nl.psum)
    for _ in range(count):
        nisa.nc_matmul(dst=acc, stationary=a[0:128, 0:128], moving=a)
    nisa.tensor_copy(dst=y, src=acc)
    nisa.dma_copy(dst=out, src=y, dge_mode=NONE)
    return out


HALF = spec((128, 512), "bf16")


#: As test_timeline_hand works it out.
COPIED_NS = 4125.5


def test_the_whole_of_a_load_a_copy_and_a_store():
    found = profile(copied)(X)
    assert found.modelled_us == pytest.approx(COPIED_NS / 1e3, rel=1e-3)
    assert found.phases.at_us == {0.0: found.modelled_us}, "no Tensor work, so one phase"
    assert found.lookahead_us == pytest.approx(found.modelled_us)
    assert not found.leans_on_compiler
    assert (found.instructions, found.dma_transfers, found.lnc) == (3, 2, 1)
    assert found.hbm_bytes == 2 * 128 * 512 * 4 == found.dma_bytes
    assert found.dma_elements == ((2048, 256),)
    assert found.dma_efficiency == pytest.approx((2048 / 27.2) / (4.7 + 2048 / 27.2))
    assert found.min_bytes == found.hbm_bytes
    assert found.roofline_us == pytest.approx(found.hbm_bytes / 415e3)
    assert found.roofline_fraction == pytest.approx(found.roofline_us / found.modelled_us)
    assert found.sbuf_peak_bytes == 2 * 2048
    assert found.inferred_share == 0.0
    assert found.bound_by == "dma latency", "two first packets and a completion are more than two flows"


def test_flops_and_rate():
    found = profile(multiplied)(HALF, 60)
    flops = 60 * 2 * 128 * 128 * 512
    assert found.matmul_flops == flops
    assert found.mfu == pytest.approx(flops / (found.phases.phase0_us * 78.64e6), rel=1e-6)
    assert 0 < found.full_rate_share < 1
    assert found.phases.phase0_us <= found.phases.worst_us
    assert len(found.phases.at_us) == 8
    assert found.phases.mean_us == pytest.approx(np.mean(list(found.phases.at_us.values())))
    given = profile(multiplied, problem=Problem(flops=1000, min_bytes=415_000, dtype="bfloat16"))(HALF, 60)
    assert given.roofline_us == pytest.approx(1.0)
    assert given.mfu < found.mfu


@pytest.mark.parametrize(("min_bytes", "flops", "dtype", "cores", "us", "limit"), [
    (716_000, 0, "bfloat16", 2, 1.0, "bytes"), (415_000, 0, "bfloat16", 1, 1.0, "bytes"),
    (1, 78_640_000, "bfloat16", 1, 1.0, "flops"), (1, 2 * 19_660_000, "float32", 2, 1.0, "flops"),
    (1, 157_300_000, "float8_e4m3", 1, 1.0, "flops"),
])  # fmt: skip
def test_roofline(min_bytes, flops, dtype, cores, us, limit):
    found = roofline(min_bytes, flops, dtype, cores, Rates())
    assert found.us == pytest.approx(us)
    assert found.limit == limit


def test_standalone_adds_preamble_and_postamble():
    inside, alone = profile(copied)(X), profile(copied, standalone=True)(X)
    assert alone.modelled_us - inside.modelled_us == pytest.approx(13.5 + 2.07)
    assert alone.lookahead_us - inside.lookahead_us == pytest.approx(13.5 + 2.07)
    assert alone.roofline_fraction == pytest.approx(inside.roofline_fraction)


@nki.jit
def on_gpsimd(x):
    """Its path rests on GpSimd's inferred rate."""
    out, a = tile_of(x, buffer=nl.shared_hbm), tile_of(x)
    nisa.dma_copy(dst=a, src=x, dge_mode=NONE)
    nisa.tensor_copy(dst=a, src=a, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=out, src=a, dge_mode=NONE)
    return out


def test_sensitivity_tries_what_the_kernel_rests_on():
    found = profile(on_gpsimd, sensitivity=True)(X)
    names = [one.constant for one in found.sensitivity]
    assert names[0] == "gpsimd.elementwise_ns_per_elem"
    assert "pe.min_interval_rows" not in names, "there is no matmul"
    first = found.sensitivity[0]
    assert first.high_us - first.low_us == pytest.approx(512 * (first.high - first.low) / 1e3)
    assert found.sensitivity_range_us() == (first.low_us, first.high_us)
    assert found.inferred_share > 0
    assert set(found.inferred_constants) >= {"gpsimd.elementwise_ns_per_elem"}
    assert profile(copied, sensitivity=True)(X).sensitivity_range_us()[0] == pytest.approx(COPIED_NS / 1e3, rel=1e-3)


def test_trace_has_every_track_and_every_instruction():
    _, timed = profile_timed(multiplied[2], (HALF, 3))
    events = json.loads(json.dumps(trace(timed)))["traceEvents"]
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    wanted = {"tensor", "vector", "scalar", "gpsimd", "sync", "tensor rate", "PSUM bank 7", "DMA sync static"}
    assert tracks >= {(core, name) for core in (0, 1) for name in wanted}
    slices = [e for e in events if e["ph"] == "X"]
    assert sum(e["name"] == "nc_matmul" for e in slices) == 6
    assert sum(e["name"] == "load" for e in slices) == 2
    assert all(e["dur"] >= 0 for e in slices)
    matmul = next(e for e in slices if e["name"] == "nc_matmul")
    assert matmul["args"]["flops"] == 2 * 128 * 128 * 512
    assert matmul["args"]["line"].endswith(tuple("0123456789"))
    starts, ends = ({e["id"] for e in events if e["ph"] == kind} for kind in "sf")
    assert starts == ends != set()
    assert {e["name"] for e in events if e["ph"] == "C"} == {"SBUF bytes per partition", "PSUM bytes per partition"}


def test_a_kernel_without_instructions_is_refused():
    with pytest.raises(ValueError, match="the kernel runs no instruction"):
        profile(nki.jit(lambda x: x))(X)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("throttle.window_ns", -5, "must be above 0"), ("dma.hwdge_queue_depth", 0, "must be above 0"),
    ("dma.engines", "16", "must be a finite number"), ("gpsimd.elementwise_ns", 1.0, "did you mean gpsimd"),
])  # fmt: skip
def test_impossible_constants_are_refused(name, value, words):
    with pytest.raises(UnknownConstantError, match=words):
        profile(copied, constants={name: value})(X)
    allowed = {"pe.cold_ldw_16bit_half_ns": -30}  # the table's is negative too
    assert profile(copied, constants=allowed)(X).modelled_us > 0


@pytest.mark.parametrize(("arguments", "words"), [
    ({"flops": -1}, r"problem\.flops=-1: must be None or an int"),
    ({"min_bytes": 1.5}, r"problem\.min_bytes=1\.5: must be"),
    ({"dtype": "fp7"}, r"problem\.dtype='fp7': must be None or one of"),
])  # fmt: skip
def test_bad_problems_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Problem(**arguments)
    assert Problem(dtype="bf16").dtype == "bfloat16"


@nki.jit
def prepared(x):
    out, a = tile_of(x, buffer=nl.shared_hbm), tile_of(x)
    nisa.memset(dst=a, value=0.0)
    nisa.dma_copy(dst=out, src=a, dge_mode=NONE)
    return out


def test_work_outside_the_span_is_reported():
    found = profile(prepared)(X)
    assert found.before_us * 1e3 == pytest.approx(58 + 512 * 0.832 - 10.5 + 10.5 + 32, abs=11)
    assert found.after_us == 0
    assert profile(copied)(X).before_us == 0


def test_a_profile_comes_back_from_json_without_its_timeline(tmp_path):
    found = profile(copied, sensitivity=True)(X)
    plain = json.loads(json.dumps(found.as_dict()))
    assert (plain["modelled_us"], plain["phases"]["worst_us"]) == (found.modelled_us, found.phases.worst_us)
    read = Profile.from_dict(plain)
    assert read == found
    assert str(read) == str(found)
    with pytest.raises(NoTimelineError, match="copied: this profile holds no timeline"):
        read.save_trace(tmp_path / "t.json")
    with pytest.raises(ValueError, match="a profile lacks engines"):
        Profile.from_dict({name: value for name, value in found.as_dict().items() if name != "engines"})
    with pytest.raises(ValueError, match="no profile"):
        Profile.from_dict(found.as_dict() | {"engines": 3})


def test_comparisons_say_what_moved():
    one, three = (profile(multiplied)(HALF, count) for count in (1, 3))
    moved = one.compare(three)
    rows = {row.what: row for row in moved.rows()}
    assert rows["flops issued"].after == 3 * rows["flops issued"].before
    assert rows["instructions"].after - rows["instructions"].before == 2
    assert rows["mean, us"].before == one.phases.mean_us
    assert rows["mean, us"].change.startswith("+")
    assert rows["DMA bytes"].change == "+0.0%"
    assert "multiplied -> multiplied" in str(moved)
    assert "times as long" in str(moved)
    assert "times as fast" in str(three.compare(one))
    assert moved.as_dict()["after"]["instructions"] == three.instructions


@nki.jit
def loads_again(x, between):
    """The same tile three times, with other DMAs between."""
    out = tile_of(x, buffer=nl.shared_hbm, columns=512)
    for _ in range(3):
        a = tile_of(x, columns=512)
        nisa.dma_copy(dst=a, src=x[:, 0:512])
        nisa.dma_copy(dst=out, src=a)
        for i in range(between):
            nisa.dma_copy(dst=tile_of(x, columns=8), src=x[:, 8 * i : 8 * i + 8])
    return out


def test_sensitivity_tries_loads_that_the_compiler_may_drop():
    """Loads 140 DMAs apart are dropped at the end of the range only."""
    found = profile(loads_again, sensitivity=True)(spec((128, 2048), "bf16"), 140)
    (window,) = (one for one in found.sensitivity if one.constant == "scheduling.reload_window")
    assert abs(window.high_us - window.low_us) > 0.5
