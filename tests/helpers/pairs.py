"""Pairs of calls for the simulator's rules: the smallest that must pass and the nearest that must raise.

A pair holds two kernel bodies without arguments. `run` executes one as a kernel that returns nothing.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from nkiconv import simulator
from nkiconv.simulator.rules import RULES


@dataclass(frozen=True)
class Pair:
    """`passes` runs without error; `raises` breaks exactly the rule `rule` and its message matches `match`."""

    rule: str
    why: str
    passes: Callable[[], Any]
    raises: Callable[[], Any]
    match: str = ""
    lnc: int = 1

    @property
    def id(self) -> str:
        return f"{self.rule}-{self.why.replace(' ', '_')}"


def run(body: Callable[[], Any], lnc: int = 1, *, trace_only: bool = False) -> simulator.Execution:
    """Execute a body as a kernel on `lnc` cores and keep its records."""
    kernel = simulator.jit(body)
    return simulator.execute(kernel[lnc] if lnc > 1 else kernel, (), trace_only=trace_only)


def inside(check: Callable[..., None]) -> Callable[..., None]:
    """A test that is a kernel's body."""

    @functools.wraps(check)
    def test(**given: Any) -> None:
        run(lambda: check(**given))

    return test


def dropped(result: Any) -> None:
    """Nothing: kernels must not return on-chip tensors."""


def vary(rule: str, why: str, call: Callable[[Any], Any], good: Any, bad: Any, match: str = "", lnc: int = 1) -> Pair:
    """A pair of one call whose argument is `good` or `bad`; its result is dropped."""
    return Pair(rule, why, lambda: dropped(call(good)), lambda: dropped(call(bad)), match, lnc)


def check(pair: Pair, file: str) -> None:
    """One side passes, the other raises in this file."""
    run(pair.passes, pair.lnc)
    with pytest.raises(simulator.NkiError, match=pair.match) as caught:
        run(pair.raises, pair.lnc)
    check_error(caught.value, pair.rule, pair.match, file)


def each_pair(pairs: Sequence[Pair], file: str) -> Callable[[Pair], None]:
    """A test, in this file, of each of these pairs, which have names of their own."""
    names = [pair.id for pair in pairs]
    assert sorted(set(names)) == sorted(names)

    @pytest.mark.parametrize("pair", pairs, ids=names)
    def test(pair: Pair) -> None:
        check(pair, file)

    return test


def check_error(error: simulator.NkiError, rule: str, match: str, file: str = "") -> None:
    """An NkiError names its rule, what was seen, the source line and the remedy."""
    assert error.rule == rule
    assert re.search(match, error.detail), error.detail
    assert error.location.partition(":")[0] == file
    assert error.remedy == RULES[rule].remedy
    assert str(error).startswith(f"{rule}: {error.op}: ")
