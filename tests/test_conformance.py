"""The command that runs AWS's own kernels in the simulator: what it makes of reports, and of tutorials."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import module_of, of_command

from nkiconv import simulator
from nkiconv.simulator import NkiError

FOLDER = Path(__file__).resolve().parent / "conformance"


library = of_command("conformance", "library")
tutorials = of_command("conformance", "tutorials")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("nki.isa.max8 is documented NKI that this simulator does not run yet; it runs: nc_matmul",
         "not simulated: max8"),
        ("nki.language.rand is documented NKI that this simulator does not run yet", "not simulated: rand"),
        ("nki.collectives.rank_id is documented NKI that this simulator does not run yet", "needs several devices"),
        ("NKI049: nc_matmul_mx: needs NeuronCore-v4", "needs trn3"),
        ("AttributeError: module has no attribute 'float8_e4m3fn_x4'", "needs trn3"),
        ("NKI018: dma_copy: too full", "refused: NKI018"),
        ("NameError: name 'Platforms' is not defined", "theirs: no Platforms"),
        ("No module named 'nkilib_src.nkilib.experimental.subkernels'", "theirs: no subkernels"),
        ("No module named 'nki.compiler.frontend'", "needs AWS's compiler"),
        ("ValidationException: Validation failed for ['output']", "differs from the reference"),
        ("Failed: Timeout (>60.0s) from pytest-timeout.", "takes too long"),
        ("failed on setup with \"worker 'gw1' crashed while running 'test_a.py::test_b'\"", "its process died"),
        ("E   TypeError: f() got an unexpected | keyword", "TypeError: f() got an unexpected / keyword"),
        ("something else\nand more", "something else"),
        ("", "no message"),
    ],
)  # fmt: skip
def test_reasons(library, message, reason):
    assert library.reason_of(message) == reason


OURS = ("test/core/test_mask.py", "../lib/site-packages/nkiconv/simulator/isa/dma.py")


@pytest.mark.parametrize(("message", "places", "reason"), [
    ("NameError: name 'dst' is not defined", OURS, "NameError: name 'dst' is not defined"),
    ("NameError: name 'dst' is not defined", OURS[:1], "theirs: no dst"),
    ("SyntaxError: invalid syntax", OURS, "SyntaxError: invalid syntax"),
    ("SyntaxError: invalid syntax", (), "theirs: does not parse"),
    ("KeyError: 'out'", OURS, "KeyError: 'out'"),
    ("KeyError: 'out'", OURS[:1], "theirs: the test finds no out among its own inputs"),
    ("KeyError: 'out'", (*OURS[:1], "src/mask.py"), "KeyError: 'out'"),
    ("NKI018: dma_copy: too full", OURS, "refused: NKI018"),
])  # fmt: skip
def test_whose_fault(library, message, places, reason):
    assert library.reason_of(message, places) == reason


REPORT = """<testsuites><testsuite>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="a">
<properties><property name="difference" value="0.25"/><property name="adapted" value="1"/>
<property name="RaceWarning" value="1"/></properties></testcase>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="b">
<failure message="InferenceException: NKI018: dma_copy: too full">
src/kernel.py:3: in kernel
E   nkiconv.simulator.errors.NkiError: NKI049: first

The above exception was the direct cause of the following exception:
test/test_cumsum.py:5: in test_b
E   InferenceException: NKI018: dma_copy: too full</failure></testcase>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="c"><skipped/></testcase>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="d">
<failure message="needs trn3">line</failure></testcase>
<testcase classname="" name="test.integration.nkilib.core.mlp.test_mlp">
<error message="collection failure">E   IndentationError: unexpected indent</error></testcase>
</testsuite></testsuites>"""


def test_what_a_report_says(library, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "run_folder", lambda *_arguments: ElementTree.fromstring(REPORT))
    found = library.collect(tmp_path, [tmp_path], "fast", 60)
    assert [(one.file, one.passed, one.skipped, one.run, one.difference, one.adapted, one.raced) for one in found] == [
        ("test_cumsum", 1, 1, 3, 0.25, 1, 1), ("test_mlp", 0, 0, 1, None, 0, 0)
    ]  # fmt: skip
    assert found[0].reasons == Counter({"refused: NKI018": 1, "needs trn3": 1})


def test_a_page_of_a_report(library, monkeypatch, tmp_path):
    command = module_of(FOLDER, "__main__", monkeypatch)
    monkeypatch.setattr(command.library, "run_folder", lambda *_arguments: ElementTree.fromstring(REPORT))
    (tmp_path / library.TESTS).mkdir(parents=True)
    (tmp_path / library.TESTS / "test_cumsum.py").touch()
    text = "\n".join(command.library_section(tmp_path, "abc", "", "fast", 60))
    assert "1 of 4 passed. 2 need" in text
    assert "of the other 2 that is 50.0 %. Of 1 files with such tests all of them passed in 0, some in 1" in text
    assert "| test_cumsum | 1 | 1 |  | 3 | 1 | 2.5e-01 |" in text
    assert "| test_mlp | 0 |  |  | 1 | 0 |  | 1 x theirs: does not parse |" in text


KERNELS = {
    "index-case-1.py": """
@nki.jit
def tensor_split_kernel_(x):
    tile = nl.load(x)
    even = nl.ndarray((4, 3), x.dtype, nl.shared_hbm)
    odd = nl.ndarray((4, 2), x.dtype, nl.shared_hbm)
    nl.store(even, tile[:, 0:5:2])
    nl.store(odd, tile[:, FIRST:5:2])
    return even, odd
""",
    "layout-violation.py": """
@nki.jit
def tensor_exp_kernel_(x):
    return nl.load(x)
""",
    "old.py": "from neuronxcc import nki\n@nki.jit\ndef kernel(x): ...\n",
}


@pytest.mark.parametrize(("first", "status"), [
    (1, "passed"),
    (0, "NkiError: NKI131: "),
    (2, "differs from the reference"),
    ("{}['odd']", "KeyError: 'odd' (index-case-1.py:10)"),
])  # fmt: skip
def test_tutorials(tutorials, tmp_path, first, status):
    """From column 1 on what is wanted, from 0 more than there is room for, from 2 the wrong ones; and a kernel that
    fails in a way of its own is in the table, with the others."""
    for name, text in KERNELS.items():
        imports = "" if name == "old.py" else "import nki\nimport nki.language as nl\n"
        (tmp_path / name).write_text(imports + text.replace("FIRST", str(first)))
    found = list(tutorials.outcomes(tmp_path))
    assert [one.kernel for one in found] == ["tensor_split_kernel_", "tensor_exp_kernel_"]
    assert found[0].status.startswith(status)
    assert found[1].status == "refused, as it says: NKI003"
    assert (found[0].difference == 0) == (first == 1)
    assert tutorials.older(tmp_path) == ["old.py"]
    assert "nki" not in sys.modules


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("NKI003: of NeuronCore-v4"), NkiError("NKI004", "load", "NKI003:")]
)
def test_a_fault_of_the_simulator_is_none_of_theirs(tutorials, tmp_path, monkeypatch, error):
    """Whatever its text says: a refusal is known by its rule, all else by the place where it began."""

    def load(*_arguments):
        raise error

    (tmp_path / "layout-violation.py").write_text(
        f"import nki\nimport nki.language as nl\n{KERNELS['layout-violation.py']}"
    )
    monkeypatch.setattr(simulator.language, "load", load)
    (found,) = tutorials.outcomes(tmp_path)
    rule = isinstance(error, NkiError)
    assert found.status.startswith(
        "NkiError: NKI004: load" if rule else "ZeroDivisionError: NKI003: of NeuronCore-v4 ("
    )
    assert rule or Path(__file__).name in found.status


def test_faults_of_the_table_itself_are_raised(tutorials, tmp_path):
    """Only what their file or their kernel does is in the table."""
    (tmp_path / "index-case-1.py").write_text("import nki\n")
    with pytest.raises(AttributeError, match="tensor_split_kernel_"):
        list(tutorials.outcomes(tmp_path))
    (tmp_path / "index-case-1.py").write_text("import nki.nothing\n")
    assert [one.status for one in tutorials.outcomes(tmp_path)] == [
        "ModuleNotFoundError: No module named 'nki.nothing' (index-case-1.py:1)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "apart"),
    [((1.0, 2.0), 0), ((1.0, 4.0), 1), ((1.0,), np.inf), (1.0, np.inf), ((1.0, [2.0, 2.0]), np.inf)],
)
def test_differences(tutorials, found, apart):
    assert tutorials.difference(found, (1.0, 2.0)) == apart


def test_what_is_no_checkout_is_refused(tmp_path):
    done = subprocess.run([sys.executable, str(FOLDER), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has none of" in done.stderr
