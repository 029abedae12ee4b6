"""Traces, exports and graphs of our functions and modules hold for whatever torch's own hold for."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx
from torch_exact import same

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError

#: Two convolutions that halve, of each rank, and the shape of an input.
HALVING = [
    (lambda: [nn.Conv1d(3, 8, 3, stride=2, padding=1), nn.Conv1d(8, 8, 3, stride=2, padding=1)], (2, 3, 24)),
    (lambda: [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)], (2, 3, 24, 32)),
    (lambda: [nn.Conv2d(3, 8, 2, stride=2), nn.ConvTranspose2d(8, 3, 2, stride=2)], (2, 3, 24, 32)),
]


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("layers", "shape"), HALVING)
def test_export_narrows_no_extent(layers, shape, strict):
    model = nn.Sequential(*layers())
    dynamic = (dict.fromkeys((0, *range(2, len(shape))), Dim.AUTO),)
    ranges = []
    for one in (model, pytorch.convert(model).model):
        program = export(one, (torch.randn(shape),), dynamic_shapes=dynamic, strict=strict)
        ranges.append([(found.lower, found.upper) for found in program.range_constraints.values()])
    assert ranges[0] == ranges[1]
    assert len(ranges[0]) == len(shape) - 1


class ToSize(nn.Module):
    """A transposed convolution that is told its result's extents, of its input's."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x):
        return self.conv(x, output_size=[2 * x.shape[2] + 1, 2 * x.shape[3] + 2])


#: Modules of torch.nn, or ours of that name, and an input's shape.
TRACED = {
    "transposed rows": (lambda of: of.ConvTranspose1d(4, 4, 3, stride=2), (2, 4, 8)),
    "transposed images": (lambda of: of.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1), (2, 4, 8, 6)),
    "transposed volumes": (lambda of: of.ConvTranspose3d(4, 4, 3, padding=1), (2, 4, 4, 3, 5)),
    "to a size": (lambda of: ToSize(of.ConvTranspose2d(4, 4, 3, stride=2)), (2, 4, 8, 6)),
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


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("mode", ["torch", "simulate"])
def test_make_fx_of_a_step_with_indices(mode, pre_dispatch, monkeypatch):
    """Numbers that a tracer does not tell are not checked."""
    monkeypatch.setenv("NKICONV_CPU", mode)

    def step(x, state, weight, rows):
        return pytorch.causal_conv1d_update(x, state, weight, activation="silu", conv_state_indices=rows), state

    x, state, weight, rows = torch.randn(2, 4), torch.randn(3, 4, 2), torch.randn(4, 3), torch.tensor([2, -1])
    graph = make_fx(step, pre_dispatch=pre_dispatch)(x, state.clone(), weight, rows)
    assert same(graph(x, state.clone(), weight, rows), step(x, state.clone(), weight, rows))


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


class Block(nn.Module):
    """One of those that a model repeats, which users compile one by one, as diffusers' compile_repeated_blocks does."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(64, 64, 3, padding=1), nn.ConvTranspose2d(64, 64, 1)

    def forward(self, x):
        return torch.relu(self.out(self.conv(x)))


@pytest.mark.slow
@pytest.mark.parametrize("filters", ["plain", "frozen"])
def test_repeated_blocks_share_compiled_code(filters):
    """As many as torch compiles of one frame before it gives up, and one more."""
    torch._dynamo.reset()
    model, x, graphs = nn.Sequential(*(Block() for _ in range(9))).eval(), torch.randn(1, 64, 3, 3), []
    converted = pytorch.convert(model).model

    def backend(graph, _):
        graphs.append(graph)
        return graph

    for block in converted:
        if filters == "frozen":
            block.conv.pack_filter()
        block.compile(fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(converted(x), model(x))
    assert len(graphs) == 1


def test_compiled_code_that_compares_knows_its_layers(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setenv("NKICONV_CPU", "compare")
    graphs, converted = [], pytorch.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3))).model
    torch.compile(converted, backend=lambda graph, _: graphs.append(graph) or graph)(torch.randn(1, 3, 6, 6))
    calls = [node.args for graph in graphs for node in graph.graph.nodes if "nkiconv" in str(node.target)]
    assert [args[11] for args in calls] == ["0", "1"]
