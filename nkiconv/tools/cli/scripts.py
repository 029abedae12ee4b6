"""Names in scripts: SCRIPT.py:NAME, imported as a module and removed again."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import UnsupportedError
from ...lint.removed import REMOVED

#: The module name of an imported script; it is not "__main__", so that such blocks do not run.
MODULE = "_nkiconv_script"


@contextlib.contextmanager
def function_of(target: str) -> Iterator[Callable[[], Any]]:
    """The function SCRIPT.py:FUNCTION, callable without arguments within the block; of a model, one that returns it.

    Within the block the script's folder is importable, and its output goes to stderr.

    Raises UnsupportedError: there is no such script or function, importing it raises, or the function wants arguments;
    its caller gets one where the function raises.
    """
    with attribute_of(target) as found:
        path, name = _parts(target)
        torch = sys.modules.get("torch")
        is_made = torch is not None and isinstance(found, torch.nn.Module)
        yield lambda: found if is_made else guarded(f"SCRIPT={target}: {name}()", path, found)


@contextlib.contextmanager
def attribute_of(target: str) -> Iterator[Any]:
    """The callable SCRIPT.py:NAME within the block; otherwise as `function_of`."""
    path, name = _parts(target)
    before = list(sys.path)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with _prints_to_stderr():
            yield _named(target, path, name)
    finally:
        sys.path[:] = before
        sys.modules.pop(MODULE, None)


@contextlib.contextmanager
def _prints_to_stderr() -> Iterator[None]:
    """Send all output of a script to stderr within the block: stdout is the command's."""
    try:
        kept = os.dup(1)
    except OSError:  # closed
        kept = None
    if sys.__stdout__:
        sys.__stdout__.flush()
    try:
        if kept is not None:
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if sys.__stdout__:
            sys.__stdout__.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _parts(target: str) -> tuple[Path, str]:
    """The path and the name of the function."""
    script, colon, name = target.rpartition(":")
    path = Path(script)
    if not (colon and script and name.isidentifier()):
        raise UnsupportedError(f"SCRIPT={target}: must be a path, a colon and a function; write model.py:build_model")
    if not path.is_file() or path.suffix != ".py":
        kind = "is a directory" if path.is_dir() else "is no .py file" if path.exists() else "does not exist"
        raise UnsupportedError(f"SCRIPT={target}: {path} {kind}; give the path of a Python script")
    return path, name


def _named(target: str, path: Path, name: str) -> Any:
    """The object of this name in a script."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    guarded(f"SCRIPT={target}: importing it", path, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    found = getattr(module, name, None)
    if found is None:
        own = [one for one, value in vars(module).items() if callable(value) and _home(value) == MODULE]
        close = difflib.get_close_matches(name, own, n=3, cutoff=0.4) or own[:3]
        remedy = f"did you mean {', '.join(close)}?" if close else "define it"
        raise UnsupportedError(f"SCRIPT={target}: {path} has no {name}; {remedy}")
    if not callable(found):
        kind = type(found).__name__
        raise UnsupportedError(f"SCRIPT={target}: {name} is no function but of type {kind}; name one")
    return found


def _home(value: Any) -> str | None:
    """The module that defines a function, a kernel or a class."""
    return getattr(inspect.unwrap(value), "__module__", None)


def guarded(what: str, path: Path, call: Callable[[], Any], passing: tuple[type[Exception], ...] = ()) -> Any:
    """The result of a call of the script's code; its exceptions become an UnsupportedError with the line, except Ctrl-C
    and those in `passing`."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, passing):
            raise
        raised = f"{what} raised {type(error).__name__}{_line(path, error)}: {error}"
        raise UnsupportedError(f"{raised}; {_remedy(error)}") from error


#: The remedy for the package that NKI was in before 0.3.
_OLD_NKI = "NKI is a package of its own: write import nki, nki.isa and nki.language for neuronxcc.nki"


#: Python's messages for an operator between tensors, or a tensor and a number.
_OPERATOR = re.compile("unsupported operand .*'NkiTensor'|not supported between instances of .*'NkiTensor'")


def _remedy(error: BaseException) -> str:
    if _is_old_nki(error):
        return _OLD_NKI
    if known := REMOVED.get(_missing_name(error)):
        return known
    if isinstance(error, AttributeError) and error.name:
        close = difflib.get_close_matches(error.name, dir(error.obj))
        return f"did you mean {', '.join(close)}?" if close else "correct it"
    if _OPERATOR.search(str(error)):
        return "tensors have no operators: compute with nki.isa.tensor_tensor or tensor_scalar, or nki.language"
    return "correct it"


def _is_old_nki(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "neuronxcc"


#: Python's messages for a missing name of a module: by attribute, and by `from module import name`.
_MISSING = (
    re.compile("module '(?P<module>.+)' has no attribute '(?P<name>.+)'"),
    re.compile("cannot import name '(?P<name>.+)' from '(?P<module>.+?)'"),
)


def _missing_name(error: BaseException) -> str:
    """The full name of a missing name, such as "nki.language.par_dim"; "" for other errors."""
    found = next(filter(None, (pattern.match(str(error)) for pattern in _MISSING)), None)
    return f"{found['module']}.{found['name']}" if found else ""


def _line(path: Path, error: BaseException) -> str:
    """The last line of a script that an error passed through, as in " (model.py:12)"; empty where there is none."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    return f" ({path.name}:{lines[-1]})" if lines else ""
