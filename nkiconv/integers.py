"""Ints as Python has them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: What operator.index takes, or may take, and yet is no number here: flags, and arrays of data.
_NO_NUMBERS = (bool, np.bool_, np.ndarray, str, type(None))


def plain_ints(value: Any) -> Any:
    """Python's int for what operator.index takes, as NumPy's ints, in tuples and lists too; all else as it is."""
    if type(value) is int or isinstance(value, _NO_NUMBERS):
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
    """The function, called with `plain_ints` of all its arguments."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*map(plain_ints, args), **{name: plain_ints(value) for name, value in kwargs.items()})

    return called  # type: ignore[return-value]
