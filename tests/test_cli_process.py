"""The command line as a process of its own: exit statuses, streams, and which NKI it picks; the diagnosis: what is
installed is seen without importing it, and every lack comes with a remedy.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, process
from commands import done as invoked

from nkiconv.tools import doctor

STUB = 'raise ImportError("WRONG PACKAGE. Please install the package from AWS")\n'
#: An `nki` that works: our simulator under AWS's names.
WORKING = """
import sys
from nkiconv.simulator import isa, jit, language, simulate
sys.modules["nki.isa"], sys.modules["nki.language"] = isa, language
"""
BROKEN = 'raise ImportError("libnrt.so.1: cannot open shared object file")\n'


def run(*arguments, packages=None, **environment):
    """`python -m nkiconv` with these arguments, environment variables and a folder of packages in front."""
    given = {"NKICONV_NKI": "auto"} | environment
    done = process("-m", "nkiconv", *arguments, front=[] if packages is None else [packages], **given)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def install(site, name, folder, text, version="1.0"):
    """Lay down a distribution as pip would, a package folder and its metadata; returns where."""
    (site / folder).mkdir()
    (site / folder / "__init__.py").write_text(text)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{folder}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    return site


FULL = Path("/dev/full")
NO_SPACE = "UnsupportedError: stdout: cannot be written (No space left on device); send it elsewhere\n"


@pytest.mark.cover(0, keep=["json-"])
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full to write to")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("arguments", "said"), [
    (("cases", "--json"), NO_SPACE),
    (("cases",), "OSError: [Errno 28] No space left on device\n"),
    (("cases", "--suite", "none", "--json"), "UnsupportedError: suite='none'"),
    (("crossover", "--vary", "S", "--values", "1", "--C", "2", "--no-cache", "--format", "markdown"), NO_SPACE),
], ids=["json", "table", "error as json", "markdown"])  # fmt: skip
def test_a_full_disk_is_2(arguments, said, unbuffered):
    with FULL.open("w") as full:
        done = run(*arguments, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_a_working_nki_is_used_by_default(tmp_path):
    packages = install(tmp_path, "nki", "nki", WORKING)
    assert "plans are searched for in nkiconv's simulator" in run("doctor", packages=packages).stdout
    done = run("run", "short", "--lnc", "both", "--json", packages=packages)
    assert done.returncode == 0, done.stderr
    for one in json.loads(done.stdout)["rows"]:
        assert (one["provider"], one["verdict"], one["instructions"], one["tiles"]) == ("aws", "pass", None, None)
    assert "not counted" in run("run", "short", "--wide", packages=packages).stdout


@pytest.mark.cover(0, keep=["broken"])
# setting, package named nki, pattern
@pytest.mark.parametrize(("setting", "nki", "text"), [
    ("aws", None, "UnsupportedError: NKICONV_NKI='aws': AWS's nki must be importable (it is not installed)"),
    ("aws", STUB, "(it is PyPI's placeholder of that name, not AWS's package)"),
    ("aws", BROKEN, "(it is installed but broken: libnrt.so.1"),
    ("nonsense", None, "UnsupportedError: NKICONV_NKI='nonsense': accepted are aws, simulator, auto"),
], ids=["absent", "placeholder", "broken", "nonsense"])  # fmt: skip
def test_an_impossible_choice_is_refused_and_explained(tmp_path, setting, nki, text):
    if nki is None:  # whatever the machine has
        (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["nki"] = None\n')
    else:
        install(tmp_path, "nki", "nki", nki)
    done = run("run", "short", packages=tmp_path, NKICONV_NKI=setting)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


@pytest.mark.cover(0, keep=["auto"])
@pytest.mark.parametrize("setting", ["aws", "auto", "simulator"])
def test_an_old_nki_is_refused_by_name(tmp_path, setting):
    done = run("run", "short", packages=install(tmp_path, "nki", "nki", WORKING, "0.6.1"), NKICONV_NKI=setting)
    if setting == "simulator":
        assert done.returncode == 0
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("UnsupportedError: nki 0.6.1: must be 0.7 or later")
    assert "install nki>=0.7 from AWS's package repository, or set NKICONV_NKI=simulator" in done.stderr


@pytest.mark.slow
def test_what_needs_no_nki_works_with_an_impossible_choice():
    """In one process: every command but those that run kernels."""
    program = """
from typer.testing import CliRunner
from nkiconv.tools.cli import app
for command in (["doctor", "--json"], ["cases"], ["run", "--help"]):
    done = CliRunner().invoke(app, command)
    print(done.exit_code, repr(done.stdout))
"""
    done = process("-c", program, NKICONV_NKI="nonsense")
    (doctor, said), *others = (line.split(" ", 1) for line in done.stdout.splitlines())
    report = json.loads(ast.literal_eval(said))
    assert (doctor, report["ok"], report["provider"]) == ("1", False, None)
    assert [status for status, _ in others] == ["0", "0"]


def test_a_closed_stdout_is_2():
    """As in `nkiconv cases >&-`: nobody could read what it prints."""
    done = subprocess.run(
        f"'{sys.executable}' -m nkiconv cases >&-", shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "nkiconv: stdout is closed; send it to a file, or to /dev/null\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages in front of all others."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def found(name, diagnosis=None):
    return next(package for package in (diagnosis or doctor.diagnose()).packages if package.name == name)


# name, folder; neuronx-cc's placeholder has a folder that cannot be imported
STUBS = [("nki", "nki"), ("neuronx-cc", "neuronx-cc"), ("torch-neuronx", "torch_neuronx")]


def test_placeholders_are_called_that(site):
    for name, folder in STUBS:
        install(site, name, folder, STUB)
    diagnosis = doctor.diagnose()
    advice = " ".join(diagnosis.advice)
    for name, _ in STUBS:
        package = found(name, diagnosis)
        assert (package.status, package.version) == (doctor.PLACEHOLDER, "1.0")
    assert "remove them: pip uninstall nki neuronx-cc torch-neuronx" in advice
    assert "install from AWS's own package repository, not from PyPI" in advice


@pytest.mark.parametrize(("version", "old"), [("0.6.1", True), ("0.10.0", False)])
def test_an_old_nki_is_told(site, monkeypatch, tmp_path, version, old):
    for name, folder in [*STUBS[:1], ("neuronx-cc", "neuronxcc"), ("torch-neuronx", "torch_neuronx")]:
        install(site, name, folder, "", version)
    monkeypatch.setattr(doctor, "DEVICE", tmp_path)
    diagnosis = doctor.diagnose()
    assert diagnosis.device
    assert found("nki", diagnosis).status == ("older than 0.7" if old else doctor.INSTALLED)
    assert diagnosis.trn2_ready is not old
    assert [line[: line.find(":")] for line in diagnosis.advice] == [f"nki {version}"] * old


@pytest.mark.parametrize(("target", "degree", "advised"), [("trn2", "2", 0), ("trn3", "4", 1)])
def test_variables(monkeypatch, target, degree, advised):
    values = {"NEURON_PLATFORM_TARGET_OVERRIDE": target, "NEURON_LOGICAL_NC_CONFIG": degree}
    accepted = ("'trn3': the simulator accepts trn2, gen3", "'4': the simulator accepts 1, 2")
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    diagnosis = doctor.diagnose()
    for (name, value), text in zip(values.items(), accepted, strict=True):
        assert diagnosis.variables[name] == value
        about = [line for line in diagnosis.advice if line.startswith(f"{name}=")]
        assert [text in line for line in about] == [True] * advised


def test_settings_that_launches_do_not_agree_on(monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1 --lnc=1")
    [line] = [line for line in doctor.diagnose().advice if "LNC degree" in line]
    assert line.startswith("NEURON_LOGICAL_NC_CONFIG is 2; --lnc in NEURON_CC_FLAGS is 1; ")


@pytest.mark.cover(0, keep=["None-True"])
@pytest.mark.parametrize(("target", "advised"), [(None, True), ("trn2", False)])
def test_what_makes_launches_under_torch_xla_slow(site, monkeypatch, target, advised):
    for name in ("nki", "torch_xla"):
        install(site, name, name, "")
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    if target is not None:
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    about = [line for line in doctor.diagnose().advice if line.startswith("NEURON_PLATFORM_TARGET_OVERRIDE: is unset")]
    assert len(about) == advised
    assert all("about 52 ms" in line and line.endswith("set it to trn2") for line in about)


def test_the_command():
    result = invoked("doctor")
    for text in ("numpy", "torch-neuronx", "kernels run on", "NKICONV_NKI=", "ready for trn2:"):
        assert text in result.stdout
    report = json.loads(invoked("doctor", "--json").stdout)
    assert report["ok"]
    assert report["provider"] in ("simulator", "aws")
    assert {"numpy", "nki", "neuronx-cc"} <= {package["name"] for package in report["packages"]}
