"""`import causal_conv1d` as nkiconv's functions, for libraries that import that package.

They look up three things: the package's modules (their contents are in `package`), the version in its metadata, and, in
transformers, `is_causal_conv1d_available()`, which requires a GPU, and (up to 5.x's first releases) a table of kernels,
where transformers downloads those that are missing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from ... import rules
from ...errors import refuse
from ..errors import UnsupportedError
from .installation import Installation
from .model_files import looks, set_in
from .package import MODULES, VERSION

PACKAGE = "causal_conv1d"
#: Contents of its modules, by their full names.
_NAMES = {f"{PACKAGE}.{name}".rstrip("."): names for name, names in MODULES.items()}

#: Where transformers says whether there is the package, and its table of kernels by name.
_CHECKS, _CHECK = ("transformers.utils.import_utils", "transformers.utils"), "is_causal_conv1d_available"
_HUB, _TABLE, _KERNEL = "transformers.integrations.hub_kernels", "_KERNEL_MODULE_MAPPING", "causal-conv1d"


def install_causal_conv1d(*, replace: bool = False) -> Installation:
    """Make `import causal_conv1d` find nkiconv's functions, whether the package is installed or not.

        nkiconv.pytorch.install_causal_conv1d()
        from transformers import AutoModelForCausalLM

    Its modules `causal_conv1d_interface`, `causal_conv1d_varlen` and `cpp_functions` exist too, with their reference
    functions.

    If transformers is installed, it is imported and told that the package is available. Its model files look the
    package up once, when they are imported: files imported before this call get nkiconv's functions until `undo`; files
    imported between this call and `undo` keep them.

    Args:
        replace: replace the package's own modules too if they are imported; functions taken from them before stay.

    Returns: an Installation, whose `undo` restores everything; also a context manager.

    Raises: UnsupportedError if the package's own modules are imported and replace is False.
    """
    refuse(UnsupportedError, rules.flag("replace", replace))
    real = sorted(name for name in sys.modules if _of_package(name) and not _is_ours(sys.modules[name]))
    if real and not replace:
        raise UnsupportedError(
            f"causal_conv1d: imported already, from {getattr(sys.modules[real[0]], '__file__', None)}; call "
            f"install_causal_conv1d before that, or with replace=True"
        )
    before = {name: module for name, module in sys.modules.items() if _of_package(name)}
    installation = Installation()
    installation.callback(_restore_modules, before)
    try:
        for name in before:
            del sys.modules[name]
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        installation.callback(sys.meta_path.remove, finder)
        package = importlib.import_module(PACKAGE)
        for name in _NAMES:
            importlib.import_module(name)
        if "transformers" in sys.modules or importlib.util.find_spec("transformers") is not None:
            _tell_transformers(package, installation)
            # model files that have looked for the package already
            for name, file in sorted(sys.modules.items()):
                if name.startswith("transformers.models.") and looks(file):
                    set_in(file, installation, missing=True)
    except BaseException:
        installation.undo()
        raise
    return installation


def _of_package(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _is_ours(module: ModuleType) -> bool:
    return isinstance(getattr(module, "__loader__", None), _Loader)


def _restore_modules(before: dict[str, ModuleType]) -> None:
    """Restore the package's modules in sys.modules."""
    for name in [name for name in sys.modules if _of_package(name)]:
        del sys.modules[name]
    sys.modules.update(before)


def _tell_transformers(package: ModuleType, undo: Installation) -> None:
    """Change transformers' answers."""
    for name in _CHECKS:
        module = importlib.import_module(name)
        if hasattr(module, _CHECK):
            undo.set(vars(module), _CHECK, lambda: True)
    table = getattr(importlib.import_module(_HUB), _TABLE, None)
    if table is not None:
        undo.set(table, _KERNEL, package)


class _Loader(Loader):
    """Fills a module of the package."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """A plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """The functions of one of them."""
        vars(module).update(_NAMES[module.__name__])
        module.__doc__ = "nkiconv's functions under causal-conv1d's names: nkiconv.pytorch.install_causal_conv1d."


class _Metadata(importlib.metadata.Distribution):
    """The package's metadata: a name and a version."""

    def read_text(self, filename: str) -> str | None:
        """METADATA and nothing else."""
        text = f"Metadata-Version: 2.1\nName: {PACKAGE.replace('_', '-')}\nVersion: {VERSION}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        """There are no files."""
        raise FileNotFoundError(f"{path}: causal-conv1d is nkiconv's here and has no files")


class _Finder(MetaPathFinder):
    """Finds the package's modules and metadata."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of the package and of its modules."""
        if fullname not in _NAMES:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), origin="nkiconv", is_package=fullname == PACKAGE)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context
    ) -> Iterator[importlib.metadata.Distribution]:
        """Of the package, by any spelling of its name, or among all."""
        if context.name is None or context.name.lower().replace("-", "_").replace(".", "_") == PACKAGE:
            yield _Metadata()
