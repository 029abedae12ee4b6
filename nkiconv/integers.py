"""Numbers as Python has them, and arrays where only those belong."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from .errors import DtypeError, NkiconvError, is_array, raise_all, refused, shown

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: The largest number of fp32.
FP32_MAX = float(np.finfo(np.float32).max)
#: Types that operator.index may take and that are no numbers here: flags, and arrays of data.
_NO_NUMBERS = (bool, np.bool_, np.ndarray, str, type(None))


def is_int(value: Any) -> bool:
    """Whether this is an int, and no flag."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_pair(value: Any) -> bool:
    """Whether this is a tuple of two ints."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_int, value))


def is_finite(value: Any) -> bool:
    """Whether this is an int or float that fp32 holds, as kernels compute."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= FP32_MAX


def plain_ints(value: Any) -> Any:
    """Python ints in place of others, such as NumPy's, also in tuples and lists; other values unchanged."""
    if type(value) is int or isinstance(value, _NO_NUMBERS) or str(getattr(value, "dtype", "")) == "torch.bool":
        return value
    if isinstance(value, tuple):
        return tuple(map(plain_ints, value))
    if isinstance(value, list):
        return [plain_ints(one) for one in value]
    try:
        return operator.index(value)
    except TypeError:
        return value


def takes_ints(function: _Function) -> _Function:
    """The function, called with `plain_ints` of all its arguments, and Python's floats in place of NumPy's.

    An array where its annotations have no AnyArray, and a shape where they have, are refused with a DtypeError that
    says in which order arguments come; so are arrays without data, or with a mask.
    """
    parameters = inspect.signature(function).parameters
    wants_array = {name: "AnyArray" in str(one.annotation) for name, one in parameters.items() if one.kind not in _MORE}
    if not any(wants_array.values()):  # flags that stand for arrays, and problems, have a text of their own
        wants_array = {
            name: wanted for name, wanted in wants_array.items() if parameters[name].annotation not in _OTHERS
        }
    order = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    floats = {name for name, one in parameters.items() if one.annotation == "float"}
    name_of = getattr(function, "__name__", "")

    def violations(given: dict[str, Any]) -> Iterator[NkiconvError]:
        for name, value in given.items():
            is_shape = type(value) is tuple and len(value) > 0 and all(type(one) is int for one in value)
            if (is_array(value) and not wants_array.get(name, True)) or (is_shape and wants_array.get(name, False)):
                yield DtypeError(
                    f"{name}={shown(value)}: must be {'an' if is_shape else 'no'} array; {name_of} takes "
                    f"{', '.join(order)} in this order"
                )
            elif wants_array.get(name, False):
                yield from refused(DtypeError, *_without_values(name, value))

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tuple(map(plain_ints, args)), {name: plain_ints(value) for name, value in kwargs.items()}
        kwargs |= {name: float(one) for name, one in kwargs.items() if name in floats and isinstance(one, np.floating)}
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        raise_all(f"{name_of} cannot run this call", list(violations(given)))
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]


def _without_values(name: str, value: Any) -> Iterator[str]:
    """Why an array, or each of several, has no values that a kernel could take."""
    if isinstance(value, (tuple, list)):
        for index, one in enumerate(value):
            yield from _without_values(f"{name}[{index}]", one)
    elif isinstance(value, np.ma.MaskedArray):
        yield f"{name}: is a masked array, and a kernel has no mask; pass {name}.filled(value)"
    elif is_array(value) and not hasattr(value, "__array__"):
        yield f"{name}: is {shown(value)} without data; pass an array"


#: Annotations whose values functions without array arguments refuse if they are arrays.
_OTHERS = ("bool", "ConvProblem")
#: Parameters that stand for any others, which the function passes on.
_MORE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
