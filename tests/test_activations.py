"""An activation is a row of `activations.ACTIVATIONS` and a function in the kernels' epilogue, and a word on a page."""

from pathlib import Path

import pytest

from nkiconv.kernels import _epilogue
from nkiconv.rules import ACTIVATIONS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_kernels_have_every_activation(name):
    assert name in _epilogue.FUNCTIONS, "nkiconv/kernels/_epilogue.py: what issues it"


def test_the_page_lists_them():
    assert f"| `activation` | {', '.join(ACTIVATIONS)}," in (ROOT / "docs" / "numpy.md").read_text()
