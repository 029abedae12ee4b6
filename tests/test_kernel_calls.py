"""Kernel sources keep to what NKI 0.7 traces, and call what AWS documents."""

import ast
from pathlib import Path

import pytest

import nkiconv.kernels
from nkiconv.lint import lint
from nkiconv.simulator import documented

FOLDER = Path(nkiconv.kernels.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))
PROBES = FOLDER.parent / "tools" / "calibrate" / "kernels"


@pytest.mark.slow  # `make lint` asks for the findings too
def test_kernels_keep_to_what_nki_traces():
    """The linter has found and followed every kernel, so that no findings means something."""
    report = lint([FOLDER], strict=True)
    assert report.broken == ()
    assert not report.findings
    assert report.files == len(SOURCES)
    assert report.kernels == 14
    assert report.functions > 600


def test_kernels_call_only_documented_nki():
    """Every nisa.X and nl.X in a kernel or a probe is a name of AWS's documents that trn2 has."""
    isa = {*documented.ISA_CALLS, *documented.ISA_ENUMS}
    language = {*documented.LANGUAGE_CALLS, *documented.LANGUAGE_CONSTANTS}
    used = set()
    for path in (*SOURCES, *PROBES.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add((node.value.id, node.attr))
    assert {name for module, name in used if module == "nisa"} <= isa
    assert {name for module, name in used if module == "nl"} <= language
    assert ("nisa", "nc_matmul") in used
