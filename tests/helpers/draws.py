"""How much of a table or of random examples `make test` runs: a quarter of the examples, one number of cores a row."""

import os
import zlib

import hypothesis

#: What hypothesis draws of itself, and `make test-all` with it.
WHOLE = 100


def draws(count: int, at_length: int | None = None) -> hypothesis.settings:
    """Settings of a test that draws a quarter of so many examples in `make test`, as the profile of conftest.py says;
    in `make test-all` as many, or as at_length says."""
    share = hypothesis.settings.default.max_examples
    return hypothesis.settings(max_examples=max(1, (at_length or count if share == WHOLE else count * share // WHOLE)))


def cores(*row: object) -> tuple[int, ...]:
    """Numbers of cores that a test of exact results runs on: 1 and 2 in `make test-all`; in `make test` one of them,
    which is the same in every run, by the test's name and what it runs (no arrays)."""
    if hypothesis.settings.default.max_examples == WHOLE:
        return 1, 2
    name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    return (1 + zlib.crc32(f"{name} {row}".encode()) % 2,)
