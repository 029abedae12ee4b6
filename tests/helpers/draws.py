"""How many random examples a test draws: a quarter of them in `make test`, all in `make test-all`."""

import hypothesis

#: What hypothesis draws of itself, and `make test-all` with it.
WHOLE = 100


def draws(count: int) -> hypothesis.settings:
    """Settings of a test that draws so many examples in `make test-all`, as the profile of conftest.py says."""
    return hypothesis.settings(max_examples=max(1, count * hypothesis.settings.default.max_examples // WHOLE))
