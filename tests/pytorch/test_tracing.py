"""Traces, exports and graphs of our functions and modules hold for whatever torch's own hold for."""

import pytest
import torch
from chained import made
from torch import nn
from torch.export import Dim, export

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError


def to_size(conv):
    """A transposed convolution that is told its result's extents, of its input's."""
    return made(lambda m, x: m.conv(x, output_size=[2 * x.shape[2] + 1, 2 * x.shape[3] + 2]), conv=conv)


#: Modules of torch.nn, or ours of that name, and an input's shape.
TRACED = {
    "transposed rows": (lambda of: of.ConvTranspose1d(4, 4, 3, stride=2), (2, 4, 8)),
    "transposed images": (lambda of: of.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1), (2, 4, 8, 6)),
    "transposed volumes": (lambda of: of.ConvTranspose3d(4, 4, 3, padding=1), (2, 4, 4, 3, 5)),
    "to a size": (lambda of: to_size(of.ConvTranspose2d(4, 4, 3, stride=2)), (2, 4, 8, 6)),
    "same rows": (lambda of: of.Conv1d(4, 4, 3, padding="same", groups=4), (2, 4, 8)),
    "same images": (lambda of: of.Conv2d(4, 4, (3, 4), padding="same", dilation=2), (2, 4, 8, 6)),
    "one image": (lambda of: of.Conv2d(4, 4, 3, stride=2, padding=1), (4, 8, 6)),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("make", "shape"), TRACED.values(), ids=TRACED)
def test_jit_traces_hold_for_other_extents(make, shape):
    theirs, ours = make(nn), make(pytorch.nn)
    ours.load_state_dict(theirs.state_dict())
    traced = torch.jit.trace(ours, torch.randn(shape))
    x = torch.randn([*shape[:2], *(extent + 3 for extent in shape[2:])])
    torch.testing.assert_close(traced(x), theirs(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_jit_traces_causal_rows():
    layer, x = pytorch.nn.CausalConv1d(4, 6, 3, dilation=2), torch.randn(2, 4, 13)
    traced = torch.jit.trace(layer, torch.randn(2, 4, 8))
    expected = nn.functional.conv1d(nn.functional.pad(x, (4, 0)), layer.weight, layer.bias, dilation=2)
    torch.testing.assert_close(traced(x), expected)


class Codec(nn.Module):
    """Of each kind of function one, with what is fused."""

    def __init__(self):
        super().__init__()
        self.rows = pytorch.nn.CausalConv1d(4, 6, 3, activation="silu")
        self.up = pytorch.nn.ConvTranspose1d(6, 4, 4, stride=2)
        self.image = pytorch.nn.Conv2d(1, 1, 4, padding="same", activation="gelu")
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        y, state = pytorch.causal_conv1d_fn(self.up(self.rows(x)), self.weight, return_final_states=True)
        return self.image(y[:, None], residual=y[:, None]), state


def under_onnx(function):
    """What torch.onnx.export calls, which takes onnxscript for the rest."""
    from torch.onnx._internal.exporter import _flags

    return _flags.set_onnx_exporting_flag(function)()


def test_onnx_gets_torchs_convolutions():
    model, x = Codec().eval(), torch.randn(2, 4, 9)
    program = under_onnx(lambda: export(model, (x,), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO},)))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert not [name for name in names if "nkiconv" in name]
    assert sum("conv" in name for name in names) == 4
    other = torch.randn(3, 4, 14)
    for one, two in zip(program.module()(other), model(other), strict=True):
        torch.testing.assert_close(one, two)


def test_onnx_refuses_our_operators_by_name():
    program = export(pytorch.nn.Conv2d(4, 4, 3), (torch.randn(1, 4, 8, 8),))
    with pytest.raises(UnsupportedError, match=r"^torch\.onnx\.export: ONNX has no nkiconv::conv2d; pass the model"):
        under_onnx(program.run_decompositions)
