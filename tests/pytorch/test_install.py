"""`import causal_conv1d` finds nkiconv while it is installed so, and what was there before otherwise."""

import importlib
import importlib.metadata
import importlib.util
import sys

import pytest
import torch

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update, install_causal_conv1d

#: transformers as far as it looks for the package: 5.0's table and check, and a model file of 5.23's kind.
STUB = {
    "transformers/__init__.py": "",
    "transformers/utils/__init__.py": "from .import_utils import is_causal_conv1d_available",
    "transformers/utils/import_utils.py": "def is_causal_conv1d_available():\n    return False",
    "transformers/integrations/__init__.py": "",
    "transformers/integrations/hub_kernels.py": "_KERNEL_MODULE_MAPPING = {'other': None}",
    "transformers/models/__init__.py": "",
    "transformers/models/early.py": "causal_conv1d_fn = None",
    "transformers/models/late.py": "from causal_conv1d import causal_conv1d_fn",
}


def those(names):
    return [name for name in names if name.partition(".")[0] in ("causal_conv1d", "transformers")]


@pytest.fixture(autouse=True)
def no_other(monkeypatch):
    """Neither package is imported; each test leaves the interpreter as it was."""
    modules, finders = dict(sys.modules), list(sys.meta_path)
    for name in those(modules):
        monkeypatch.delitem(sys.modules, name)
    yield
    assert sys.meta_path == finders
    for name in those(set(sys.modules) - set(modules)):
        del sys.modules[name]


@pytest.fixture(autouse=True)
def stub(monkeypatch, tmp_path):
    for name, text in STUB.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def real(monkeypatch, tmp_path):
    """Another package causal_conv1d with metadata, installed and not yet imported."""
    package = tmp_path / "site" / "causal_conv1d"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .causal_conv1d_interface import causal_conv1d_fn\n__version__ = '9'")
    (package / "causal_conv1d_interface.py").write_text("causal_conv1d_fn = 'theirs'")
    (package / "more.py").write_text("")
    metadata = tmp_path / "site" / "causal_conv1d-9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: causal-conv1d\nVersion: 9\n")
    monkeypatch.syspath_prepend(tmp_path / "site")


def none_of(module):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module)


def test_imports_find_nkiconv_until_it_is_undone():
    none_of("causal_conv1d")
    with install_causal_conv1d():
        import causal_conv1d
        from causal_conv1d import causal_conv1d_interface

        for module in (causal_conv1d, causal_conv1d_interface):
            assert module.causal_conv1d_fn is causal_conv1d_fn
            assert module.causal_conv1d_update is causal_conv1d_update
            assert importlib.util.find_spec(module.__name__) is module.__spec__
        assert importlib.metadata.version("causal_conv1d") == causal_conv1d.__version__
        assert importlib.metadata.version("causal-conv1d") == causal_conv1d.__version__
        assert "causal-conv1d" in [one.metadata["Name"] for one in importlib.metadata.distributions()]
        assert importlib.metadata.distribution("causal-conv1d").files is None
        none_of("causal_conv1d.more")
        x, w = torch.ones(1, 2, 5), torch.ones(2, 3)
        assert causal_conv1d.causal_conv1d_fn(x, w, activation=None)[0, 0].tolist() == [1, 2, 3, 3, 3]
    none_of("causal_conv1d")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("causal_conv1d")


def test_installed_twice_and_undone_twice():
    with install_causal_conv1d():
        with install_causal_conv1d():
            pass
        assert importlib.import_module("causal_conv1d").causal_conv1d_fn is causal_conv1d_fn
        assert importlib.metadata.version("causal_conv1d")
    none_of("causal_conv1d")


@pytest.mark.usefixtures("real")
def test_an_imported_package_is_replaced_only_on_demand():
    theirs = importlib.import_module("causal_conv1d")
    more = importlib.import_module("causal_conv1d.more")
    with pytest.raises(UnsupportedError, match=r"causal_conv1d: imported already, from .*site.*replace=True"):
        install_causal_conv1d()
    assert sys.modules["causal_conv1d"] is theirs
    with install_causal_conv1d(replace=True):
        assert importlib.import_module("causal_conv1d").causal_conv1d_fn is causal_conv1d_fn
        none_of("causal_conv1d.more")
    assert sys.modules["causal_conv1d"] is theirs
    assert sys.modules["causal_conv1d.more"] is more


def test_transformers_is_told():
    with install_causal_conv1d():
        for name in ("transformers.utils", "transformers.utils.import_utils"):
            assert importlib.import_module(name).is_causal_conv1d_available()
        table = importlib.import_module("transformers.integrations.hub_kernels")._KERNEL_MODULE_MAPPING
        assert table == {"other": None, "causal-conv1d": sys.modules["causal_conv1d"]}
        assert importlib.import_module("transformers.models.late").causal_conv1d_fn is causal_conv1d_fn
    assert table == {"other": None}
    for name in ("transformers.utils", "transformers.utils.import_utils"):
        assert not importlib.import_module(name).is_causal_conv1d_available()


def test_files_that_looked_before_get_the_functions_until_it_is_undone():
    early = importlib.import_module("transformers.models.early")
    x, w = torch.ones(1, 2, 5), torch.ones(2, 3)
    with install_causal_conv1d():
        assert early.causal_conv1d_fn(hidden_states=x, weight=w, other=1)[0, 0].tolist() == [1, 2, 3, 3, 3]
        mine = early.causal_conv1d_fn
        with install_causal_conv1d():
            assert early.causal_conv1d_fn is mine
        assert not hasattr(early, "causal_conv1d_update")
    assert early.causal_conv1d_fn is None


def test_a_broken_transformers_leaves_nothing_behind(tmp_path):
    (tmp_path / "transformers/integrations/hub_kernels.py").write_text("raise ImportError('broken')")
    with pytest.raises(ImportError, match="broken"):
        install_causal_conv1d()
    none_of("causal_conv1d")
    assert not importlib.import_module("transformers.utils").is_causal_conv1d_available()
