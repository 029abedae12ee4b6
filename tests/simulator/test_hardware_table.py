"""trn2.toml is complete, agrees with itself and the limits, and no other number counts; files of other constants."""

import ast
import dataclasses
from pathlib import Path

import pytest

from nkiconv.simulator import hardware as hw
from nkiconv.simulator import timeline, timing
from nkiconv.simulator.constants import (
    SHIPPED,
    VARIABLE,
    Constant,
    InUse,
    TargetFileError,
    load_constants,
    load_target,
    write_target,
)
from nkiconv.simulator.hardware import CONSTANTS
from nkiconv.simulator.timing import Rates, UnknownConstantError


def test_rows_say_where_they_come_from_and_a_range_to_try_of_what_nobody_has_measured():
    for one in SHIPPED.values():
        assert min(len(one.unit.strip()), len(one.source.strip())) > 0, one.name
        assert one.standing != "inferred" or one.low < one.high, one.name


@pytest.mark.parametrize(("row", "words"), [
    ("value = 2.5", "lacks source, standing, unit"),
    ('value = 2.5, unit = "ns", source = "a trace", standing = "guessed"', "standing='guessed'"),
])  # fmt: skip
def test_a_malformed_row_is_refused_by_name(row, words, tmp_path):
    (tmp_path / "table.toml").write_text(f"[pe]\ngap_ns = {{ {row} }}\n")
    with pytest.raises(ValueError, match=rf"table\.toml: pe\.gap_ns: .*{words}"):
        load_constants(tmp_path / "table.toml")


def value(name):
    return CONSTANTS[name].value


def test_the_figures_agree_with_each_other():
    assert value("dma.engines") * value("dma.rows_per_engine") == hw.PARTITIONS
    assert hw.PSUM_BYTES_PER_PARTITION == 16 * 1024
    peak = 2 * hw.PARTITIONS * hw.STATIONARY_FREE_MAX * value("clock.pe_ghz") / 1e3  # TFLOP/s: 2 * 128 * 128 * 2.4 GHz
    assert value("peak.bf16_tflops") == pytest.approx(peak, rel=1e-3)
    assert value("peak.fp8_tflops") == pytest.approx(2 * peak, rel=1e-3)
    assert value("peak.fp32_tflops") == pytest.approx(peak / 4, rel=1e-3)
    assert value("throttle.window_ns") == pytest.approx(4096 / value("clock.nc_base_ghz"), rel=1e-6)
    cycle = 1 / value("clock.vector_ghz")
    assert value("vector.ns_per_elem_1x") == pytest.approx(cycle, rel=1e-3)
    assert value("vector.ns_per_elem_2x") == pytest.approx(cycle / 2, rel=1e-3)
    assert value("scalar.ns_per_elem") == pytest.approx(1 / value("clock.scalar_ghz"), rel=1e-3)
    theory = value("dma.engines") * value("dma.engine_bytes_per_ns")
    assert value("dma.doc_core_gbps") == pytest.approx(theory, rel=1e-3)
    assert value("dma.steady_core_gbps") < theory


def test_rates_are_the_table_s_unless_overridden():
    rates = Rates({"dma.hwdge_issue_ns": 605})
    assert (rates("dma.hwdge_issue_ns"), rates("dma.static_issue_ns")) == (605, 58)
    assert rates.take_read() == {"dma.hwdge_issue_ns", "dma.static_issue_ns"}
    assert rates.take_read() == frozenset()
    with pytest.raises(UnknownConstantError, match=r"dma\.hwdge_isue_ns.* did you mean dma\.hwdge_issue_ns"):
        Rates({"dma.hwdge_isue_ns": 605})


#: Literals that state no fact of the hardware, in any file, as int or float: none, one, a pair, a sign.
ANYWHERE = {0, 1, 2}
#: (file, literal) of the others: the layout of bn_aggr's operand, a mark, sizes of caches and of searches, rounding of
#: sums, and the length of runs that a row is of. Everything else belongs in trn2.toml.
ALLOWED = {
    ("vector.py", 3), ("line.py", 3), ("target.py", 8), ("target.py", 4096), ("dependencies.py", 64),
    ("dma_engines.py", 1e-6), ("overlap.py", 10), ("overlap.py", 14), ("overlap.py", 16), ("overlap.py", 60),
    ("pieces.py", 64), ("space.py", 64), ("repeats.py", 4),
}  # fmt: skip


def literals():
    found = []
    for package in (timing, timeline):
        for path in sorted(Path(package.__file__).parent.glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                    found.append((path, node.lineno, node.value))
    assert len({path for path, _, _ in found}) > 8
    return found


def test_no_number_lives_outside_the_table():
    others = [(path, line, n) for path, line, n in literals() if n not in ANYWHERE and (path.name, n) not in ALLOWED]
    text = [f"{path.parent.name}/{path.name}:{line}: {n}" for path, line, n in others]
    assert text == [], "give it a row in trn2.toml and read it through Rates, or a place in ALLOWED"


ISSUE = SHIPPED["dma.hwdge_issue_ns"]
MEASURED = dataclasses.replace(ISSUE, value=612.5, low=605.0, high=620.0, standing="measured", source='bench "a" \\ Ä')
TRIGGERS = dataclasses.replace(SHIPPED["dma.static_issue_ns"], value=85.25, low=80.0, high=90.5, standing="measured")


def test_what_is_written_is_read(tmp_path):
    write_target({one.name: one for one in (TRIGGERS, MEASURED)}, tmp_path / "measured.toml")
    found = load_target(tmp_path / "measured.toml")
    assert found == {**SHIPPED, MEASURED.name: MEASURED, TRIGGERS.name: TRIGGERS}
    write_target(found, tmp_path / "whole.toml")
    assert load_target(str(tmp_path / "whole.toml")) == found


ROW = {"value": "600", "unit": f'"{ISSUE.unit}"', "source": '"bench"', "standing": '"measured"'}


def file_of(path, row=None, name="dma.hwdge_issue_ns"):
    """A target with one row."""
    section, key = name.split(".")
    text = ", ".join(f"{key} = {value}" for key, value in {**ROW, **(row or {})}.items())
    path.write_text(f"[{section}]\n{key} = {{ {text} }}\n", encoding="utf-8")
    return path


def unit(name):
    return f'"{SHIPPED[name].unit}"'


# why                name                       changes to a good row                             message
REFUSED = [
    ("unknown constant", "dma.hwdge_isue_ns", {}, r"hwdge_isue_ns: unknown name; did you mean dma\.hwdge_issue"),
    ("another unit", ISSUE.name, {"unit": '"us"'}, r"unit='us': must be trn2\.toml's, 'ns on Sync.*convert the value"),
    ("unit no text", ISSUE.name, {"unit": "3"}, "unit=3: must be text"),
    ("value a text", ISSUE.name, {"value": '"600"'}, "value='600': must be a finite number"),
    ("value infinite", ISSUE.name, {"value": "inf"}, "value=inf: must be a finite number"),
    ("low no number", ISSUE.name, {"low": "nan"}, "low=nan: must be a finite number"),
    ("value 0", ISSUE.name, {"value": "0"}, r"value=0: must be above 0; leave the row out"),
    ("value below 0", ISSUE.name, {"value": "-1"}, "value=-1: must be at least 0"),
    ("a rate of 0", "clock.pe_ghz", {"value": "0", "unit": unit("clock.pe_ghz")}, "value=0: must be above 0"),
    ("a share above 1", "pe.row_tiles_overlap", {"value": "1.5", "unit": unit("pe.row_tiles_overlap")}, "at most 1"),
    ("far off", ISSUE.name, {"value": "1e9"}, r"must be at most 530000, 1000 times trn2\.toml's 530"),
    ("a limit", "memory.psum_banks", {"value": "16", "unit": unit("memory.psum_banks")}, "limit of the hardware.*at 8"),
    ("low above value", ISSUE.name, {"low": "610"}, r"value 600 is outside its range 610\.\.600"),
    ("high below value", ISSUE.name, {"high": "590"}, r"value 600 is outside its range 600\.\.590"),
    ("a key too many", ISSUE.name, {"hi": "700"}, "has hi, which no row has"),
    ("bad range to try", ISSUE.name, {"low": "-5", "standing": '"inferred"'}, "must be at least 0"),
]  # fmt: skip


@pytest.mark.parametrize(("why", "name", "row", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_row_that_is_none_is_refused_by_name(why, name, row, message, tmp_path):
    with pytest.raises(TargetFileError, match=message):
        load_target(file_of(tmp_path / "target.toml", row, name))


# why, what is in the file (None: no file), message
UNREADABLE = [
    ("missing", None, "cannot be read .No such file"),
    ("no TOML", "value = = 3", "is no TOML"),
    ("no text", b"\xff\xfe", "is no TOML"),
    ("no section", "pe = 3", "pe=3: must be a section of rows"),
    ("no row", "[pe]\nmin_rows = 3", r"pe\.min_rows=3: must be a row"),
]


@pytest.mark.parametrize(("why", "content", "message"), UNREADABLE, ids=[row[0] for row in UNREADABLE])
def test_a_file_that_is_none_is_refused_by_name(why, content, message, tmp_path, monkeypatch):
    path = tmp_path / "target.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TargetFileError, match=rf"target\.toml: {message}"):
        load_target(path)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(TargetFileError, match=rf"^{VARIABLE}='.*target\.toml'.*{message}"):
        InUse()["pe.min_rows"]


def test_nothing_is_written_that_could_not_be_read(tmp_path):
    with pytest.raises(TargetFileError, match="unknown name"):
        write_target({"q.zz": Constant("q.zz", 1, "ns", "", "measured", 1, 1)}, tmp_path / "target.toml")
    assert not (tmp_path / "target.toml").exists()


def test_a_process_reads_its_target_once(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(file_of(tmp_path / "trn2_measured.toml")))
    found = InUse()
    assert (found["dma.hwdge_issue_ns"].value, len(found), set(found)) == (600, len(SHIPPED), set(SHIPPED))
    monkeypatch.delenv(VARIABLE)
    assert (found.target, found.modelled) == ("trn2_measured.toml", "modelled (trn2_measured.toml)")
    assert (InUse().target, InUse().path, dict(InUse())) == ("trn2", None, dict(SHIPPED))


def test_a_key_tells_constants_apart_and_not_files(tmp_path, monkeypatch):
    """Neither where constants come from nor what is said of them changes a plan."""
    keys = {}
    for name, row in {"a": {}, "b": {"source": '"x"'}, "c": {"value": "601"}, "d": {"high": "650"}}.items():
        monkeypatch.setenv(VARIABLE, str(file_of(tmp_path / f"{name}.toml", row)))
        keys[name] = InUse().key
    write_target({ISSUE.name: ISSUE}, tmp_path / "same.toml")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "same.toml"))
    assert InUse().key == "trn2"
    assert keys["a"] == keys["b"]
    assert len({keys["a"], keys["c"], keys["d"], "trn2"}) == 4
