"""The wheel: what is in it, that the sdist builds the same, and that it runs in an environment of its own."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest
from commands import ROOT

#: Of the repository, what is no source of it.
GENERATED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "demo-out")

pytestmark = [pytest.mark.slow, pytest.mark.simulator_only]


def run(*command, cwd):
    """Output of a command that must succeed, run away from this repository and its settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NKI"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def contents(wheel):
    """Bytes of each file of a wheel by name, but for the list of their hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=GENERATED)
    for hidden in (".ci", ".github", ".gitignore", ".pre-commit-config.yaml"):
        copy = shutil.copytree if (ROOT / hidden).is_dir() else shutil.copy
        copy(ROOT / hidden, source / hidden)
    out = run(sys.executable, "-m", "build", "--outdir", folder / "dist", source, cwd=folder)
    assert "Package would be ignored" not in out
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (found,) = (built / "dist").glob("*.whl")
    return found


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = {name for name in contents(wheel) if ".dist-info/" not in name}
    package = [path for path in (ROOT / "nkiconv").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert names == {path.relative_to(ROOT).as_posix() for path in package}
    assert "nkiconv/py.typed" in names


def test_sdist_builds_the_same_wheel(built, wheel):
    run(sys.executable, "-m", "build", "--wheel", "--outdir", built / "direct", built / "source", cwd=built)
    (direct,) = (built / "direct").glob("*.whl")
    assert contents(direct) == contents(wheel)


def test_sdist_is_the_repository(built):
    (sdist,) = (built / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    source = built / "source"
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    made = {"build", "nkiconv.egg-info"}
    assert {path.as_posix() for path in files if path.parts[0] not in made} - held == set()


def test_wheel_runs_where_only_its_requirements_are(wheel, tmp_path):
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python, nkiconv = home / "bin" / "python", home / "bin" / "nkiconv"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert str(home) in run(python, "-c", "import nkiconv; print(nkiconv.__file__)", cwd=tmp_path)
    assert "torch" not in run(python, "-m", "pip", "list", cwd=tmp_path)
    assert f"nkiconv {wheel.name.split('-')[1]} on " in run(nkiconv, "doctor", cwd=tmp_path)
    found = json.loads(run(nkiconv, "run", "kda_bf16", "--json", cwd=tmp_path))
    assert found["ok"] is True
    assert [one["name"] for one in found["rows"]] == ["kda_bf16"]
