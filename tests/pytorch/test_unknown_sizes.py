"""Graphs for images and sequences of unknown size: torch.export with named dims, torch.compile with dynamic=True."""

import inspect

import fused_models as fm
import pytest
import torch
from chained import C, close, image, pair, terms_of
from torch import nn
from torch.export import Dim, export

from nkiconv import pytorch

MODELS = {
    "image": (lambda: fm.ranked("GroupNorm", 2), (2, C, 7, 9)),
    "sequence": (lambda: fm.ranked("GroupNorm", 1), (2, C, 9)),
    "video": (lambda: fm.ranked("InstanceNorm", 3), (2, C, 5, 7, 9)),
    "residual": (fm.basic, (2, 3, 7, 9)),
    "decoder": (fm.decoder, (2, 4, 7, 9)),
    "ConvNeXt": (fm.ConvNext, (2, C, 7, 9)),
}
FUNCTIONS = {
    "depthwise_conv1d": (lambda x, w: pytorch.depthwise_conv1d(x, w, padding="same"), C, (C, 1, 3)),
    "gated_short_conv": (pytorch.gated_short_conv, 3 * C, (C, 3)),
    "glu_conv1d": (lambda x, w: pytorch.glu_conv1d(x, w, padding=1), 2 * C, (C, 3)),
}


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("grad", [False, True])
def test_fused_models_export(make, shape, grad):
    """Also for as many images as there are channels, which no guard may tell apart."""
    (found, model), x = pair(make), image(*shape)
    dims = {0: Dim("images", min=2), 2: Dim("rows", min=3)}
    with torch.set_grad_enabled(grad):
        graph = export(found, (x,), dynamic_shapes=(dims,)).module()
    with torch.no_grad():
        for other in (x, image(C, shape[1], 70, *shape[3:])):
            assert close(graph(other), model(other), terms_of(model))


@pytest.mark.parametrize(("function", "channels", "shape"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_rows_compile_whole(function, channels, shape):
    compiled, w = torch.compile(function, backend="aot_eager", dynamic=True, fullgraph=True), image(*shape)
    for x in (image(2, channels, 9), image(3, channels, 14)):
        assert torch.equal(compiled(x, w), function(x, w))


@pytest.mark.parametrize("make", [fm.decoder, fm.Grown, fm.basic, fm.ConvNext])
def test_forwards_keep_their_signatures(make):
    """Trainers choose a data set's columns by them."""
    found, model = pair(make)
    for one, other in zip(found.modules(), model.modules(), strict=True):
        if not isinstance(one, nn.modules.conv._ConvNd):
            assert inspect.signature(one.forward) == inspect.signature(other.forward)
