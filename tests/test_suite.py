"""`nkiconv bench --suite`, DeepBench's too, `profile`, `profiles` and `bench-simulator`: rows, tables, kept files, and
bad input; `--against`: a stand-in checkout with a kernel of our own, timed beside the plans.
"""

import csv
import dataclasses
import json
import math
import sys
import types

import numpy as np
import pytest
from commands import ROOT, done, run

from nkiconv import cases, simulator
from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.rules import DIRECTIONS
from nkiconv.simulator import isa, language
from nkiconv.tools import bench
from nkiconv.tools.suites import csv_rows, deepbench, nki_library, profile_table, suite
from nkiconv.tools.tables import readme

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans", "here")]


def test_rows_of_some_cases():
    document = json.loads(done("bench", "--suite", "depthwise", "--only", "kda_bf16", "--json").stdout)
    assert document["ok"]
    (row,) = document["rows"]
    assert (row["case"], row["dtype"], row["verdict"], row["channels_checked"]) == ("kda_bf16", "bf16", "pass", 384)
    assert row["x_copy_floor"] == pytest.approx(row["modelled_us"] / row["copy_floor_us"])
    assert row["h200_cudnn_fraction"] == suite.h200_fractions()["kda_bf16", "bf16"]
    mean = document["geometric_means"]["x_copy_floor"]
    assert (mean["rows"], mean["mean"]) == (1, pytest.approx(row["x_copy_floor"]))


def test_the_table_and_a_wrong_result(monkeypatch):
    result = done("bench", "--suite", "depthwise", "--only", "kda_bf16")
    for text in ("look-", "x copy", "cuDNN", "geometric mean", "kda_bf16"):
        assert text in result.output
    verify = suite.verify_case

    def wrong(*args, **kwargs):
        [report] = verify(*args, **kwargs)
        return [dataclasses.replace(report, comparison=dataclasses.replace(report.comparison, num_wrong=1))]

    monkeypatch.setattr(suite, "verify_case", wrong)
    result = run("bench", "--suite", "depthwise", "--only", "kda_bf16")
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_rows_do_not_depend_on_what_was_tuned(monkeypatch):
    """A quick plan is searched for anew where the cache has a tuned one, and the cache keeps that."""
    asked = []

    def answer(request, *, wide=False, use_cache=True, advance):
        asked.append((wide, use_cache))
        return types.SimpleNamespace(effort="tuned" if wide or use_cache else "timed")

    monkeypatch.setattr(suite, "answer", answer)
    request = suite.Request(problem=cases.get("kda_bf16").problem)
    assert suite.plan_of(request, False, lambda *_: None).effort == "timed"
    assert suite.plan_of(request, True, lambda *_: None).effort == "tuned"
    assert asked == [(False, True), (False, False), (True, True)]


def test_readme(monkeypatch, tmp_path):
    """The table between the markers is that of the CSV file, number by number."""
    monkeypatch.setattr(suite, "headline", lambda: [(cases.get("kda_bf16"), "bf16")])
    first, last = readme.markers("depthwise")
    (tmp_path / "page.md").write_text(f"before\n{first}old\n{last}\nafter\n")
    done("bench", "--suite", "depthwise", "--csv", "rows.csv", "--readme", "page.md")
    text = (tmp_path / "page.md").read_text()
    table = readme.markdown(csv_rows.read(tmp_path / "rows.csv"))
    assert text == f"before\n{first}{table}{last}\nafter\n"
    assert "| kda_bf16 | bf16 | mixed |" in table


def test_a_baseline_that_does_not_run_has_no_number(monkeypatch):
    def refuse(request, wide, advance):
        raise suite.UnsupportedError("too many instructions")

    monkeypatch.setattr(suite, "answer", refuse)
    found = suite._baseline(suite.Request(problem=cases.get("hyena").problem), lambda *_: None)
    assert found == suite.Baseline(None, reason="too many instructions")
    mean, count = suite.geometric_mean([2.0, None, 8.0])
    assert (mean, count) == (pytest.approx(4.0), 2)
    assert math.isnan(suite.geometric_mean([None])[0])


@pytest.mark.slow
def test_rows_and_picture_of_conv2d(tmp_path):
    result = done("bench", "--suite", "conv2d", "--only", "rn50_1x1", "--plot", "roofline.png", "--json")
    first, second = json.loads(result.stdout)["rows"]
    assert [(row["case"], row["dtype"]) for row in (first, second)] == [("rn50_1x1", "bf16"), ("rn50_1x1", "fp32")]
    x, w, y = 8 * 1024 * 14 * 14, 1024 * 256, 8 * 256 * 14 * 14
    for row in (first, second):
        assert row["verdict"] == "pass"
        assert row["x_implicit_gemm"] == pytest.approx(row["implicit_gemm_us"] / row["modelled_us"])
        shared = x if "shard=channels" in row["settings"] else w  # what both cores need
        assert row["reload"] == pytest.approx((x + w + y + shared) / (x + w + y))
        assert 0 < row["psum_banks"] <= 8
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


COMMITTED = {(row["case"], row["dtype"]): row for row in profile_table.read(ROOT / "profiles" / "modelled_trn2.csv")}
#: Rows with more instructions take seconds to tens of seconds: `make test-all` checks them.
QUICK_INSTRUCTIONS = 1_500


def test_the_file_has_every_headline_case_in_both_dtypes():
    assert list(COMMITTED) == [(case.name, dtype) for case, dtype in profile_table.headline()]
    assert len(COMMITTED) >= 20
    assert {dtype for _, dtype in COMMITTED} == {"bf16", "fp32"}


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=[pytest.mark.slow] * (int(row["instructions"]) > QUICK_INSTRUCTIONS), id="-".join(key))
        for key, row in COMMITTED.items()
    ],
)
def test_rows_are_current(key):
    case, dtype = next(pair for pair in profile_table.headline() if (pair[0].name, pair[1]) == key)
    (fresh,) = profile_table.rows([(case, dtype)])
    assert profile_table.stale(COMMITTED[key], fresh) == [], "run `make profiles` and say in the commit what moved"


def test_what_is_stale():
    row = dict(next(iter(COMMITTED.values())))
    assert profile_table.stale(row, row) == []
    moved = {**row, "modelled_us": str(float(row["modelled_us"]) * 1.002)}
    (found,) = profile_table.stale(row, moved)
    assert found.startswith("modelled_us is ")
    little = {**row, "modelled_us": str(float(row["modelled_us"]) * 1.0005)}
    assert profile_table.stale(row, little) == []


def test_another_header_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("case,dtype\n")
    with pytest.raises(FileFormatError, match="has other columns"):
        profile_table.read(tmp_path / "x.csv")


CASE = "nkl_n1_c16_w512_s7"


def test_table_and_json():
    result = done("profile", CASE, "--sensitivity")
    for text in ("modelled 4", "phase 0", "worst", "look-ahead", "copy floor", "critical path", "sensitivity", "HBM"):
        assert text in result.output
    assert "inferred constants" in result.output
    result = run("profile", CASE, "kda_bf16", "--json", "--lnc", 1, "--dtype", "fp32")
    first, second = json.loads(result.stdout)["rows"]
    assert (first["case"], second["case"]) == (CASE, "kda_bf16")
    assert (first["dtype"], first["lnc"]) == ("fp32", 1)
    assert first["x_copy_floor"] == pytest.approx(first["modelled_us"] / first["copy_floor_us"])


def test_files(tmp_path):
    trace, plot = tmp_path / "t.json", tmp_path / "p.png"
    done("profile", CASE, "--trace", trace, "--plot", plot)
    again = run("profile", CASE, "--trace", trace, "--plot", plot)
    assert again.exit_code == 2
    assert f"--trace={trace}: exists; name another, or overwrite it with --force" in again.output.replace("\n", "")
    written = json.loads(trace.read_text())
    assert written["traceEvents"]
    assert written["otherData"]["title"] == f"{CASE}: N=1 C=16 W=512 S=7 bf16, vector on 2 cores"
    assert (written["otherData"]["order"], written["otherData"]["phase"]) == ("program", 0.0)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_profiles_of_some_cases():
    rows = json.loads(run("profiles", "--only", "kda_bf16", "--json").stdout)["rows"]
    assert {(row["case"], row["kind"]) for row in rows} == {("kda_bf16", "modelled")}


def test_constants_move_the_profile_and_are_named():
    slow = run("profile", "kda_bf16", "--constant", "vector.ns_per_elem_scalar_tensor_tensor=20", "--json")
    usual = run("profile", "kda_bf16", "--json")
    rows = [json.loads(one.stdout)["rows"][0] for one in (slow, usual)]
    assert rows[0]["modelled_us"] > rows[1]["modelled_us"]
    assert rows[0]["copy_floor_us"] == rows[1]["copy_floor_us"]
    assert rows[0]["constants"] == {"vector.ns_per_elem_scalar_tensor_tensor": 20.0}
    assert "constants" not in rows[1]


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_tables_of_other_forms(form):
    found = run("profile", "nkl_n1_c16_w512_s7", "--format", form).stdout.splitlines()
    comma, bar = "profile,of,what,us,share,instructions", "| profile | of | what | us | share | instructions |"
    assert found[0] == (comma if form == "csv" else bar)
    document = json.loads(run("profile", "nkl_n1_c16_w512_s7", "--json").stdout)["rows"][0]
    assert sum("total" in line and f"{document['modelled_us']:.3f}" in line for line in found) >= 1
    assert any("critical path" in line for line in found)
    moved = run("profile", "nkl_n1_c16_w512_s7", "--against", "nkl_n1_c16_w512_s7", "--format", form).stdout
    assert "before" in moved.splitlines()[0]


@pytest.fixture
def quick(monkeypatch):
    """One run of a small case, and few repetitions."""
    monkeypatch.setattr(bench, "CASES", ("nkl_pad_n1_c16_w512_s7",))
    monkeypatch.setattr(bench, "REPEATS", 3)
    monkeypatch.setattr(bench, "RUNS", 1)


@pytest.mark.usefixtures("quick")
def test_the_table_as_json():
    found = json.loads(run("bench-simulator", "--json").stdout)
    [case] = found["cases"]
    assert (case["num_instructions"] > 40, case["num_not_replayed"]) == (True, 0)
    assert case["instructions_per_second"] == pytest.approx(1e6 / case["simulated_us"])
    assert case["overhead_us"] == pytest.approx(case["simulated_us"] - case["numpy_us"])
    assert [one["name"] for one in found["instructions"]] == list(bench._SINGLES)
    assert all(one["numpy_us"] > 0 for one in found["instructions"])
    assert case["traced_us"] > 0
    assert (found["aim_us"], found["aim_traced_us"]) == (20, 10)


def test_instructions_without_a_twin_are_counted():
    @simulator.jit
    def kernel(x_hbm):
        x_sbuf = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.sbuf)
        isa.dma_copy(dst=x_sbuf, src=x_hbm)
        isa.reciprocal(dst=x_sbuf, data=x_sbuf)

    execution = simulator.execute(kernel, (np.ones((4, 8), np.float32),))
    steps, not_replayed = bench.numpy_steps(execution.instructions)
    assert (len(steps), not_replayed) == (1, 1)


def test_a_v100_took_some_time_for_all_but_gradients_of_first_layers():
    found = deepbench.published()
    counts = [sum(direction == one for _, direction in found) for one in DIRECTIONS]
    assert counts == [94, 94 - 10, 94]  # of ten first layers
    assert min(found.values()) > 0
    assert {name for name, _ in found} == set(cases.names("deepbench"))
    assert {case.problem.C < 4 for case in cases.load("deepbench") if (case.name, "dgrad") not in found} == {True}


@pytest.mark.slow
def test_rows_of_one_problem(tmp_path):
    result = run("bench", "--suite", "deepbench", "--only", "db_11", "--layout", "NCHW", "--json")
    document = json.loads(result.stdout)
    rows = document["rows"]
    assert [(row["case"], row["direction"], row["layout"]) for row in rows] == [
        ("db_11", direction, "NCHW") for direction in DIRECTIONS
    ]
    for row, mean in zip(rows, document["geometric_means"], strict=True):
        assert row["v100_us"] == deepbench.published()["db_11", row["direction"]]
        assert mean["roofline_fraction"] == pytest.approx(row["roofline_fraction"])
        assert (row["behind"] != "") == (row["roofline_fraction"] < row["v100_fraction"])
    shown = run("bench", "--suite", "deepbench", "--only", "db_11", "--layout", "NCHW", width=200).stdout
    assert "geometric mean (rows: 1, V100: 1)" in shown


#: Our kernel in place of AWS's, for padding 0; with a bias it is wrong.
KERNEL = """
import nki
from nkiconv import depthwise_conv1d_implicit_gemm as ours

from ...core.helpers import no_padding


@nki.jit
def depthwise_conv1d_implicit_gemm(img_ref, filter_ref, padding, **more):
    assert padding[1] == no_padding, "only padding 0"
    return ours(img_ref, filter_ref, padding, bias=WRONG, **more)
"""
FS_ASR = "nkl_fs_asr"


@pytest.fixture
def checkout(tmp_path):
    return stand_in(tmp_path / "library")


def stand_in(root, kernel=None):
    """A checkout with this kernel, or with one that is right."""
    package = root / "src" / "nkilib_src"
    for folder in ("nkilib/experimental/conv", "nkilib/core"):
        (package / folder).mkdir(parents=True)
    (package / "nkilib/core/helpers.py").write_text("no_padding = (0, 0)\n")
    (package / "nkilib/experimental/conv/depthwise_conv1d.py").write_text(kernel or KERNEL.replace("WRONG", "None"))
    return root


def few(monkeypatch, *pairs):
    """The suite has only these, of fewer channels."""
    found = []
    for name, dtype, C in pairs:
        case = cases.get(name)
        problem = case.problem.replace(C=C, K=C, groups=C)
        found.append((cases.Case(case.name, case.suite, problem, case.source, case.headline), dtype))
    monkeypatch.setattr(suite, "headline", lambda: found)


def against(*arguments):
    return run("bench", "--suite", "depthwise", "--against", *arguments)


def test_rows_beside_awss(monkeypatch, checkout):
    few(monkeypatch, ("nkl_n1_c16_w512_s3", "bf16", 2))
    before = set(sys.modules), list(sys.path)
    result = against(checkout, "--check", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"]
    [row] = document["rows"]
    assert row["nki_library_instructions"] > 0
    assert row["nki_library_check"] == "pass"
    assert row["x_nki_library"] == pytest.approx(row["nki_library_us"] / row["modelled_us"])
    lookahead = row["nki_library_lookahead_us"]
    assert 0 < lookahead <= row["nki_library_phase0_us"]
    assert row["x_nki_library_lookahead"] == pytest.approx(lookahead / row["modelled_phase0_us"])
    assert document["geometric_means"]["rows"] == 1
    assert not {name for name in sys.modules if name == "nki" or "nkilib" in name}
    assert set(before[0]) <= set(sys.modules)
    assert sys.path == before[1]


def test_csv_readme_and_table(monkeypatch, checkout, tmp_path):
    few(monkeypatch, (FS_ASR, "bf16", 2), ("mamba2_prefill", "bf16", 2))
    first, last = readme.AGAINST_MARKERS
    (tmp_path / "page.md").write_text(f"before\n{first}old\n{last}\nafter\n")
    result = against(checkout, "--csv", "rows.csv", "--readme", "page.md")
    assert result.exit_code == 0, result.output
    assert "mamba2_prefill bf16: AWS's is not timed: " in result.stdout
    assert "only padding 0" in result.stdout
    assert "wrote rows.csv" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:8])) <= 120
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        timed, refused = csv.DictReader(file)
    assert float(timed["x_nki_library"]) == pytest.approx(1, rel=0.1)
    assert (refused["nki_library_us"], refused["x_nki_library"]) == ("", "")
    table = readme.markdown(csv_rows.read(tmp_path / "rows.csv"), readme.AGAINST_COLUMNS)
    assert (tmp_path / "page.md").read_text() == f"before\n{first}{table}{last}\nafter\n"
    assert f"| {FS_ASR} | bf16 | " in table


def test_a_wrong_result_is_status_1(monkeypatch, tmp_path):
    few(monkeypatch, (FS_ASR, "bf16", 2))
    checkout = stand_in(tmp_path / "wrong", KERNEL.replace("WRONG", "filter_ref[:, 0, 0, 0]"))
    result = against(checkout, "--check")
    assert result.exit_code == 1
    assert "wrong" in result.stdout
    assert against(checkout).exit_code == 0


def test_what_was_imported_before_is_there_again(checkout, monkeypatch):
    mine = type(sys)("nkilib_src")
    monkeypatch.setitem(sys.modules, "nkilib_src", mine)
    with nki_library.opened(checkout):
        assert sys.modules["nkilib_src"] is not mine
    assert sys.modules["nkilib_src"] is mine


def test_a_file_that_does_not_load_is_refused_by_name(tmp_path):
    broken = stand_in(tmp_path / "broken", "import no_such_package\n")
    with pytest.raises(FileFormatError, match=r"broken: nkilib_src\..*does not load \(ModuleNotFoundError: .*such"), \
            nki_library.opened(broken):  # fmt: skip
        pass
    other = stand_in(tmp_path / "other", "x = 1\n")
    with pytest.raises(FileFormatError, match="AttributeError"), nki_library.opened(other):
        pass


def test_awss_own_nki_is_not_hidden(checkout, monkeypatch):
    theirs = type(sys)("nki")
    theirs.__file__ = "site-packages/nki/__init__.py"
    monkeypatch.setitem(sys.modules, "nki", theirs)
    with (
        pytest.raises(UnsupportedError, match="compare where AWS's nki is not installed"),
        nki_library.opened(checkout),
    ):
        pass
