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


def both(function, reference, leaves, *more):
    """A compiled function and its reference have the same results, and gradients of these by leaves."""
    results = []
    for one in (compiled(function), reference):
        found = one(*leaves, *more)
        found = found if isinstance(found, tuple) else (found,)
        results.append([*found, *torch.autograd.grad(sum(y.square().sum() for y in found), leaves)])
    for ours, theirs in zip(*results, strict=True):
        near(ours, theirs)


def activated(z, activation):
    return z if activation is None else nn.functional.silu(z)


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


def leaves_of(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.cover(1)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_states(activation, launches, searched, graphs):
    def function(x, w, bias, states):
        more = {"initial_states": states, "return_final_states": True, "activation": activation}
        y, final = pytorch.causal_conv1d_fn(x, w, bias, **more)
        return y * 2, final

    def reference(x, w, bias, states):
        rows = torch.cat([states, x], 2)
        return 2 * activated(nn.functional.conv1d(rows, w[:, None], bias, groups=6), activation), rows[..., -3:]

    both(function, reference, leaves_of((2, 6, 9), (6, 4), (6,), (2, 6, 3)))
    [forward], [backward] = graphs.forward, graphs.backward
    [told] = launches_of(forward)
    assert told.constants["return_final_state"] is True
    again = 0 if activation is None else 1  # silu's derivative needs the sums once more
    assert len(launches_of(backward)) == 2 + again
    assert all(map(follows_plan, [told, *launches_of(backward)]))


@pytest.mark.slow
@pytest.mark.parametrize("activation", [None, "silu"])
def test_packed_sequences(activation, launches, searched, graphs):
    """Their offsets are data, of which no kernel depends on more than how many there are."""

    def packed(x, w, states, cu_seqlens):
        more = {"initial_states": states, "return_final_states": True, "activation": activation}
        return pytorch.causal_conv1d_fn(x, w, cu_seqlens=cu_seqlens, **more)

    def each(x, w, states, cu_seqlens):
        pieces = enumerate(itertools.pairwise(cu_seqlens))
        rows = [torch.cat([states[i : i + 1], x[..., start:end]], 2) for i, (start, end) in pieces]
        y = torch.cat([nn.functional.conv1d(row, w[:, None], groups=4) for row in rows], 2)
        return activated(y, activation), torch.cat([row[..., -2:] for row in rows])

    for cu_seqlens in (torch.tensor([0, 2, 3, 9]), torch.tensor([0, 4, 5, 9])):
        both(packed, each, leaves_of((1, 4, 9), (4, 3), (3, 4, 2)), cu_seqlens)
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


def test_epilogues_packed_filters_and_changes_in_place(launches, searched, graphs):
    """A convolution with all that a kernel adds to it, then a change in place."""
    w, bias = leaves_of((128, 70, 3, 3), (128,))
    x, residual, packed = torch.randn(1, 70, 4, 5), torch.randn(1, 128, 4, 5), pytorch.pack_filter(w.detach())

    def function(w, bias, x):
        more = {"residual": residual, "activation": "silu", "packed": packed}
        return pytorch.conv2d(x, w, bias, padding=1, **more).mul_(3)

    def reference(w, bias, x):
        return 3 * nn.functional.silu(nn.functional.conv2d(x, w, bias, padding=1) + residual)

    both(function, reference, [w, bias], x)
    [told] = launches_of(graphs.forward[0])
    assert told.shapes["filter_ref"] == (1, 70, 3, 3, 128)
    assert set(told.shapes) == {"img_ref", "filter_ref", "bias", "residual"}
    assert (told.constants["activation"], told.constants["residual_position"]) == ("silu", "pre_activation")
    # the sums, which silu's derivative needs, and the gradient of filters and bias; x wants none
    [again, filters] = launches_of(graphs.backward[0])
    assert "activation" not in again.constants
    assert (filters.kernel, filters.constants["bias_gradient"]) == (FILTERS[0], True)
    assert all(map(follows_plan, (told, again, filters)))


@pytest.mark.slow
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
