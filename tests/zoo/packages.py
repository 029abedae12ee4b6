"""Packages of the zoo: where they are, and those whose compiled operators are built for another torch.

`make zoo` installs them beside the environment's own packages, not among them: a torchvision that cannot be imported
would take transformers with it. PyPI has torchvision and torchaudio for CUDA only. Their models are Python, so that on
torch for CPUs nothing is missed but operators that the zoo does not run.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Where `make zoo` installs what pyproject.toml's extra `zoo` lists.
FOLDER = Path(sys.prefix) / "zoo"
#: Operators that torchvision, imported, gives shapes to, whether or not they are there.
_DETECTION = ("torchvision::nms", "torchvision::qnms")
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def requirements(pyproject: Path) -> list[str]:
    """What the extra `zoo` lists, as pip takes it."""
    found: list[str] = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["optional-dependencies"]["zoo"]
    return found


def ready(package: str) -> None:
    """Import a package. Raises ImportError where it is not installed."""
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    for name, prepare in (("torchvision", _import_torchvision), ("torchaudio", _import_torchaudio)):
        if importlib.util.find_spec(name):  # transformers and timm import what is installed
            prepare()
    importlib.import_module(package)


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        import torch

        _forget("torchvision")
        for name in _DETECTION:
            torch.library.define(name, _BOXES)
        importlib.import_module("torchvision")


def _import_torchaudio() -> None:
    """torchaudio, or of it the models alone."""
    try:
        importlib.import_module("torchaudio")
    except OSError:
        _forget("torchaudio")
        spec = importlib.util.find_spec("torchaudio")
        assert spec is not None
        package = types.ModuleType("torchaudio")
        package.__path__, package.__spec__ = list(spec.submodule_search_locations or ()), spec
        sys.modules["torchaudio"] = package
    importlib.import_module("torchaudio.models")


def _forget(package: str) -> None:
    """Take the modules of an import that failed out of those that count as imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


if __name__ == "__main__":
    print(*requirements(Path(sys.argv[1])))
