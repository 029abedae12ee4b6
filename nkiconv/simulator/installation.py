"""`install()`: `import nki` gives this simulator to code that was written for AWS's package."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType

from . import collectives, compiler, declarations, isa, language, launch
from .allowed import Allowed, default, set_default
from .isa import enums

#: The text of the error that PyPI's placeholder package `nki` raises on import.
_PLACEHOLDER_MARK = "WRONG PACKAGE"


class NkiInstalledError(RuntimeError):
    """AWS's own `nki` is installed (or looks so, and is broken): `install` does not hide it."""


@dataclass(eq=False)
class _State:
    """The modules named nki or nki.*, and the permissions of launches."""

    modules: dict[str, ModuleType]
    allowed: Allowed

    def apply(self) -> None:
        """Make it so."""
        set_default(self.allowed)
        for name in _nki_modules():
            del sys.modules[name]
        sys.modules.update(self.modules)


class Installation:
    """The simulator's modules under the name `nki`, with permissions of launches; a context manager removes them."""

    def __init__(self, state: _State) -> None:
        if _states:
            _states[-1].modules = _nki_modules()
        else:
            _states.append(_State(_nki_modules(), default()))
        self._state = state
        _states.append(state)
        state.apply()

    def remove(self) -> None:
        """Restore the modules before; imported ones keep working. A second call does nothing."""
        if self._state in _states:
            _states.remove(self._state)
            _states[-1].apply()
            if len(_states) == 1:
                _states.clear()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def install(*, sentinels: bool = False, races: bool = False, overflow: bool = False, nki: str = "0.7") -> Installation:
    """Make `import nki`, `nki.isa`, `nki.language`, `nki.compiler` and `nki.typing` give the simulator from now on.

    `nki` has jit and simulate, and calls of jitted kernels run here. Two names that nki-library uses are there as well:
    `nki.isa.constants` with nki.isa's enums, and `nki.dtype`, the type of dtypes. `nki.collectives` can be imported;
    its calls raise NotSimulatedError. Modules that the simulator lacks, such as `nki.kernels`, are not found.

    Args:
        sentinels, races, overflow, nki: as in `simulate`, the defaults of all launches until it is removed; code
            written for AWS's package cannot pass them.

    Returns: an `Installation`: ``with install():`` or its `remove()` undoes it. Of several the last remaining holds.

    Raises: NkiInstalledError where AWS's nki is installed; NKICONV_NKI=simulator then still has this simulator run
        nkiconv's own kernels.
    """
    found = _aws_nki()
    if found is not None:
        raise NkiInstalledError(f"AWS's nki is here ({found}); its own nki.simulate runs kernels without a device")
    return Installation(_State(_modules(), Allowed(sentinels, races, overflow, nki)))


def _modules() -> dict[str, ModuleType]:
    """Our modules by the names that AWS gives them."""
    package = ModuleType("nki", "AWS's Neuron Kernel Interface as nkiconv.simulator runs it.")
    package.__path__ = []  # a package without files: nothing else of the simulator is found under its name
    parts = {
        "isa": isa,
        "language": language,
        "typing": declarations,
        "compiler": compiler,
        "collectives": collectives,
    }
    vars(package).update(parts, jit=launch.jit, simulate=launch.simulate, dtype=str)
    return {"nki": package, "nki.isa.constants": enums, **{f"nki.{name}": module for name, module in parts.items()}}


def _aws_nki() -> str | None:
    """The path of AWS's nki, or its error; None if there is none, or only PyPI's placeholder."""
    try:
        module = importlib.import_module("nki")
    except ModuleNotFoundError as error:
        return None if error.name == "nki" else f"installed but broken: {error}"
    except ImportError as error:
        return None if _PLACEHOLDER_MARK in str(error) else f"installed but broken: {error}"
    return getattr(module, "__file__", None)  # ours has none, nor has a folder that happens to be called nki


def _nki_modules() -> dict[str, ModuleType]:
    """Those that there are."""
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "nki"}


#: With installations: the state before them, and theirs, oldest first.
_states: list[_State] = []
