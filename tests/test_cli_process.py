"""The command line as a process of its own: exit statuses, streams, and which NKI it picks."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import process

ROOT = Path(__file__).resolve().parents[1]
STUB = 'raise ImportError("WRONG PACKAGE. Please install the package from AWS")\n'
#: An `nki` that works: our simulator under AWS's names.
WORKING = """
import sys
from nkiconv.simulator import isa, jit, language, simulate
sys.modules["nki.isa"], sys.modules["nki.language"] = isa, language
"""
BROKEN = 'raise ImportError("libnrt.so.1: cannot open shared object file")\n'


def run(*arguments, packages=None, cwd=None, stdout=subprocess.PIPE, **environment):
    """Run `python -m nkiconv` with these arguments, environment variables and a folder of packages in front."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NKI", "NEURON_", "COLUMNS"))}
    paths = [str(path) for path in (packages, ROOT) if path is not None]
    done = subprocess.run(
        [sys.executable, "-m", "nkiconv", *map(str, arguments)], env={**kept, "PYTHONPATH": os.pathsep.join(paths),
        **environment}, cwd=cwd, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def fake_nki(folder, text, version=None):
    """A folder with a package named nki, and its metadata if there is a version."""
    (folder / "nki").mkdir()
    (folder / "nki" / "__init__.py").write_text(text)
    if version is not None:
        info = folder / f"nki-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nki\nVersion: {version}\n")
    return folder


def without_nki(folder):
    """A folder that hides every package named nki from the processes that start with it in front."""
    (folder / "sitecustomize.py").write_text('import sys\nsys.modules["nki"] = None\n')
    return folder


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
    packages = fake_nki(tmp_path, WORKING)
    assert "plans are searched for in nkiconv's simulator" in run("doctor", packages=packages).stdout
    done = run("run", "short", "--lnc", "both", "--json", packages=packages)
    assert done.returncode == 0, done.stderr
    for one in json.loads(done.stdout)["rows"]:
        assert (one["provider"], one["verdict"], one["instructions"], one["tiles"]) == ("aws", "pass", None, None)
    assert "not counted" in run("run", "short", "--wide", packages=packages).stdout


# setting, package named nki, pattern
IMPOSSIBLE = [
    ("aws", None, "UnsupportedError: NKICONV_NKI='aws': AWS's nki must be importable (it is not installed)"),
    ("aws", STUB, "(it is PyPI's placeholder of that name, not AWS's package)"),
    ("aws", BROKEN, "(it is installed but broken: libnrt.so.1"),
    ("nonsense", None, "UnsupportedError: NKICONV_NKI='nonsense': accepted are aws, simulator, auto"),
]


@pytest.mark.cover(0, keep=["broken"])
@pytest.mark.parametrize(("setting", "nki", "text"), IMPOSSIBLE, ids=["absent", "placeholder", "broken", "nonsense"])
def test_an_impossible_choice_is_refused_and_explained(tmp_path, setting, nki, text):
    packages = without_nki(tmp_path) if nki is None else fake_nki(tmp_path, nki)
    done = run("run", "short", packages=packages, NKICONV_NKI=setting)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


@pytest.mark.cover(0, keep=["auto"])
@pytest.mark.parametrize("setting", ["aws", "auto", "simulator"])
def test_an_old_nki_is_refused_by_name(tmp_path, setting):
    done = run("run", "short", packages=fake_nki(tmp_path, WORKING, "0.6.1"), NKICONV_NKI=setting)
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
