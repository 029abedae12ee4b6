"""The command that holds the timing model against published measurements: its table, its kernels, its page."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import module_of, of_command

from nkiconv import spec
from nkiconv.simulator.profiling import profile

pytestmark = pytest.mark.simulator_only
REPLAY = Path(__file__).resolve().parent / "simulator"


measured = of_command("validation", "measured")
modelled = of_command("validation", "modelled")
command = of_command("validation")
moves = of_command("validation", "moves")


def test_the_published_table_is_read(measured):
    sources = measured.read()
    assert len(sources) >= 5
    assert sum(len(source.rows) for source in sources) >= 36
    assert all(row.us > 5.0 for source in sources for row in source.rows)
    assert {source.adds_us for source in sources} == {0.0, 8.9}


GOOD = """[[source]]
name = "someone"
commit = "abc"
says = "a copy"
adds = ""
class = "copies"
rows = [{ what = "small", us = 5.0, moves = "copy", shapes = [[256, 256]], dtype = "fp32", block = 512 }]
"""


def mixed(x, streams, post, comb):
    return post[:, :, None] * x[:, None] + np.einsum("tij,tih->tjh", comb, streams)


@pytest.mark.parametrize("lnc", [1, 2])
def test_moves_compute_what_they_say(moves, lnc):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, (128, 96)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(moves.copy[lnc](x, 20), x)
    np.testing.assert_array_equal(moves.relu[lnc](x, 20), np.maximum(x, 0))
    np.testing.assert_array_equal(moves.add[lnc](x, y, 20), x + y)
    shapes = ((3, 512), (3, 4, 512), (3, 4), (3, 4, 4))
    args = [rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    np.testing.assert_array_equal(moves.mix_tokens[lnc](*args, 128), mixed(*args))
    np.testing.assert_array_equal(moves.mix_hidden[lnc](*args), mixed(*args))


@pytest.mark.parametrize("blocks", [(2, 2, 8), (1, 3, 1), (2, 1, 2)])
def test_matmuls_compute_what_they_say(moves, blocks):
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((256, 256), (256, 1024)))
    np.testing.assert_array_equal(moves.matmul_blocks[1](lhs, rhs, *blocks), lhs.T @ rhs)
    np.testing.assert_array_equal(moves.matmul_tiles[1](lhs, rhs), lhs.T @ rhs)
    np.testing.assert_array_equal(moves.copy_rows[1](lhs), lhs)


#: Rows of classes that constants were not read off, and the least and most that the model may take for them.
NEAR = [("m 2, n 1, k 8", 0.95, 1.05), ("m 2, n 6, k 4", 0.93, 1.07), ("copy of 4096 x 128", 0.95, 1.05)]


@pytest.mark.cover(0, keep=["copy of 4096 x 128"])
@pytest.mark.parametrize(("what", "least", "most"), NEAR, ids=[row[0] for row in NEAR])
def test_hardware_made_descriptors_take_what_was_measured(measured, modelled, what, least, most):
    sources = [source for source in measured.read() if "chipboost" in source.name]
    for source in sources:
        rows = tuple(row for row in source.rows if row.what == what)
        for found in modelled.outcomes(dataclasses.replace(source, rows=rows), None, {}):
            assert least < 1 + found.error < most
            assert least < 1 + found.ahead_error < most
            return
    pytest.fail("no such row")


def test_a_time_may_be_that_of_several_launches(measured, modelled, moves, tmp_path):
    shapes = '[[[256, 256]], [[512, 256]]], dtype = "fp32" }]'
    table = GOOD.replace('[[256, 256]], dtype = "fp32", block = 512 }]', shapes).replace('"copy"', '"copy_rows"')
    path = tmp_path / "table.toml"
    path.write_text(table.replace('adds = ""', 'adds = "launch.benchmark_extra_ns"\ncores = 1'))
    [source] = measured.read(path)
    [found] = modelled.outcomes(source, None, {})
    alone = [profile(moves.copy_rows[1])(spec((rows, 256), "fp32")).modelled_us for rows in (256, 512)]
    assert found.modelled_us == pytest.approx(sum(alone) + 2 * 8.9)


THEIRS = """import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def test_what_is_ours_theirs_and_replayed(measured, modelled, moves, monkeypatch, tmp_path):
    replay = module_of(REPLAY, "test_replay", monkeypatch)
    folder = tmp_path / "profiling" / "small" / "json_reports"
    folder.mkdir(parents=True)
    (folder / "one_profile_full.json").write_text(json.dumps(replay.tiny()))
    (tmp_path / "kernel_1.5.py").write_text(THEIRS)
    ours = measured.Row("ours", 10.0, ((spec((256, 256), "fp32"), 512),), "copy", None, None)
    theirs = measured.Row("theirs", 10.0, ((spec((128, 512), "fp32"),),), None, "kernel_1.5.py", "kernel")
    source = measured.Source(
        "someone", "abc", "all", "small", "launch.benchmark_extra_ns", 2, "profiling", "**/*_full.json", (ours, theirs)
    )
    one, two, three = modelled.outcomes(source, tmp_path, {})
    alone = profile(moves.copy[2])(spec((256, 256), "fp32"), 512)
    assert (one.how, two.how, three.how) == ("ours", "theirs", "replayed")
    assert one.modelled_us == pytest.approx(alone.modelled_us + 8.9)
    assert one.error == pytest.approx((alone.modelled_us + 8.9) / 10 - 1)
    slow = list(modelled.outcomes(source, tmp_path, {"dma.engine_bytes_per_ns": 1.0}))
    assert all(late.modelled_us > soon.modelled_us for late, soon in zip(slow, (one, two, three), strict=True))
    assert [found.how for found in modelled.outcomes(source, None, {})] == ["ours"]
    assert three.what == "small"
    assert "nki" not in sys.modules, "the simulator is in nobody's way afterwards"


def test_the_page(command, tmp_path):
    command.main(["--only", "runs of 64 bytes", "--out", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert page.count("| ours |") == 5
    assert "pe.row_tiles_overlap | 1 | 0 to 1" in page
    command.main(["--only", "nki-autotune", "--out", str(tmp_path / "page.md")])
    assert "No checkout of it was given." in (tmp_path / "page.md").read_text()
