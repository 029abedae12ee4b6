"""install() and `python -m nkiconv.simulator`: `import nki` gives the simulator, until it is undone; nki.typing."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import process

from nkiconv import simulator
from nkiconv.simulator import ArraySpec, NkiError, NkiInstalledError, NotSimulatedError, execute, install, jit
from nkiconv.simulator import isa as our_isa
from nkiconv.simulator import language as our_language
from nkiconv.simulator import typing as nt
from nkiconv.simulator.__main__ import main

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt
from nki import jit, simulate
from nki.collectives import ReplicaGroup
from nki.isa import constants, dge_mode, oob_mode
from nki.isa.constants import dma_engine
from nki.language import NKIObject, NkiTensor
from nki.typing import tensor


@nki.jit
def doubled(x: nt.tensor[4, 8]):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(out, nl.add(tile, tile))
    return out
"""
X = np.arange(32, dtype=np.float32).reshape(4, 8)


def nki_modules():
    return {name for name in sys.modules if name == "nki" or name.startswith("nki.")}


@pytest.fixture(autouse=True)
def nothing_left():
    before = nki_modules()
    yield
    assert nki_modules() == before


def test_a_kernel_of_another_package_runs():
    names = {}
    with install():
        exec(KERNEL, names)
        np.testing.assert_array_equal(names["doubled"](X), 2 * X)
        np.testing.assert_array_equal(names["simulate"](names["doubled"])(X), 2 * X)
    assert names["nl"] is our_language
    assert names["nisa"] is our_isa
    assert names["dma_engine"] is names["constants"].dma_engine is our_isa.dma_engine
    np.testing.assert_array_equal(names["doubled"](X), 2 * X)  # what was imported keeps working


def test_without_with():
    installation = install()
    try:
        import nki

        assert nki.jit is simulator.jit
    finally:
        installation.remove()
    installation.remove()
    assert "nki" not in sys.modules


def test_what_launches_allow_meanwhile():
    def unwritten():
        out = our_language.ndarray((1, 4), our_language.float32, our_language.shared_hbm)
        our_language.store(out, our_language.ndarray((1, 4), our_language.float32))
        return out

    with install(sentinels=True):
        nki = importlib.import_module("nki")
        kernel = nki.jit(unwritten)
        assert kernel().shape == nki.simulate(kernel)().shape == (1, 4)
        with pytest.raises(NkiError, match="NKI016"):
            simulator.simulate(kernel, sentinels=False)()
        with install(), pytest.raises(NkiError, match="NKI016"):
            kernel()
        kernel()
    with pytest.raises(NkiError, match="NKI016"):
        kernel()


def test_only_what_aws_documents_is_found():
    with install():
        nki = importlib.import_module("nki")
        public = {name for name in vars(nki) if not name.startswith("_")}
        assert public == {"jit", "simulate", "isa", "language", "typing", "dtype", "compiler", "collectives"}
        assert isinstance(our_language.bfloat16, nki.dtype)
        for name in ("nki.kernels", "nki.tensor", "nki.hardware"):
            with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
                importlib.import_module(name)


def package(folder, text):
    (folder / "nki").mkdir()
    (folder / "nki" / "__init__.py").write_text(text)


def forget_nki():
    for name in nki_modules():
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "match"),
    [("jit = None", r"AWS's nki is here \(.*__init__\.py\)"),
     ("import nothing_of_this_name", r"installed but broken: No module named 'nothing_of_this_name'"),
     ("raise ImportError('no driver')", r"installed but broken: no driver")],
    ids=["works", "lacks a module", "broken"],
)  # fmt: skip
def test_aws_own_is_not_hidden(tmp_path, monkeypatch, text, match):
    package(tmp_path, text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(NkiInstalledError, match=match):
            install()
        with pytest.raises(NkiInstalledError, match=match):  # whether or not it has been imported before
            install()
    finally:
        forget_nki()


def test_a_placeholder_and_a_mere_folder_are_no_nki(tmp_path, monkeypatch):
    package(tmp_path, "raise ImportError('WRONG PACKAGE: see the documentation')")
    monkeypatch.syspath_prepend(tmp_path)
    with install():
        import nki.isa

        assert nki.isa is our_isa
    (tmp_path / "nki" / "__init__.py").unlink()
    importlib.invalidate_caches()
    try:
        with install():
            import nki.isa

            assert nki.isa is our_isa
    finally:
        forget_nki()


def test_collectives_are_named_not_simulated():
    with install():
        import nki.collectives as ncc
        from nki.collectives import ReplicaGroup, rank_id
    for name, call in {"all_reduce": ncc.all_reduce, "ReplicaGroup": ReplicaGroup, "rank_id": rank_id}.items():
        with pytest.raises(NotSimulatedError, match=rf"^nki\.collectives\.{name} is documented NKI"):
            call([[0]])
    with pytest.raises(AttributeError, match="no attribute 'all_at_once'"):
        ncc.all_at_once  # noqa: B018


def kernel_of(annotation):
    def kernel(x, scale=1):
        tile = our_language.load(x)
        out = our_language.ndarray(x.shape, x.dtype, our_language.shared_hbm)
        our_language.store(out, tile)
        return out

    kernel.__annotations__ = {"x": annotation}
    return jit(kernel)


@pytest.mark.parametrize("annotation", [
    nt.tensor, nt.tensor[4, 8], "nt.tensor[4, 8]", "of_no_meaning[4]", int, None,
], ids=str)  # fmt: skip
def test_declared_shapes(annotation):
    np.testing.assert_array_equal(kernel_of(annotation)(X), X)
    execute(kernel_of(annotation)[2], (ArraySpec((4, 8), "float32"),), trace_only=True)


@pytest.mark.parametrize(("annotation", "value", "match"), [
    (nt.tensor[4, 8], X[:, :4], r"x has shape \(4, 4\)"), ("nt.tensor[4, 8]", 3, "x is 3"),
    (nt.tensor[32], X[None], r"x has shape \(1, 4, 8\)"),
])  # fmt: skip
def test_other_shapes_are_refused(annotation, value, match):
    with pytest.raises(NkiError, match=rf"^NKI175: launch: {match}, declared \("):
        kernel_of(annotation)(value)


def test_shapes_are_positive_ints_and_optional_tensors_may_be_absent():
    kernel = jit(lambda x, mask=None: our_language.shared_constant(X))
    kernel.function.__annotations__ = {"mask": nt.tensor[4, 8]}
    np.testing.assert_array_equal(kernel(X), X)
    with pytest.raises(NkiError, match="NKI175"):
        kernel(X, X[:2])
    for shape in (0, (4, -1), (4, None), ("n", 4), 4.0, ()):
        with pytest.raises(TypeError, match="sizes must be positive ints"):
            nt.tensor[shape]
    assert nt.tensor[4].shape == (4,)
    assert issubclass(nt.tensor[4, 8], nt.tensor)
    assert nt.tensor[4, 8].__name__ == "tensor[4, 8]"


ROOT = Path(__file__).resolve().parents[2]
SCRIPT = f"""
import sys

import beside
{KERNEL}

if __name__ == "__main__":
    found = doubled(beside.ones((4, 8)))
    print(sys.argv[1:], type(found).__module__, float(found.sum()), __file__)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text(
        "import numpy\n\n\ndef ones(shape):\n    return numpy.ones(shape, numpy.float32)\n"
    )
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_as_a_program(script):
    done = process("-m", "nkiconv.simulator", script, "--races", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"['--races', '7'] numpy 64.0 {script}\n"


@pytest.mark.parametrize("given", [[], ["--nki", "0.6"]])
def test_kernels_of_nki_06(tmp_path, given, capsys):
    path = tmp_path / "ranged.py"
    path.write_text(
        "import nki\nimport nki.language as nl\nimport numpy as np\n\n@nki.jit\ndef kernel(x):\n"
        "    for i in nl.dynamic_range(2):\n        nl.load(x)\n\nkernel(np.ones((2, 3), np.float32))\nprint('ran')\n"
    )
    if given:
        with pytest.warns(DeprecationWarning, match="dynamic_range"):
            assert main([*given, str(path)]) == 0
        assert capsys.readouterr().out == "ran\n"
    else:
        with pytest.raises(NkiError, match=r"NKI184: dynamic_range.*\n.*ranged\.py:7"):
            main([str(path)])


def test_what_is_no_script_and_aws_package_that_is_not_hidden(script, tmp_path, monkeypatch, capsys):
    assert main([str(tmp_path / "nowhere.py")]) == 2
    assert "does not exist; give the path of a Python script" in capsys.readouterr().err
    package(tmp_path, "")
    monkeypatch.syspath_prepend(tmp_path)
    assert main([str(script)]) == 2
    assert "NKI_SIMULATOR=1" in capsys.readouterr().err
    sys.modules.pop("nki", None)
