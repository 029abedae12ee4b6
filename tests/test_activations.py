"""An activation stands in several tables, by what each layer knows of it: all of them have the names of the home."""

from pathlib import Path

import pytest

from nkiconv import bounds, reference, rules
from nkiconv.kernels import _epilogue

ROOT = Path(__file__).parents[1]
NAMES = set(rules.ACTIVATIONS)


def test_the_reference_and_the_bounds_have_every_activation():
    assert set(reference.ACTIVATIONS) == NAMES, "nkiconv/reference.py: ACTIVATIONS, its value in float64"
    assert set(bounds.SLOPE) == NAMES, "nkiconv/bounds.py: SLOPE, its steepest slope"


def test_the_torch_layer_has_every_activation():
    pytest.importorskip("torch")
    from nkiconv.pytorch.computers import host
    from nkiconv.pytorch.operators import gradients

    assert set(host._ACTIVATE) == NAMES, "nkiconv/pytorch/computers/host.py: _ACTIVATE, torch's function"
    slopes = {*gradients._BY_RESULT, *gradients._BY_ARGUMENT}
    assert slopes == NAMES, "nkiconv/pytorch/operators/gradients.py: its derivative, by y or by z"


@pytest.mark.parametrize("name", rules.ACTIVATIONS)
def test_the_kernels_have_a_function_for_every_activation(name):
    epilogue = _epilogue.Epilogue(activation=name, bias=False, residual="", y_itemsize=4)
    assert _epilogue.function_of(epilogue) is not _epilogue.nl.copy


def test_the_page_lists_them():
    assert f"| `activation` | {', '.join(reference.ACTIVATIONS)}," in (ROOT / "docs" / "numpy.md").read_text()
