"""A process under NKICONV_TARGET: its times, plans, caches, shipped plans, child processes and texts."""

import json
from pathlib import Path

import pytest
from commands import process

import nkiconv
from nkiconv.planner import cache, shipped
from nkiconv.simulator.constants import SHIPPED, VARIABLE

pytestmark = pytest.mark.simulator_only

TRIGGER = SHIPPED["dma.static_issue_ns"]
PROBLEM = {"N": 1, "C": 4, "W": 16, "S": 2}

#: What a process finds under the target trn2_measured.toml; after it has read it, the variable and the file change.
FOUND = f"""
import json, os
from pathlib import Path
from typer.testing import CliRunner
import nkiconv
from nkiconv.errors import PlanningError
from nkiconv.planner import cache, child, shipped
from nkiconv.planner.request import Request
from nkiconv.tools.cli import app

problem = nkiconv.ConvProblem(**{PROBLEM})
request = Request(problem=problem)
plan = nkiconv.plan(problem)
found = {{"us": plan.modelled_us, "text": plan.explain(), "key": cache.key(request)["target"]}}
found["shipped"], found["sources"] = len(shipped.table().answers), cache.sources_hash()
found["table"] = CliRunner().invoke(app, "plan --C 4 --K 4 --W 16 --S 2".split()).stdout
found["doctor"] = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
os.environ["{VARIABLE}"] = "other.toml"
found["child_us"] = child.search(request, wide=False, advance=lambda *_: None).modelled_us
child.stop()
file = Path("trn2_measured.toml")
file.write_text(file.read_text().replace("670", "671"))
try:
    child.search(request, wide=False, advance=lambda *_: None)
except PlanningError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""

#: What commands say: exit status, stdout, stderr.
SAID = """
import json
from typer.testing import CliRunner
from nkiconv.tools.cli import app
done = [CliRunner().invoke(app, command) for command in (["plan", "short"], ["doctor"])]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in done]))
"""


def run(folder, value, program):
    """What a program prints, as JSON, in a folder with a target in which DMA triggers take so many ns."""
    row = f'value = {value}, unit = "{TRIGGER.unit}", source = "bench", standing = "measured"'
    (folder / "trn2_measured.toml").write_text(f"[dma]\nstatic_issue_ns = {{ {row} }}\n")
    environment = {VARIABLE: "trn2_measured.toml", "NKICONV_CACHE": str(folder / "cache")}
    done = process("-c", program, cwd=folder, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_all_that_a_process_models_uses_the_target(tmp_path, plans):
    found = run(tmp_path, 670, FOUND)
    problem = nkiconv.ConvProblem(**PROBLEM)
    here, overridden = nkiconv.plan(problem), nkiconv.plan(problem, constants={TRIGGER.name: 670})
    assert found["us"] == found["child_us"] == overridden.modelled_us > here.modelled_us
    assert f"modelled (trn2_measured.toml) {found['us']:,.2f} us" in found["text"]
    assert f"modelled {here.modelled_us:,.2f} us" in here.explain()
    assert found["shipped"] == 0 < len(shipped.table().answers)
    assert found["key"] != cache.key(cache.Request(problem=problem))["target"] == "trn2"
    assert found["sources"] != cache.sources_hash()
    assert f"{VARIABLE}=trn2_measured.toml: the file was changed" in found["refused"]
    assert "plans (trn2, 2 cores); modelled (trn2_measured.toml)" in found["table"]
    assert found["doctor"]["target"] == "trn2_measured.toml"
    assert Path(found["doctor"]["target_file"]) == tmp_path / "trn2_measured.toml"


def test_a_target_that_is_none_is_refused_and_explained(tmp_path):
    plan, doctor = run(tmp_path, -1, SAID)
    text = "dma.static_issue_ns: value=-1: must be at least 0"
    assert plan[:2] == [2, ""]
    assert doctor[0] == 1
    for _, _, said in (plan, doctor):
        assert f"TargetFileError: {VARIABLE}='trn2_measured.toml': " in said
        assert text in said
