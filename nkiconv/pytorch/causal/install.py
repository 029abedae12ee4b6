"""`import causal_conv1d` as nkiconv's functions, for programs and libraries that look for that package.

Three things are looked up by them: the modules `causal_conv1d` and `causal_conv1d.causal_conv1d_interface`, the version
in the package's metadata, and in transformers `is_causal_conv1d_available()`, which wants a GPU, and (up to 5.x's first
releases) a table of kernels that it downloads unless they are in it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from email.message import Message
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType, TracebackType
from typing import Any

from ...errors import UnsupportedError
from .functions import causal_conv1d_fn, causal_conv1d_update

PACKAGE = "causal_conv1d"
INTERFACE = f"{PACKAGE}.causal_conv1d_interface"
#: Of causal-conv1d: whose arguments and results these are.
VERSION = "1.6.1"
_FUNCTIONS = {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": causal_conv1d_update}

#: Where transformers says whether there is the package, and its table of kernels by name.
_CHECKS, _CHECK = ("transformers.utils.import_utils", "transformers.utils"), "is_causal_conv1d_available"
_HUB, _TABLE, _KERNEL = "transformers.integrations.hub_kernels", "_KERNEL_MODULE_MAPPING", "causal-conv1d"


class Installation:
    """What `install_causal_conv1d` returns; leaving it as a context manager, or `undo`, undoes it."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        """Take what is to be done, the last first."""
        self._undo = undo

    def undo(self) -> None:
        """Restore what was there before; the second time nothing. Later installations are to be undone first."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Installation:
        """It is installed already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo."""
        self.undo()


def install_causal_conv1d(*, replace: bool = False) -> Installation:
    """Make `import causal_conv1d` find nkiconv's `causal_conv1d_fn` and `causal_conv1d_update`, installed or not.

        nkiconv.pytorch.install_causal_conv1d()  # before the models are imported
        from transformers import AutoModelForCausalLM

    transformers is imported where it is installed, and told that the package is there. Its model files look for it when
    they are imported and keep what they found: ones imported before are named in a warning, and ones imported in
    between keep nkiconv's functions after `undo`.

    Args:
        replace: also where the package's own modules are imported; who took functions from them keeps those.

    Returns: an Installation, whose `undo` restores everything; also a context manager.

    Raises: UnsupportedError where the package's own modules are imported, and not replace.
    """
    real = sorted(name for name in sys.modules if _of_package(name) and not _is_ours(sys.modules[name]))
    if real and not replace:
        raise UnsupportedError(
            f"causal_conv1d: imported already, from {getattr(sys.modules[real[0]], '__file__', None)}; call "
            f"install_causal_conv1d before that, or with replace=True"
        )
    before = {name: module for name, module in sys.modules.items() if _of_package(name)}
    undo: list[Callable[[], None]] = [lambda: _restore_modules(before)]
    installation = Installation(undo)
    try:
        for name in before:
            del sys.modules[name]
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        undo.append(lambda: sys.meta_path.remove(finder))
        package = importlib.import_module(PACKAGE)
        importlib.import_module(INTERFACE)
        if "transformers" in sys.modules or importlib.util.find_spec("transformers") is not None:
            undo.extend(_tell_transformers(package))
            if not before:
                _warn_of_early_models()
    except BaseException:
        installation.undo()
        raise
    return installation


def _of_package(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _is_ours(module: ModuleType) -> bool:
    return isinstance(getattr(module, "__loader__", None), _Loader)


def _restore_modules(before: dict[str, ModuleType]) -> None:
    """Leave of the package in sys.modules what was there."""
    for name in [name for name in sys.modules if _of_package(name)]:
        del sys.modules[name]
    sys.modules.update(before)


def _tell_transformers(package: ModuleType) -> Iterator[Callable[[], None]]:
    """Change transformers' answers; yields what changes each back."""
    for name in _CHECKS:
        module = importlib.import_module(name)
        if hasattr(module, _CHECK):
            yield _set(vars(module), _CHECK, lambda: True)
    table = getattr(importlib.import_module(_HUB), _TABLE, None)
    if table is not None:
        yield _set(table, _KERNEL, package)


def _warn_of_early_models() -> None:
    """Name transformers' model files that have looked for the package already."""
    early = [
        name
        for name, module in sorted(sys.modules.items())
        if name.startswith("transformers.models.") and "causal_conv1d_fn" in vars(module)
    ]
    if early:
        warnings.warn(
            f"causal_conv1d: {', '.join(early)} imported before install_causal_conv1d; they keep what they found then",
            stacklevel=3,
        )


def _set(names: dict[str, Any], name: str, value: Any) -> Callable[[], None]:
    """Set an entry; returns what sets it back."""
    missing = object()
    before = names.get(name, missing)
    names[name] = value

    def restore() -> None:
        if before is missing:
            del names[name]
        else:
            names[name] = before

    return restore


class _Loader(Loader):
    """Fills a module of the package."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """A plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """Both modules of the package have the functions; only the package has a version."""
        vars(module).update(_FUNCTIONS)
        module.__doc__ = "nkiconv's functions under causal-conv1d's names: nkiconv.pytorch.install_causal_conv1d."
        if module.__name__ == PACKAGE:
            vars(module)["__version__"] = VERSION


class _Metadata(importlib.metadata.Distribution):
    """The package's metadata: a name and a version."""

    def read_text(self, filename: str) -> str | None:
        """METADATA and nothing else."""
        if filename != "METADATA":
            return None
        message = Message()
        for name, value in (("Metadata-Version", "2.1"), ("Name", PACKAGE.replace("_", "-")), ("Version", VERSION)):
            message[name] = value
        return message.as_string()

    def locate_file(self, path: Any) -> Any:
        """There are no files."""
        raise FileNotFoundError(f"{path}: causal-conv1d is nkiconv's here and has no files")


class _Finder(MetaPathFinder):
    """Finds the package's modules and metadata."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of the package and of its interface."""
        if fullname not in (PACKAGE, INTERFACE):
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), origin="nkiconv", is_package=fullname == PACKAGE)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context
    ) -> Iterator[importlib.metadata.Distribution]:
        """Of the package, by any spelling of its name, or among all."""
        if context.name is None or context.name.lower().replace("-", "_").replace(".", "_") == PACKAGE:
            yield _Metadata()
