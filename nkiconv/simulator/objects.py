"""Objects of kernels besides tensors: NKIObject classes, registers, `nl.ds`, ints, dtypes."""

from __future__ import annotations

import contextlib
import inspect
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from .dtypes import DTYPES, GEN4_DTYPES, canonical
from .rules import fail

if TYPE_CHECKING:
    from .program import Instruction


class NKIObject:
    """Base of classes that kernels may define: fields become arguments of a generated ``__init__``.

    A field has an annotation or a value; without a value it is None. NKI's compiler makes the same initialiser with and
    without @dataclass (language guide), so all of that holds for @dataclass too.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = dict(inspect.get_annotations(cls))
        for name, value in list(vars(cls).items()):
            if name not in known and not name.startswith("__") and not _is_member(value):
                known[name] = Any
        if known:
            cls.__annotations__ = known
        for name in known:
            if not hasattr(cls, name):
                setattr(cls, name, None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = [*dict.fromkeys(n for cls in reversed(type(self).__mro__) for n in inspect.get_annotations(cls))]
        values = dict(zip(names, args, strict=False))
        wrong = (set(kwargs) - set(names)) | (set(kwargs) & set(values))
        if wrong or len(args) > len(names):
            given = f"{len(args)} positional and {sorted(kwargs)}"
            raise TypeError(f"{type(self).__name__} takes each of the fields {names} at most once, got {given}")
        values.update(kwargs)
        for name in names:
            setattr(self, name, values.get(name, getattr(type(self), name, None)))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Hook for subclasses, called after the generated ``__init__``."""


def _is_member(value: Any) -> bool:
    """Whether a class's attribute is a method, property, slot or class rather than a field's default."""
    return callable(value) or inspect.isdatadescriptor(value) or isinstance(value, (staticmethod, classmethod))


class DeviceInteger(NKIObject):
    """An integer that only the device knows: unknown while the kernel is built, so it steers no Python (NKI032)."""

    __slots__ = ("set_by", "value")
    dtype: str
    #: as refusals call it, and their remedy for Python's operators
    kind = "a register"
    advice = "compute with nisa.register_* or index with nl.ds(register, n)"

    def __init__(self, value: int | None = None) -> None:
        self.value = value
        #: the last instruction that set it
        self.set_by: Instruction | None = None

    def _refuse(self) -> NoReturn:
        fail("NKI032", f"{self.kind} used as a Python value")

    def __bool__(self) -> bool:
        self._refuse()

    def __int__(self) -> int:
        self._refuse()

    def __index__(self) -> int:
        self._refuse()

    def __eq__(self, other: object) -> bool:
        if other is not None and other is not self:
            self._refuse()
        return other is self

    __hash__ = object.__hash__

    def _combined(self, other: Any) -> Any:
        fail("NKI032", f"{self.kind} in Python arithmetic; {self.advice}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _combined
    __mod__ = __rmod__ = __lt__ = __le__ = __gt__ = __ge__ = _combined


class VirtualRegister(DeviceInteger):
    """A 32-bit register of the engines' sequencers."""

    __slots__ = ("frozen",)
    dtype = "int32"

    def __init__(self, value: int | None = None, frozen: bool = False) -> None:
        super().__init__(value)
        self.frozen = frozen


@dataclass(frozen=True)
class DynamicSlice:
    """`nl.ds(start, size)`: elements start .. start + size - 1."""

    start: Any
    size: int


def dtype_name(dtype: Any) -> str:
    """A dtype as kernels write it: one of nki.language's that trn2 stores (NKI001, NKI049)."""
    if type(dtype) is str and dtype in GEN4_DTYPES:
        fail("NKI049", f"dtype {dtype} needs NeuronCore-v4 (trn3); the target is trn2")
    if type(dtype) is not str or dtype not in DTYPES:
        meant = canonical(dtype)
        hint = f"; write nl.{meant}" if meant else f"; trn2 stores {', '.join(DTYPES)}"
        fail("NKI001", f"dtype={dtype!r} is not a dtype of nki.language{hint}")
    return dtype


def listed(value: Any) -> tuple[Any, ...]:
    """A list or tuple as a tuple; of all else nothing."""
    return tuple(value) if isinstance(value, (list, tuple)) else ()


def as_int(value: Any, what: str, rule: str = "NKI006") -> int:
    """A compile-time int; bools, floats, tensors and registers are refused by name."""
    if type(value) is int:
        return value
    found = None
    if type(value) is not bool:
        with contextlib.suppress(TypeError):
            found = operator.index(value)
    if found is None:
        fail(rule, f"{what}={value!r} must be a compile-time int")
    return found
