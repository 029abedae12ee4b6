"""The command that runs AWS's own kernels in the simulator: what it makes of reports, and of tutorials."""

import sys
from pathlib import Path

import pytest
from commands import of_command

from nkiconv import simulator
from nkiconv.simulator import NkiError

tutorials = of_command("conformance", "tutorials")


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
