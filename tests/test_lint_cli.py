"""`nkiconv lint`: formats, exit status, rules, excuses, bad input; and the hook that other repositories use."""

import json
import re
from pathlib import Path

import pytest
from lint_calls import HEAD, write
from shell import run

from nkiconv.lint import RULES, lint
from nkiconv.tools.cli import app

ROOT = Path(__file__).resolve().parents[1]
#: The version whose rules BAD breaks.
PARSED = ("--nki", "0.6")
BAD = HEAD + "@nki.jit\ndef kernel(x):\n    if x is True:\n        raise x\n    return x\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text(here):
    write(here, BAD, "src/bad.py")
    result = run("lint", "src", "--strict", *PARSED)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "src/bad.py:8:8: NKL101 `x is True` compares identity, which is not compiled; write == or !=",
        "src/bad.py:9:9: NKL114 `raise` is not compiled; assert the condition, with a message",
    ]
    assert "1 file: 2 findings (NKI 0.3 to 0.6, strict)" in result.stderr


def test_github(here):
    write(here, BAD, "a,b/50%:bad.py")
    result = run("lint", "a,b", "--format", "github", *PARSED)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == (
        "::error file=a%2Cb/50%25%3Abad.py,line=8,col=8,title=NKL101::"
        "`x is True` compares identity, which is not compiled; write == or !="
    )
    assert ",line=9,col=9,title=NKL114::" in second
    write(here, HEAD + "@nki.jit\ndef kernel(x):\n    a = x % 2 is True\n    return a\n", "a.py")
    (line,) = run("lint", "a.py", "--format", "github", *PARSED).stdout.splitlines()
    assert "::`x %25 2 is True` compares" in line


def test_json(here):
    write(here, BAD, "bad.py")
    result = run("lint", "bad.py", "--json", *PARSED)
    assert result.exit_code == 1
    assert result.stderr == ""
    document = json.loads(result.stdout)
    first = document["findings"][0]
    assert (document["nki"], document["strict"], document["broken"]) == ("0.6", False, [])
    assert (document["files"], document["kernels"], document["functions"]) == (1, 1, 1)
    assert first == {
        "path": "bad.py",
        "line": 8,
        "column": 8,
        "rule": "NKL101",
        "message": "`x is True` compares identity, which is not compiled",
        "remedy": "write == or !=",
        "kernel": "kernel",
    }


def test_versions(here):
    write(here, BAD, "bad.py")
    assert run("lint", "bad.py", "--nki", "0.6").exit_code == 1
    for traced in (run("lint", "bad.py", "--nki", "0.7"), run("lint", "bad.py")):
        assert traced.exit_code == 0
        assert "no findings (NKI 0.7)" in traced.stderr
    assert json.loads(run("lint", "bad.py", "--json").stdout)["nki"] == "0.7"
    assert lint(["bad.py"]).findings == ()


def test_rules_left_out(here):
    write(here, BAD, "bad.py")
    assert [line.split()[1] for line in run("lint", "bad.py", "--ignore", "NKL101", *PARSED).stdout.splitlines()] == [
        "NKL114"
    ]
    both = run("lint", "bad.py", "--ignore", "NKL101", "--ignore", "NKL114", *PARSED)
    assert (both.exit_code, both.stdout) == (0, "")


# why, the line of the kernel, whether NKL101 is excused on it
EXCUSES = [
    ("by its id", "if x is True:  # nki: noqa[NKL101]", True),
    ("among others", "if x is True:  # nki: noqa[NKL107, NKL101]", True),
    ("after another comment", "if x is True:  # no choice  # nki:noqa[NKL101]", True),
    ("another rule", "if x is True:  # nki: noqa[NKL107]", False),
    ("all rules", "if x is True:  # nki: noqa", False),
    ("another tool's", "if x is True:  # noqa: NKL101", False),
    ("in a string", 'if (x is True) == "# nki: noqa[NKL101]":', False),
    ("the line above", "# nki: noqa[NKL101]\n    if x is True:", False),
]


@pytest.mark.parametrize(("why", "line", "excused"), EXCUSES, ids=[row[0] for row in EXCUSES])
def test_excuses(here, why, line, excused):
    write(here, HEAD + f"@nki.jit\ndef kernel(x):\n    {line}\n        return 1\n    return x\n", "a.py")
    assert [one.rule for one in lint(["a.py"], nki="0.6").findings] == ([] if excused else ["NKL101"])


# why, name, bytes, pattern in stderr
BROKEN = [
    ("syntax", "a.py", b"def f(:\n", r"a\.py:1: not Python"),
    ("encoding", "a.py", b"x = '\xff'\n", r"a\.py: not Python|a\.py:1: not Python"),
    ("not text", "a.npy", b"\x93NUMPY\x01\x00", r"a\.npy(:\d+)?: not Python"),
]


@pytest.mark.parametrize(("why", "name", "content", "pattern"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_file_is_named_and_others_judged(here, why, name, content, pattern):
    (here / name).write_bytes(content)
    write(here, BAD, "bad.py")
    result = run("lint", name, "bad.py", *PARSED)
    assert result.exit_code == 2
    assert re.search(pattern, result.stderr)
    assert "bad.py:8:8: NKL101" in result.stdout
    assert len(json.loads(run("lint", name, "bad.py", "--json").stdout)["broken"]) == 1
    annotations = run("lint", name, "bad.py", "--format", "github").stdout.splitlines()
    assert re.match(rf"::error file={name},line=\d+,title=syntax::", annotations[-1])


def test_a_file_without_kernels(here):
    write(here, "x = 1\n", "a.py")
    assert run("lint", ".").stderr.strip() == "no @nki.jit in 1 file: nothing to judge"


def test_rules_are_listed():
    text = run("lint", "--rules").stdout
    assert re.findall(r"^(NKL\d+) ", text, re.MULTILINE) == list(RULES)
    assert (
        "NKL301 nl.dynamic_range is deprecated in NKI 0.6 and gone in 0.7\n    --nki 0.7; 0.6 with --strict\n" in text
    )
    assert not re.search(r"\{\d?\}", text)
    listed = json.loads(run("lint", "--rules", "--json").stdout)["rows"]
    assert [rule["id"] for rule in listed] == list(RULES)


def test_every_rule_has_a_snippet():
    """Each id stands in a table of the tests, so none is untested."""
    tables = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_lint_*.py")))
    assert [rule for rule in RULES if f'"{rule}"' not in tables] == []


def test_the_hook_for_other_repositories():
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^  entry: (.+)$", text, re.MULTILINE)
    program, command = entry.split()[:2]
    assert program == "nkiconv"
    assert command in [one.name for one in app.registered_commands]
    assert "pass_filenames: false" in text
