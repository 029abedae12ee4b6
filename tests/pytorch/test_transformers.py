"""Models of transformers give by nkiconv what they give by torch: outputs, derivatives of inputs, steps of decoding."""

import dataclasses
import importlib
import sys

import numpy as np
import pytest
import torch
from tolerances import FLOAT32_SUMS, assert_within_share

from nkiconv import pytorch as nkiconv_torch

if sys.version_info < (3, 11):  # elsewhere the extra `dev` has it, and a missing one is a failure
    pytest.skip("transformers needs Python 3.11", allow_module_level=True)

import compare_models
from transformers_models import MODELS

STEPS = 2


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "torch")
    importlib.import_module("transformers").logging.set_verbosity_error()


@pytest.mark.cover(4)
@pytest.mark.parametrize("mode", ["torch", "compare"])
@pytest.mark.parametrize("name", MODELS)
def test_models(monkeypatch, name, mode):
    """fp32 sums in another order; `compare` raises where a kernel is outside its own bound too."""
    model = MODELS[name]
    made, convolutions = model.with_nkiconv()
    share = nkiconv_torch.convert(made, causal_conv1d=False, functional=False).share(**{model.argument: model.input()})
    assert (convolutions > 0, share.fraction) == (True, 1)
    expected = compare_models.results(model, model.build())
    monkeypatch.setenv("NKICONV_CPU", mode)
    found = compare_models.results(model, made)
    for field in dataclasses.fields(found):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert (one is None) == (other is None) == (field.name == "steps" and model.cache is None)
        if one is not None:
            assert_within_share([one], [other], FLOAT32_SUMS)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].cache])
def test_convert_reaches_what_decoders_call_as_functions(name):
    """The file is imported long before; its layers never call the convolutions that they have."""
    model = MODELS[name]
    made, x = model.build(), model.input()
    with torch.no_grad():
        expected, steps = model.run(made, x), model.decode(made, x, STEPS)
    assert nkiconv_torch.convert(made, causal_conv1d=False, functional=False).share(**{model.argument: x}).fraction == 0
    report = nkiconv_torch.convert(made)
    with report.installation, torch.no_grad():
        assert len(report.by_function) == len(report.entries) > 0
        assert report.share(**{model.argument: x}).fraction == 1
        assert_within_share([model.run(report.model, x)], [expected], FLOAT32_SUMS)
        assert_within_share([model.decode(report.model, x, STEPS)], [steps], FLOAT32_SUMS)
    assert torch.equal(model.run(made, x), expected)


def test_the_table_names_kernels_that_disagree(monkeypatch, capsys):
    """The bound is what decides: with none, every kernel but an exact one is off."""
    monkeypatch.setattr(
        "nkiconv.pytorch.computers.simulated.epilogue_bound",
        lambda terms, magnitude, *_: np.full(magnitude.shape, 1e-30),
    )
    with pytest.raises(SystemExit) as stop:
        compare_models.main(["vit"])
    assert stop.value.code == 1
    assert "the kernel and torch differ by" in capsys.readouterr().out
