"""Settings of the algorithms: whatever a config says is either refused by name or right, on 1 and 2 cores alike."""

import re

import pytest
from depthwise import Row
from draws import draws
from epilogue import PLAIN, check, refused
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems_for, requests

from nkiconv.kernels.depthwise_conv1d import ALGORITHMS

PROBLEM = Row("short filter", 2, 9, 60, 4, 1, (3, 0)).problem("fp32")

few = st.integers(1, 8)
shards = st.sampled_from(["channels", "columns", "batch"])


@st.composite
def recipes(draw, S, on_tensor, least):
    """Tuples of (tensor, vector_a, head, vector_b) whose taps are S; without Tensor, Scalar takes one more."""
    found = []
    for _ in range(draw(st.integers(least, 3))):
        tensor = draw(st.integers(0, S)) if on_tensor else 0
        rest = S - max(1, tensor)
        head = draw(st.integers(0, min(1, rest)))
        second = draw(st.integers(0, rest - head)) if head else 0
        found.append((tensor, rest - head - second, head, second))
    return tuple(found)


def row_settings(S, on_tensor):
    """Settings of `mixed` and `vector`."""
    return {
        "recipes": recipes(S, on_tensor, 1),
        "piece": st.integers(1, 700),
        "columns": st.integers(1, 700),
        "shard": shards,
        "start": recipes(S, on_tensor, 0),
        "end": recipes(S, on_tensor, 0),
        "warmup": st.integers(0, 8),
    }


def settings_of(algorithm, S):
    """A strategy for the value of each setting, by name."""
    if algorithm in ("mixed", "vector"):
        return row_settings(S, algorithm == "mixed")
    return {
        "banded": {"block": st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.integers(1, 128)),
         "shard": shards, "groups": st.integers(1, 40), "images": few, "buffers": st.integers(1, 16),
         "buffer_groups": few, "warmup": st.integers(0, 8), "edge": st.integers(0, 9), "streamed": st.integers(1, 12),
         "scratch": st.booleans(), "rewarm": st.integers(0, 8), "x_stationary": st.booleans()},
        "dot": {"block": st.sampled_from([1, 2, 4, 8, 16]), "slots": st.integers(1, 70), "warmup": few},
        "update": {"engine": st.sampled_from(["tensor", "vector"]), "vector_reads": st.integers(0, 4),
         "channels": st.integers(1, 128), "groups": st.integers(1, 16), "warmup": few},
    }.get(algorithm, {})  # fmt: skip


def configs(algorithm, S):
    """Configs with any of the settings."""
    values = settings_of(algorithm, S)
    return st.fixed_dictionaries({}, optional=values).map(lambda found: tuple(found.items()) or None)


CONFIGURABLE = [name for name in ALGORITHMS if settings_of(name, 1)]


@pytest.mark.cover(3)
@draws(30)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("algorithm", CONFIGURABLE)
def test_any_settings(algorithm, data, seed):
    most_channels = 12 if algorithm == "update" else 40
    problem = data.draw(problems_for(algorithm, widest=200, most_taps=20, most_channels=most_channels))
    request = data.draw(requests(problem))
    config = data.draw(configs(algorithm, problem.S))
    if refused(algorithm, problem, request, config=config) == "":
        check(problem, request, seed, whole=True, algorithm=algorithm, config=config)


BAD_VALUES = [0, -1, 10**9, 1.5, "x", None, (), (0,), ((1, 2),), True]


@pytest.mark.cover(30)
@pytest.mark.simulator_only
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("value", BAD_VALUES, ids=str)
@pytest.mark.parametrize(
    ("algorithm", "name"), [(algorithm, name) for algorithm in CONFIGURABLE for name in settings_of(algorithm, 1)]
)
def test_bad_values_are_refused_by_name_or_harmless(algorithm, name, value):
    """Never an error of Python's or of the simulator's: the kernel names the setting, or gives the right result."""
    config = ((name, value),)
    reason = refused(algorithm, PROBLEM, config=config)
    assert reason == "" or name in reason or re.search("instructions|bytes", reason)
    if reason == "":
        check(PROBLEM, PLAIN, 1, whole=True, algorithm=algorithm, config=config)
