"""`nkiconv profile` and `nkiconv profiles`: tables, JSON, traces, pictures, and bad input by name."""

import json

import pytest
from shell import run

pytestmark = pytest.mark.simulator_only
CASE = "nkl_n1_c16_w512_s7"


def test_table_and_json():
    result = run("profile", CASE, "--sensitivity")
    assert result.exit_code == 0, result.output
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
    result = run("profile", CASE, "--trace", trace, "--plot", plot)
    assert result.exit_code == 0, result.output
    again = run("profile", CASE, "--trace", trace, "--plot", plot)
    assert again.exit_code == 2
    assert f"--trace={trace}: exists; name another, or overwrite it with --force" in again.output.replace("\n", "")
    written = json.loads(trace.read_text())
    assert written["traceEvents"]
    assert written["otherData"]["title"] == f"{CASE}: N=1 C=16 W=512 S=7 bf16, mixed on 2 cores"
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
    refused = run("profile", "nkl_n1_c16_w512_s7", "--constant", "clock.vectr_ghz=1")
    assert refused.exit_code == 2
    assert "did you mean clock.vector_ghz" in refused.output


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_tables_of_other_forms(form):
    found = run("profile", "nkl_n1_c16_w512_s7", "--format", form).stdout.splitlines()
    comma, bar = "profile,of,what,us,share,instructions", "| profile | of | what | us | share | instructions |"
    row = comma if form == "csv" else bar
    assert found[0] == row
    document = json.loads(run("profile", "nkl_n1_c16_w512_s7", "--json").stdout)["rows"][0]
    assert sum("total" in line and f"{document['modelled_us']:.3f}" in line for line in found) >= 1
    assert any("critical path" in line for line in found)
    moved = run("profile", "nkl_n1_c16_w512_s7", "--against", "nkl_n1_c16_w512_s7", "--format", form).stdout
    assert "before" in moved.splitlines()[0]
