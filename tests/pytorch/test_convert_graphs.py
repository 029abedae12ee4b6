"""Graphs of torch.export and torch.fx: their calls of torch's convolutions become nkiconv's, and stay so in copies."""

import copy
import pickle

import pytest
import torch
from operators_seen import Seen, assert_nkiconvs
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import fx, nn
from torch.nn import functional as F

from nkiconv.pytorch import convert
from nkiconv.pytorch.models.graphs import LEFT, TAKEN

X = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(3))
OURS = ["nkiconv::conv2d", "nkiconv::conv_transpose2d", "nkiconv::conv1d", "nkiconv::conv2d"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.up = nn.Conv2d(3, 4, 3, padding="same"), nn.ConvTranspose2d(4, 5, 2, stride=2)
        self.rows, self.filters = nn.Conv1d(5, 4, 3, dilation=2), nn.Parameter(torch.randn(2, 3, 2, 2))

    def forward(self, x):
        rows = self.rows(self.up(self.same(x)).flatten(2))
        return rows.sum((1, 2)) + F.conv2d(x, self.filters / self.filters.norm(), stride=(2, 1)).mean((1, 2, 3))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


def exported(model, strict=False, decomposed=False):
    program = torch.export.export(model, (X,), strict=strict)
    return (program.run_decompositions() if decomposed else program).module()


GRAPHS = {
    "export": exported,
    "strict": lambda model: exported(model, strict=True),
    "decomposed": lambda model: exported(model, decomposed=True),
    "fx": fx.symbolic_trace,
    "inside": lambda model: nn.Sequential(nn.Identity(), exported(model)),
    "unflattened": lambda model: torch.export.unflatten(torch.export.export(model, (X,))),
}


@pytest.mark.cover(3, keep=["unflattened"])
@pytest.mark.parametrize("name", GRAPHS)
def test_their_convolutions_are_taken(name, model, monkeypatch):
    graph, expected = GRAPHS[name](model), model(X)
    report = convert(graph, example_inputs=(X,), inplace=name == "unflattened")
    assert report.measured.fraction == 1
    assert not report.kept
    if name not in ("unflattened", "fx"):
        assert [entry.function for entry in report.entries] == [TAKEN] * 4
        assert report.entries[0].weight == (4, 3, 3, 3)
    assert_nkiconvs(lambda: report.model(X), expected, OURS)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with torch.no_grad():
        simulated = report.model(X)
    assert_within_share([simulated], [expected], FLOAT32_SUMS)


@pytest.mark.parametrize("name", ["export", "fx", "inside"])
def test_copies_and_files(name, model):
    graph = GRAPHS[name](model)
    with Seen() as before:
        graph(X)
    converted = convert(graph).model
    copies = [converted, copy.deepcopy(converted)]
    if name == "fx":  # torch cannot pickle the others, converted or not
        copies.append(pickle.loads(pickle.dumps(converted)))
    for one in copies:
        with Seen() as seen:
            one(X)
        assert seen.convolutions == OURS
    with Seen() as after:
        graph(X)
    assert after.convolutions == before.convolutions == ["aten::convolution"] * 4


def test_without_functional(model):
    report = convert(exported(model), functional=False, example_inputs=(X,))
    assert [entry.reason for entry in report.kept] == [LEFT] * 4
    assert report.measured.fraction == 0


def test_calls_that_stay_in_torch():
    """Integers: of a graph as of a model, torch computes them and a warning tells."""

    class Whole(nn.Module):
        def forward(self, x):
            return torch.conv1d(x, torch.ones(1, 1, 2, dtype=torch.long))

    x = torch.arange(6).reshape(1, 1, 6)
    converted = convert(torch.export.export(Whole(), (x,)).module()).model
    with pytest.warns(UserWarning, match="conv1d stays with torch: dtype"):
        found = converted(x)
    assert torch.equal(found, Whole()(x))


@pytest.mark.parametrize("name", ["export", "decomposed", "fx"])
def test_strict_nonfinite_reaches_graphs(name, model):
    """Of a model converted before it is traced, and of a graph."""
    converted = fx.symbolic_trace(convert(model, strict_nonfinite=True).model)
    if name != "fx":
        converted = convert(GRAPHS[name](model), strict_nonfinite=True).model
    calls = [node for node in converted.graph.nodes if "conv" in str(node.target) and node.op == "call_function"]
    assert len(calls) == 4
    assert all(node.kwargs["strict_nonfinite"] for node in calls)
    assert torch.equal(converted(X), model(X))


def test_converted_models_are_traced_with_nkiconv_s_functions(model):
    traced = fx.symbolic_trace(convert(model).model)
    for one in (traced, copy.deepcopy(traced)):
        assert_nkiconvs(lambda one=one: one(X), model(X), OURS)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_models_keep_theirs(model):
    report = convert(torch.jit.trace(model, X), example_inputs=(X,))
    assert report.measured.fraction == 0
    assert {entry.reason.partition(";")[0] for entry in report.entries} == {"is scripted"}
