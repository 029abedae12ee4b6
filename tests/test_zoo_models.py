"""Models that people port, with few channels: outputs and gradients by nkiconv as by torch, their kernels simulated."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from commands import module_of
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch.utils._pytree import tree_leaves, tree_map

from nkiconv.pytorch import convert
from nkiconv.pytorch.models.flops import Counter
from nkiconv.pytorch.models.recording import FAKE, record

FOLDER = Path(__file__).resolve().parent / "zoo"
NAMES = ("AutoencoderKLWan", "AutoencoderKLHunyuanVideo", "AutoencoderKLLTXVideo", "AutoencoderKLCogVideoX",
         "AutoencoderKLTemporalDecoder", "UNet3DConditionModel", "EncodecModel", "MimiModel", "DacModel",
         "SpeechT5HifiGan", "VitsModel", "SamMaskDecoder")  # fmt: skip


@pytest.fixture(scope="module")
def zoo():
    with pytest.MonkeyPatch.context() as patch:
        yield module_of(FOLDER, "reduced", patch), module_of(FOLDER, "packages", patch)
        for name in ("zoo", "packages"):
            sys.modules.pop(name, None)


@pytest.fixture
def model(zoo, request, monkeypatch):
    """One of them, where its package is installed."""
    monkeypatch.setenv("NKICONV_CPU", "torch")
    reduced, packages = zoo
    found = {one.name: one for one in reduced.models()}[request.param]
    try:
        packages.ready(found.package)
    except ImportError:
        pytest.skip(f"{found.package} is not installed: `make zoo` installs it")
    return found


def results(made, inputs):
    """(outputs, gradients by name) of a run, the same random numbers in each."""
    torch.manual_seed(1)
    found = made(**inputs)
    leaves = tree_leaves(found.to_tuple() if hasattr(found, "to_tuple") else found)
    outputs = [one for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
    generator = torch.Generator().manual_seed(2)
    sum((y * torch.randn(y.shape, generator=generator).to(y.dtype)).sum() for y in outputs).backward()
    named = {name: one.grad for name, one in made.named_parameters() if one.grad is not None}
    made.zero_grad(set_to_none=True)
    return [y.detach() for y in outputs], named


@pytest.mark.slow
@pytest.mark.parametrize("model", NAMES, indirect=True)
def test_outputs_and_gradients(model):
    """By torch's functions its bits; by nkiconv's operators, which run where somebody watches, in float64."""
    made, inputs = model.made(), model.given()
    expected, _ = results(made, inputs)
    report = convert(made)
    found, _ = results(report.model, inputs)
    assert all(map(torch.equal, found, expected))
    wide = model.made().double()
    inputs = tree_map(
        lambda one: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one, inputs
    )
    expected, slopes = results(wide, inputs)
    with Counter() as counter:
        found, found_slopes = results(convert(wide).model, inputs)
    assert counter.share.fraction == 1
    assert_within_share(found, expected, FLOAT64_SUMS)
    assert found_slopes.keys() == slopes.keys()
    assert_within_share([*found_slopes.values()], [*slopes.values()], FLOAT64_SUMS)


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.parametrize("model", NAMES, indirect=True)
def test_kernels_agree(model, monkeypatch):
    """Of outputs and of gradients: `compare` raises where one is outside its bound."""
    made, inputs = model.made(), model.given()
    expected, _ = results(made, inputs)
    monkeypatch.setenv("NKICONV_CPU", "compare")
    with Counter() as counter:
        found, _ = results(convert(made).model, inputs)
    assert counter.share.fraction == 1  # else torch would agree with itself
    assert_within_share(found, expected, FLOAT32_SUMS)


def test_the_table_has_these(zoo):
    assert [one.name for one in zoo[0].models()] == list(NAMES)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers, and so Python 3.11")
@pytest.mark.parametrize("model", ["SpeechT5HifiGan"], indirect=True)
def test_one_of_them_runs_with_every_suite(model):
    made, inputs = model.made(), model.given()
    report = convert(made)
    assert len(report.swapped) >= 18
    assert torch.equal(report.model(**inputs), made(**inputs))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["EncodecModel", "MimiModel"], indirect=True)
def test_codecs_that_read_their_padding_are_planned_on_shapes_alone(model):
    made, inputs = model.made(), model.given()
    found, share = record(made, (), inputs), convert(made).share(**inputs)
    assert (found.ran_on, found.because) == (FAKE, "")
    assert (share.nkiconv, share.others, share.fraction) == (found.share.nkiconv, found.share.others, 1)
