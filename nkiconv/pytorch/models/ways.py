"""The graphs of a module's forward, one for each path through it: every branch is taken both ways.

A module within it that torch.fx cannot trace, or that branches itself, is one call in these graphs.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.modules.conv import _ConvNd

from ...errors import UnsupportedError
from ..causal.installation import Installation
from .norms import is_norm

Copy = Callable[[torch.nn.Module], torch.nn.Module]
#: Ways through one forward that are tried, and decisions on one of them.
_WAYS = 64
#: Instructions of `except KIND`, of Python 3.10 and later ones.
_MATCHES = ("JUMP_IF_NOT_EXC_MATCH", "CHECK_EXC_MATCH")


class UntraceableError(Exception):
    """A module's own forward has no graph."""


def graphs_of(
    module: torch.nn.Module, copied: Copy, with_extras: bool, by_default: bool = False
) -> tuple[list[fx.Graph], set[type]]:
    """(the graph of each way through a module's forward, classes of modules in it that are one call).

    An argument with a default is given and is not, or with by_default it is not. with_extras: whether *args and
    **kwargs may hold something.

    Raises UntraceableError.
    """
    whole: set[type] = set()
    while True:
        try:
            return [
                graph
                for with_defaults in ((True,) if by_default and _defaults(module) else (False, True))
                for graph in _ways(module, copied, whole, with_defaults, with_extras)
            ], whole
        except _InsideError as error:
            if type(error.module) in whole:
                raise UntraceableError(f"{type(error.module).__name__} in it cannot be one call") from error
            whole.add(type(error.module))


def _defaults(module: torch.nn.Module) -> dict[str, Any]:
    """Of a forward's arguments."""
    parameters = inspect.signature(module.forward).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def _ways(
    module: torch.nn.Module, copied: Copy, whole: set[type], with_defaults: bool, with_extras: bool
) -> Iterator[fx.Graph]:
    """The graphs of all decisions that a module's own forward can take."""
    defaults = _defaults(module)
    if with_defaults and not defaults:
        return
    if _catches(module):
        raise UntraceableError("its forward catches exceptions")
    decisions: list[bool] = []
    norms = {name for name, one in module.named_modules() if is_norm(one) or isinstance(one, torch.nn.GroupNorm)}
    for _ in range(_WAYS):
        try:
            own = copied(module)
        except UnsupportedError as error:
            raise UntraceableError(str(error)) from error
        tracer = _Tracer(own, whole, norms, decisions, with_extras)
        try:
            with _asked(own, tracer):
                graph = tracer.trace(own, concrete_args=defaults if with_defaults else None)
        except UntraceableError:
            tracer.check()
            raise
        except Exception as error:  # the model's own code may raise any exception on fx's proxies
            tracer.check()
            if not _is_raised_by_model(error):
                raise UntraceableError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        else:
            tracer.check()
            yield graph
        decisions = tracer.taken
        while decisions and not decisions[-1]:
            decisions.pop()
        if not decisions:
            return
        decisions[-1] = False
    raise UntraceableError(f"its forward has more than {_WAYS} ways")


def _is_raised_by_model(error: Exception) -> bool:
    """Whether a `raise` or `assert` of other code than torch.fx's ended a way, a None, a name without a value or a
    module without such an attribute, as with such inputs."""
    if isinstance(error, (AttributeError, TypeError)) and "'NoneType' object" in str(error):
        return True
    if isinstance(error, UnboundLocalError):
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is not None and last.tb_frame.f_code is torch.nn.Module.__getattr__.__code__:
        return True
    if last is None or last.tb_frame.f_globals.get("__name__", "").startswith("torch."):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _catches(module: torch.nn.Module) -> bool:
    """Whether a module's forward catches exceptions, perhaps those that are the tracer's alone."""
    kind: Any = type(module)
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and _code_catches(code)


@functools.cache
def _code_catches(code: CodeType) -> bool:
    names = {one.opname for one in dis.get_instructions(code)}
    return "POP_EXCEPT" in names and ("WITH_EXCEPT_START" not in names or not names.isdisjoint(_MATCHES))


class _InsideError(Exception):
    """A module within the one that is traced has no graph."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


@contextmanager
def _asked(module: torch.nn.Module, tracer: _Tracer) -> Iterator[None]:
    """In the files of a model's layers, isinstance(x, Tensor) of a proxy is one of the decisions, and int of an extent
    is the extent."""

    def ask(one: Any, kinds: Any) -> bool:
        kinds = tuple(int if kind is whole else kind for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        is_proxy = issubclass(type(one), fx.Proxy) and issubclass(Tensor, kinds)
        return tracer.decide("isinstance", one) if is_proxy else isinstance(one, kinds)

    def whole(*given: Any) -> Any:
        return given[0] if given and issubclass(type(given[0]), fx.Proxy) else int(*given)

    functions = [inspect.unwrap(type(part).forward) for part in module.modules()]
    files = {one.__module__: one.__globals__ for one in functions if inspect.isfunction(one)}
    with Installation() as changed:
        for name, file in files.items():
            if not name.startswith("torch."):
                source = _source(name)
                ours = {"isinstance": ask, "int": whole} if source and _only_calls_int(source) else {"isinstance": ask}
                for key in ours.keys() - file.keys():
                    changed.set(file, key, ours[key])
        yield


def _source(name: str) -> str:
    """Of a file; "" where it cannot be had."""
    try:
        return inspect.getsource(sys.modules[name])
    except (KeyError, OSError, TypeError):
        return ""


@functools.lru_cache(maxsize=64)
def _only_calls_int(source: str) -> bool:
    """Whether a file calls int, asks isinstance of it and annotates with it, and does nothing else with it."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except SyntaxError:
        return False
    fine: list[ast.AST | None] = []
    for node in nodes:
        fine += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Call):
            asks = isinstance(node.func, ast.Name) and node.func.id == "isinstance"
            fine += node.args if asks else [node.func] * isinstance(node.func, ast.Name)
    known = {id(inner) for one in fine if one is not None for inner in ast.walk(one)}
    return all(id(node) in known for node in nodes if isinstance(node, ast.Name) and node.id == "int")


class _Tracer(fx.Tracer):
    """torch.fx's tracer in which every convolution, every norm and every module of some classes is one node.

    whole: these classes. norms: names. decisions: values of the conditions in the traced module's own forward, True
    beyond the list.
    """

    proxy_buffer_attributes = True

    def __init__(
        self, module: torch.nn.Module, whole: set[type], norms: set[str], decisions: list[bool], with_extras: bool
    ) -> None:
        super().__init__()
        self.with_extras = with_extras
        self.whole, self.norms = whole, norms
        self.decided, self.taken = [*decisions], list[bool]()
        self.known: dict[tuple[str, fx.Node], bool] = {}
        self.running: list[torch.nn.Module] = []
        self.parts = {id(part) for part in module.modules()}
        self.failed: torch.nn.Module | None = None

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        one = isinstance(m, _ConvNd) or module_qualified_name in self.norms or type(m) in self.whole
        one = one or getattr(m, "nkiconv_traced", False)
        return one or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """As torch.fx's, which gives *args and **kwargs, where there are such, as the last two arguments."""
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        flags = inspect.unwrap(root_fn).__code__.co_flags
        if not self.with_extras:
            empty: list[Any] = [()] * bool(flags & inspect.CO_VARARGS) + [{}] * bool(flags & inspect.CO_VARKEYWORDS)
            args[len(args) - len(empty) :] = empty
        return function, args

    def call_module(self, m: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """As torch.fx's, but note a module whose trace fails, and run a module that forward has made."""
        if id(m) not in self.parts:
            return forward(*args, **kwargs)
        self.running.append(m)
        try:
            if _catches(m) and not self.is_leaf_module(m, self.path_of_module(m)):
                raise UntraceableError
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or m
            raise
        finally:
            self.running.pop()

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Which way to go."""
        return self.decide("bool", obj)

    def decide(self, question: str, obj: fx.Proxy) -> bool:
        """Which way to go where a forward asks something of a proxy; of an argument, the same each time."""
        if self.running:
            return super().to_bool(obj)
        i, asked = len(self.taken), (question, obj.node)
        if asked in self.known:
            return self.known[asked]
        if i == _WAYS:
            raise UntraceableError("its forward loops on what it is given")
        self.taken.append(self.decided[i] if i < len(self.decided) else True)
        if obj.node.op == "placeholder":
            self.known[asked] = self.taken[-1]
        return self.taken[-1]

    def check(self) -> None:
        """Raise _InsideError where a module within failed, even if the model caught its error."""
        if self.failed is not None:
            raise _InsideError(self.failed)
