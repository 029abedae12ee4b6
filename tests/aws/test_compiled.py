"""Models through torch.compile: each convolution is one launch in the graph, forward and backward, with its plan."""

import copy
import itertools

import pytest
import torch
from functorch.compile import make_boxed_func
from launched import FILTERS, follows_plan
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch_models import MODELS, build
from torch_neuronx import launches_of

from nkiconv import pytorch


class Graphs:
    """A compiler that keeps the graphs that it is given and runs them as they are, as "neuron" would compile them."""

    def __init__(self):
        self.forward, self.backward = [], []

    def backend(self):
        def keep(graphs):
            def compiled(module, inputs):
                graphs.append(module.graph)
                return make_boxed_func(module.forward)

            return compiled

        return aot_autograd(fw_compiler=keep(self.forward), bw_compiler=keep(self.backward))


@pytest.fixture
def graphs(monkeypatch):
    found = Graphs()
    torch._dynamo.reset()
    backends = torch._dynamo.backends.registry
    monkeypatch.setitem(backends._COMPILER_FNS, "neuron", found.backend())
    monkeypatch.setitem(backends._BACKENDS, "neuron", None)
    yield found
    torch._dynamo.reset()


def compiled(model, **more):
    return torch.compile(model, backend="neuron", fullgraph=True, **more)


def near(one, other):
    assert_within_share([one], [other], FLOAT32_SUMS)


class Causal(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6))
        self.activation = activation

    def forward(self, x, states):
        y, final = pytorch.causal_conv1d_fn(
            x, self.weight, self.bias, initial_states=states, return_final_states=True, activation=self.activation
        )
        return y * 2, final


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "convnext", "conformer"])
def test_each_convolution_is_one_launch(name, launches, searched, graphs):
    """Backward two: the gradient of its input, as the first one's is wanted too, and that of its filters and bias."""
    plain, x = build(name)
    model = pytorch.convert(copy.deepcopy(plain)).model
    count = len(MODELS[name][2])
    results = []
    for one in (plain, compiled(model)):
        given = x.clone().requires_grad_()
        y = one(given)
        y.square().sum().backward()
        results.append([y, given.grad, *(parameter.grad for parameter in one.parameters())])
    for theirs, ours in zip(*results, strict=True):
        near(ours, theirs)
    [forward], [backward] = graphs.forward, graphs.backward
    told = launches_of(forward), launches_of(backward)
    assert [len(one) for one in told] == [count, 2 * count]
    assert [*told[0], *told[1]] == launches  # what the graphs hold is what ran
    asked = len(searched)
    assert asked <= 3 * count
    assert all(map(follows_plan, launches))
    assert len(searched) == asked  # each was planned by then
    torch._dynamo.reset()
    compiled(model)(x)
    assert len(searched) == asked


@pytest.mark.cover(1)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_states(activation, launches, searched, graphs):
    torch.manual_seed(0)
    model = Causal(activation)
    x, states = torch.randn(2, 6, 9, requires_grad=True), torch.randn(2, 6, 3, requires_grad=True)
    y, final = compiled(model)(x, states)
    (y.sum() + final.sum()).backward()
    ours = [y, final, x.grad, states.grad, model.weight.grad, model.bias.grad]
    x.grad = states.grad = model.weight.grad = model.bias.grad = None
    rows = torch.cat([states, x], 2)
    expected = torch.nn.functional.conv1d(rows, model.weight[:, None], model.bias, groups=6)
    expected = 2 * (expected if activation is None else torch.nn.functional.silu(expected))
    (expected.sum() + rows[..., -3:].sum()).backward()
    theirs = [expected, rows[..., -3:], x.grad, states.grad, model.weight.grad, model.bias.grad]
    for one, other in zip(ours, theirs, strict=True):
        near(one, other)
    [forward], [backward] = graphs.forward, graphs.backward
    [told] = launches_of(forward)
    assert told.constants["return_final_state"] is True
    again = 0 if activation is None else 1  # silu's derivative needs the sums once more
    assert len(launches_of(backward)) == 2 + again
    assert all(map(follows_plan, [told, *launches_of(backward)]))


@pytest.mark.cover(1)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_packed_sequences(activation, launches, searched, graphs):
    """Their offsets are data, of which no kernel depends on more than how many there are."""
    torch.manual_seed(0)
    x, w, states = (torch.randn(shape, requires_grad=True) for shape in ((1, 4, 9), (4, 3), (3, 4, 2)))
    lengths = torch.tensor([0, 2, 3, 9]), torch.tensor([0, 4, 5, 9])

    def packed(x, w, states, cu_seqlens):
        return pytorch.causal_conv1d_fn(
            x, w, initial_states=states, cu_seqlens=cu_seqlens, return_final_states=True, activation=activation
        )

    def each(x, w, states, cu_seqlens):
        ys, finals = [], []
        for i, (start, end) in enumerate(itertools.pairwise(cu_seqlens)):
            row = torch.cat([states[i : i + 1], x[..., start:end]], 2)
            ys.append(nn.functional.conv1d(row, w[:, None], groups=4))
            finals.append(row[..., -2:])
        y = torch.cat(ys, 2)
        return y if activation is None else nn.functional.silu(y), torch.cat(finals)

    for cu_seqlens in lengths:
        results = []
        for function in (compiled(packed), each):
            y, final = function(x, w, states, cu_seqlens)
            grads = torch.autograd.grad((y.square().sum() + final.sum()), (x, w, states))
            results.append((y, final, *grads))
        for ours, theirs in zip(*results, strict=True):
            near(ours, theirs)
    [forward], [backward] = graphs.forward, graphs.backward  # compiled once
    told = launches_of(forward), launches_of(backward)
    assert [len(one) for one in told] == [1, 2 if activation is None else 3]
    assert all(one.constants["strict_nonfinite"] for one in told[0])
    assert [*told[0], *told[1]] * 2 == launches
    assert all(map(follows_plan, launches))


def test_sequences_that_data_alone_tell_are_refused_by_name(launches, graphs):
    def packed(x, w, seq_idx):
        return pytorch.causal_conv1d_fn(x, w, seq_idx=seq_idx)

    arguments = torch.randn(1, 9, 4).transpose(1, 2), torch.randn(4, 3), torch.tensor([[0, 0, 1, 1, 1, 1, 2, 2, 2]])
    packed(*arguments)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"seq_idx\.shape=\(1, 9\): .*pass cu_seqlens"):
        compiled(packed)(*arguments)
    assert len(launches) == 1


class Fused(nn.Module):
    """A convolution with all that a kernel adds to it, then a change in place."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(70, 128, 3, padding=1)
        self.packed = pytorch.pack_filter(self.convolution.weight.detach())

    def forward(self, x, residual):
        layer = self.convolution
        y = pytorch.conv2d(
            x, layer.weight, layer.bias, padding=1, residual=residual, activation="silu", packed=self.packed
        )
        return y.mul_(3)


def test_epilogues_packed_filters_and_changes_in_place(launches, searched, graphs):
    torch.manual_seed(0)
    model, x, residual = Fused(), torch.randn(1, 70, 4, 5), torch.randn(1, 128, 4, 5)
    y = compiled(model)(x, residual)
    y.sum().backward()
    ours = [y.detach(), *(one.grad.clone() for one in model.parameters())]
    model.zero_grad()
    expected = 3 * nn.functional.silu(model.convolution(x) + residual)
    expected.sum().backward()
    for one, other in zip(ours, [expected, *(one.grad for one in model.parameters())], strict=True):
        near(one, other)
    [told] = launches_of(graphs.forward[0])
    assert told.shapes["filter_ref"] == (1, 70, 3, 3, 128)
    assert set(told.shapes) == {"img_ref", "filter_ref", "bias", "residual"}
    assert (told.constants["activation"], told.constants["residual_position"]) == ("silu", "pre_activation")
    # the sums, which silu's derivative needs, and the gradient of filters and bias; x wants none
    [again, filters] = launches_of(graphs.backward[0])
    assert "activation" not in again.constants
    assert (filters.kernel, filters.constants["bias_gradient"]) == (FILTERS[0], True)
    assert all(map(follows_plan, (told, again, filters)))


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["conv1d", "depthwise_conv1d", "conv2d"])
def test_dynamic_shapes_become_numbers(kind, launches, searched, graphs):
    """A kernel is compiled for a shape: another one compiles, and plans, another kernel."""
    layers = {
        "conv1d": (nn.Conv1d(4, 6, 3), (4, 9)),
        "depthwise_conv1d": (nn.Conv1d(4, 4, 3, groups=4), (4, 9)),
        "conv2d": (nn.Conv2d(4, 6, 3), (4, 5, 6)),
    }
    layer, shape = layers[kind]
    layer.requires_grad_(False)  # or compiling plans the gradient of filters too
    model = compiled(pytorch.convert(copy.deepcopy(layer)).model, dynamic=True)
    for N in (2, 3, 2):
        x = torch.randn(N, *shape)
        near(model(x), layer(x))
    assert [one.shapes["img_ref"][0] for one in launches] == [2, 3, 2]
    assert len(searched) == 2
    assert all(map(follows_plan, launches))
