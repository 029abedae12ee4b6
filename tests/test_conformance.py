"""The command that runs nki-library's tests in the simulator: what it makes of their reports."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).resolve().parent / "conformance"


@pytest.fixture(scope="module")
def conformance():
    spec = importlib.util.spec_from_file_location("conformance_command", FOLDER / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("nki.isa.max8 is documented NKI that this simulator does not run yet; it runs: nc_matmul",
         "not simulated: max8"),
        ("nki.language.rand is documented NKI that this simulator does not run yet", "not simulated: rand"),
        ("NKI049: nc_matmul_mx: needs NeuronCore-v4", "needs trn3"),
        ("AttributeError: module has no attribute 'float8_e4m3fn_x4'", "needs trn3"),
        ("InferenceException: NKI028: dma_copy: core 1 writes element (0, 0)", "refused: NKI028"),
        ("ValidationException: Validation failed for ['output']", "differs from the reference"),
        ("Failed: Timeout (>60.0s) from pytest-timeout.", "takes too long"),
        ("E   TypeError: f() got an unexpected | keyword", "TypeError: f() got an unexpected / keyword"),
        ("something else\nand more", "something else"),
        ("", "no message"),
    ],
)  # fmt: skip
def test_reasons(conformance, message, reason):
    assert conformance.reason_of(message) == reason


REPORT = """<testsuites><testsuite>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="a"/>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="b">
<failure message="NKI028: race">line</failure></testcase>
<testcase classname="test.integration.nkilib.core.cumsum.test_cumsum.TestCumsum" name="c"><skipped/></testcase>
<testcase classname="" name="test.integration.nkilib.core.mlp.test_mlp">
<error message="collection failure">E   IndentationError: unexpected indent</error></testcase>
</testsuite></testsuites>"""


def test_a_page_of_a_report(conformance, monkeypatch, tmp_path):
    monkeypatch.setattr(conformance, "run_folder", lambda *_arguments: ElementTree.fromstring(REPORT))
    found = conformance.collect(tmp_path, [tmp_path], "fast", 60)
    assert [(one.file, one.passed, one.skipped, one.run) for one in found] == [
        ("test_cumsum", 1, 1, 2), ("test_mlp", 0, 0, 1)
    ]  # fmt: skip
    assert found[0].reasons == Counter({"refused: NKI028": 1})
    text = conformance.page(found, tmp_path, "fast")
    assert "1 of 3 tests passed; in 0 of 2 files all did" in text
    assert "| test_mlp | 0 | 1 | 0 | 1 x IndentationError: unexpected indent |" in text


def test_what_is_no_checkout_is_refused(tmp_path):
    done = subprocess.run([sys.executable, str(FOLDER), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no folder" in done.stderr
