"""Kernels through AWS's tools: refusals, rows and what keeps them, lines of errors; whole commands with a stand-in."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import ROOT, run

from nkiconv import cases
from nkiconv.simulator.profiling.settings import ignore
from nkiconv.tools import doctor
from nkiconv.tools.cli import compile_check, compile_run, compile_stages
from nkiconv.tools.cli.compile_run import Kernel, Row
from nkiconv.tools.cli.kernels import KernelCall

pytestmark = pytest.mark.simulator_only

KERNELS = """
import os, signal, time
import nki, nki.isa as nisa, nki.language as nl

def plain(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out

good = nki.jit(plain)

@nki.jit
def raises(x):
    raise ValueError("no such tile")

@nki.jit
def dies(x):
    os.kill(os.getpid(), signal.SIGSEGV)

@nki.jit
def hangs(x):
    while True:
        time.sleep(1)
"""


@functools.cache
def diagnosis():
    """This machine's, but that all packages are installed; AWS's nki runs the kernels."""
    found = doctor.diagnose()
    packages = [dataclasses.replace(one, status="installed") for one in found.packages]
    return dataclasses.replace(found, packages=tuple(packages), provider="aws")


def test_a_machine_without_awss_packages_is_refused_by_name():
    result = run("compile-check", "short")
    assert (result.exit_code, result.stdout) == (2, "")
    for name in ("nki", "neuronx-cc"):
        assert f"{name}: is missing; install it from AWS's own package repository" in result.stderr


# arguments, variable of the environment, what stderr says
REFUSED = [
    ("shorn", "", "case='shorn': unknown name"),
    ("short --lnc 3", "", "--lnc=3: must be 1 or 2"),
    ("short --direction back", "", "--direction='back': accepted are forward, dgrad, wgrad"),
    ("k.py:good --direction wgrad", "", "--direction=wgrad: is of cases"),
    ("k.py", "", "k.py: is a file, and no kernel of it is named"),
    ("k.py:good --input 0x2", "", "every extent must be at least 1"),
    ("short --input 1x2", "", "--input=1x2: is of a kernel"),
    ("short --arg a=1", "", "--arg=a=1: is of a kernel"),
    ("short --csv nowhere/x.csv", "", "nowhere is not a directory"),
    ("short", "NKI_SIMULATOR=1", "NKI_SIMULATOR='1': compile-check wants 0; unset it"),
    ("short", "NKI_PRECISE_FP=0", "NKI_PRECISE_FP='0': compile-check wants 1"),
    ("short", "NEURON_PLATFORM_TARGET_OVERRIDE=trn3", "='trn3': compile-check wants trn2 or gen3"),
    ("short", "NEURON_LOGICAL_NC_CONFIG=1", "NEURON_LOGICAL_NC_CONFIG is 1;"),
]


@pytest.mark.cover(3)
@pytest.mark.parametrize(("words", "variable", "said"), REFUSED, ids=[" ".join(row[:2]) for row in REFUSED])
def test_refused(monkeypatch, tmp_path, words, variable, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compile_check, "diagnose", diagnosis)
    if variable:
        monkeypatch.setenv(*variable.split("="))
    result = run("compile-check", *words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not list(tmp_path.iterdir())


def test_which_cases_names_are():
    headline = compile_check._cases(["headline"])
    assert [case.name for suite in cases.SUITES for case in cases.load(suite) if case.headline] == [
        case.name for case in headline
    ]
    assert compile_check._cases(["depthwise", "short"]) == list(cases.load("depthwise_conv1d"))


def test_an_error_has_the_deepest_of_our_lines(tmp_path):
    script, kernel = tmp_path / "mine.py", compile_stages.KERNELS / "conv" / "loop.py"
    deep = "def f():\n    g()\n\ndef g():\n    raise ValueError('no')\n\nf()\n"
    for file, line in (("/aws/nki/isa.py", ""), (script, "mine.py:5"), (kernel, "nkiconv/kernels/conv/loop.py:5")):
        with pytest.raises(ValueError, match="no") as found:
            exec(compile(deep, str(file), "exec"), {})
        assert compile_stages.told(found.value, script) == {"error": "ValueError: no", "line": line}


def test_what_a_dead_process_wrote():
    ours = compile_stages.KERNELS / "a.py"
    frames = f'  File "/aws/isa.py", line 9 in f\n  File "{ours}", line 7 in g\n  File "{ours}", line 3 in h\n'
    assert (
        compile_stages.line_of_log(f"begun\nFatal Python error: Aborted\n\n{frames}", None) == "nkiconv/kernels/a.py:7"
    )
    assert compile_stages.line_of_log(frames, None) == "nkiconv/kernels/a.py:3"  # a traceback: the last is the deepest
    assert compile_stages.line_of_log("killed", None) == ""
    assert compile_stages.first_error(" \n") == "no message"


def row(key, **more):
    return Row(key, 2, key, **more)


def test_rows_that_are_finished_are_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert compile_run.load(path) == {}
    kept = [row("a", error="old"), row("a", simulate="pass"), row("b", simulate="failed", error="no", stage="simulate")]
    again = [row("c", simulate="timeout"), row("d", compile="died"), row("e", error="slow", stage="model")]
    for one in (*kept, *again):
        compile_run.append(path, one)
    with path.open("ab") as file:
        file.write(b'{"kernel": "half')
    compile_run.append(path, row("f"))
    assert compile_run.load(path) == {"a": kept[1], "b": kept[2], "f": row("f")}


@pytest.fixture
def checker(tmp_path, monkeypatch):
    """One whose stages reply what `replies` says by stage, else that all is right."""
    monkeypatch.setattr(compile_run, "sources", lambda: "s")
    found = compile_run.Checker(tmp_path / "out", 1.0, {"nki": "0.7"})
    taken = {"algorithm": "update", "config": None}
    found.replies = {
        "model": {"taken": taken, "modelled_us": 1.5, "instructions": 7},
        "simulate": {"worst_ratio": 0.5, "channels_checked": 3},
        "compile": {"neff": "k.neff", "neff_bytes": 9},
    }
    found.asked = []

    def reply(stage, kernel, asked):
        found.asked.append((stage, kernel.name))
        return dict(found.replies[stage])

    monkeypatch.setattr(found, "_run", reply)
    return found


CASES = [Kernel(cases.get("short"), one, 2) for one in ("forward", "dgrad")]


def test_a_file_that_is_edited_meanwhile_is_checked_again(checker, monkeypatch, tmp_path):
    script = tmp_path / "k.py"
    script.write_text("1")
    kernel = Kernel(KernelCall(f"{script}:good", (), (), 2), "", 2)
    checker.replies["simulate"] = {}
    reply = checker._run

    def edited(*asked):
        script.write_text("2")
        return reply(*asked)

    monkeypatch.setattr(checker, "_run", edited)
    for stages in (2, 4, 4):
        [found] = checker.rows([kernel], 1, False, ignore)
        assert (found.kernel, found.simulate, len(checker.asked)) == (f"{script}:good", "ran", stages)


# stages that fail and how, the row's simulate, compile, stage of its error
@pytest.mark.parametrize(("failed", "simulate", "compiled", "stage"), [
    ({"model": "failed"}, "", "", "model"), ({"simulate": "failed"}, "failed", "pass", "simulate"),
    ({"compile": "timeout"}, "pass", "timeout", "compile"),
    ({"simulate": "died", "compile": "died"}, "died", "died", "simulate"),
])  # fmt: skip
def test_a_row_has_the_first_error(checker, failed, simulate, compiled, stage):
    checker.replies |= {one: {"verdict": how, "error": one, "line": ""} for one, how in failed.items()}
    [found] = checker.rows(CASES[:1], 1, False, ignore)
    assert (found.simulate, found.compile, found.stage, found.ok) == (simulate, compiled, stage, False)
    assert found.error == stage


def test_ctrl_c_keeps_what_is_done(checker, monkeypatch):
    ended = threading.Event()

    def interrupted(what, _share):
        if what.startswith("1 of"):
            raise KeyboardInterrupt

    monkeypatch.setattr(checker, "_stop", ended.set)
    with pytest.raises(KeyboardInterrupt):
        checker.rows(CASES, 1, False, interrupted)
    assert ended.is_set()
    done = [one.kernel for one in compile_run.load(checker.out / "rows.jsonl").values()]
    assert done[:1] == ["short bf16"]


@pytest.fixture
def command(tmp_path):
    """Run `nkiconv compile-check` in a process whose `nki` is the stand-in, in a folder with k.py."""
    (tmp_path / "k.py").write_text(KERNELS)

    def start(*words, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NKI", "NEURON_"))}
        paths = map(str, (ROOT, ROOT / "tests" / "standins" / "aws"))
        environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), **variables}
        words = (sys.executable, "-m", "nkiconv", "compile-check", *words)
        return subprocess.Popen(words, env=environment, cwd=tmp_path, stdout=-1, stderr=-1, text=True)

    return start


def done(process):
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err, err
    return process.returncode, json.loads(out)


@pytest.mark.slow
def test_kernels_of_a_file(command):
    names = [f"k.py:{one}" for one in ("good", "plain", "raises", "dies", "hangs")]
    status, document = done(command(*names, "--input", "128x64:bf16", "--timeout", "20", "--jobs", "3", "--json"))
    assert (status, document["ok"]) == (1, False)
    found = {one["kernel"]: one for one in document["rows"]}
    told = {name[5:]: (one["simulate"], one["compile"], one["line"]) for name, one in found.items()}
    assert told == {
        "good": ("ran", "pass", ""), "plain": ("ran", "pass", ""), "raises": ("failed", "failed", "k.py:16"),
        "dies": ("died", "died", "k.py:20"), "hangs": ("timeout", "timeout", "k.py:25"),
    }  # fmt: skip
    assert found["k.py:raises"]["error"] == "ValueError: no such tile"
    assert found["k.py:dies"]["error"] == "killed by signal 11: Fatal Python error: Segmentation fault"
    assert found["k.py:hangs"]["error"] == "took more than 20 s"
    neff = json.loads(Path(found["k.py:good"]["neff"]).read_text())
    assert neff == {
        "lnc": 2, "barrier_check": True, "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", "NEURON_LOGICAL_NC_CONFIG": "2",
        "NKI_DEBUG_INFO": "True", "constants": {},
    }  # fmt: skip


@pytest.mark.slow
def test_a_case_and_its_gradients(command):
    status, document = done(command("short", "--json"))
    assert (status, document["ok"]) == (0, True)
    assert [one["kernel"] for one in document["rows"]] == ["short bf16", "short dgrad bf16", "short wgrad bf16"]
    for one in document["rows"]:
        assert (one["simulate"], one["compile"], one["channels_checked"]) == ("pass", "pass", 130)
        assert 0 < one["worst_ratio"] <= 1
        assert one["modelled_us"] > 0 < one["instructions"]
        assert json.loads(Path(one["neff"]).read_text())["barrier_check"] is True
