"""Kernel sources keep to the Python that NKI 0.5 to 0.7 compiles, and call what AWS documents."""

import ast
import functools
from pathlib import Path

import pytest

import nkiconv.kernels
from nkiconv.lint import VERSIONS, lint
from nkiconv.simulator import documented

FOLDER = Path(nkiconv.kernels.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))


@functools.cache
def judged(nki):
    """What the linter says of all kernels."""
    return lint([FOLDER], nki=nki, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("nki", VERSIONS)
def test_kernels_keep_to_the_subset(nki):
    """The linter has found and followed every kernel, so that no findings means something."""
    report = judged(nki)
    assert report.broken == ()
    assert not report.findings
    assert report.files == len(SOURCES)
    assert report.kernels == 9
    assert report.functions > 700


def test_no_future_imports():
    """They change what Python makes of a file, which NKI's parser does not know."""
    for path in SOURCES:
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert "__future__" not in [node.module for node in imports], path


def test_kernels_call_only_documented_nki():
    """Every nisa.X and nl.X in a kernel is a name of AWS's documents that trn2 has."""
    isa = {*documented.ISA_CALLS, *documented.ISA_ENUMS}
    language = {*documented.LANGUAGE_CALLS, *documented.LANGUAGE_CONSTANTS}
    used = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add((node.value.id, node.attr))
    assert {name for module, name in used if module == "nisa"} <= isa
    assert {name for module, name in used if module == "nl"} <= language
    assert ("nisa", "nc_matmul") in used
