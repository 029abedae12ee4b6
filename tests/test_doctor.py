"""The diagnosis: what is installed is seen without importing it, and every lack comes with a remedy."""

import json

import pytest
from typer.testing import CliRunner

from nkiconv.tools import doctor
from nkiconv.tools.cli import app

STUB = 'raise ImportError("WRONG PACKAGE. Please install the package from AWS")\n'


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages in front of all others."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site, name, folder, text, version="1.0"):
    """Lay down a distribution as pip would: a package folder and its metadata."""
    (site / folder).mkdir()
    (site / folder / "__init__.py").write_text(text)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{folder}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


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
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    for text in ("numpy", "torch-neuronx", "kernels run on", "NKICONV_NKI=", "ready for trn2:"):
        assert text in result.stdout
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert report["ok"]
    assert report["provider"] in ("simulator", "aws")
    assert {"numpy", "nki", "neuronx-cc"} <= {package["name"] for package in report["packages"]}
