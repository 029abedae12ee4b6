"""`strict_nonfinite` of functions, modules, converted models and the process; no batch row reaches another without."""

import pytest
import torch
from causal import computing
from chained import made
from gradchecks import several
from torch.nn import functional as F

import nkiconv.pytorch as ours
from nkiconv import ConvProblem
from nkiconv.pytorch.computers import device

pytestmark = pytest.mark.usefixtures("estimates")
BAD = float("nan")


def values(*shape, seed=0):
    return torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


#: By name: (ours, torch's, shape of x, shape of filters, arguments of both).
CALLS = {
    "conv1d": (ours.conv1d, F.conv1d, (4, 6, 12), (5, 6, 3), {"padding": 1}),
    "conv2d": (ours.conv2d, F.conv2d, (3, 3, 14, 15), (8, 3, 5, 5), {"stride": 2, "padding": 3}),
    "conv3d": (ours.conv3d, F.conv3d, (3, 2, 3, 6, 6), (4, 2, 3, 3, 3), {"padding": 1}),
    "depthwise_conv1d": (ours.conv1d, F.conv1d, (5, 8, 40), (8, 1, 4), {"groups": 8, "padding": 3}),
    "depthwise_conv2d": (ours.conv2d, F.conv2d, (4, 8, 9, 8), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    "grouped": (ours.conv2d, F.conv2d, (4, 8, 7, 6), (8, 2, 3, 3), {"groups": 4}),
    "conv_transpose1d": (ours.conv_transpose1d, F.conv_transpose1d, (4, 8, 9), (8, 1, 4), {"groups": 8, "stride": 2}),
    "conv_transpose2d": (ours.conv_transpose2d, F.conv_transpose2d, (4, 32, 4, 4), (32, 4, 4, 4), {"stride": 2}),
    "conv_transpose3d": (ours.conv_transpose3d, F.conv_transpose3d, (2, 8, 2, 3, 3), (8, 4, 2, 2, 2), {"stride": 2}),
}  # fmt: skip


def reached(theirs, x, shape, how):
    """Outputs whose windows see an input of x that is not finite."""
    return theirs((~x.isfinite()).double(), torch.ones(shape).double(), **how) > 0


def update(x, w, **more):
    held = values(6, 8, 3, seed=2)
    return ours.causal_conv1d_update(x, held, w, **more), held


#: Causal rows, whose channels stay apart too where it is asked for.
CAUSAL = {
    "causal": (ours.causal_conv1d_fn, None, (6, 8, 40), (8, 4), {}),
    "states": (lambda x, w, **more: ours.causal_conv1d_fn(x, w, None, None, values(6, 8, 3, seed=2), True, **more),
     None, (6, 8, 40), (8, 4), {}),
    "update": (update, None, (6, 8, 1), (8, 4), {}),
}  # fmt: skip


@pytest.mark.cover(4)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", [*CALLS, *CAUSAL])
def test_rows_of_a_batch_stay_apart(name, strict):
    function, _, shape, filters, how = (CALLS | CAUSAL)[name]
    x, w, row = values(*shape), values(*filters, seed=1), shape[0] // 2
    found = []
    for value in (1.0, BAD, float("inf")):
        given = x.clone()
        given[row, 1] *= value
        with computing("simulate"):
            y, *others = several(function(given.requires_grad_(), w, strict_nonfinite=strict, **how))
            g = values(*y.shape, seed=2)
            g[row, 1] *= value
            found.append([y.detach(), *others, torch.autograd.grad(y, given, g)[0]])
    for results in found[1:]:
        for clean, spoilt in zip(found[0], results, strict=True):
            rest = [n for n in range(shape[0]) if n != row]
            assert torch.equal(clean[rest], spoilt[rest])
            assert not spoilt[row, 1].isfinite().all()
            if strict and name in CAUSAL:
                assert torch.equal(clean[row, 2:], spoilt[row, 2:])


@pytest.mark.parametrize(("function", "theirs", "shape", "filters", "how"), CALLS.values(), ids=CALLS)
def test_strictly_only_windows_that_see_it_are_reached(function, theirs, shape, filters, how):
    x, w = values(*shape), values(*filters, seed=1)
    whole = theirs(x, w, **how)
    x[(1, 1, *[size // 2 for size in shape[2:]])] = BAD
    expected = reached(theirs, x, filters, how)
    assert 0 < expected.sum() < expected.numel()
    with computing("simulate"):
        y = function(x, w, strict_nonfinite=True, **how)
    assert torch.equal(y.isnan(), expected)
    assert torch.equal(y[~expected], whole[~expected])


STEM = CALLS["conv2d"]


@pytest.fixture
def stem():
    """(x with a NaN, filters, outputs that it reaches), of a convolution that spreads it by default."""
    _, theirs, shape, filters, how = STEM
    x, w = values(*shape), values(*filters, seed=1)
    x[1, 1, 7, 7] = BAD
    expected = reached(theirs, x, filters, how)
    with computing("simulate"):
        assert not torch.equal(ours.conv2d(x, w, **how).isnan(), expected)
    return x, w, expected


def test_of_the_process(stem):
    x, w, expected = stem
    with computing("simulate"):
        with ours.strict_nonfinite():
            assert torch.equal(ours.conv2d(x, w, **STEM[4]).isnan(), expected)
            with ours.strict_nonfinite(False):
                assert not torch.equal(ours.conv2d(x, w, **STEM[4]).isnan(), expected)
            assert not torch.equal(ours.conv2d(x, w, strict_nonfinite=False, **STEM[4]).isnan(), expected)
        assert not torch.equal(ours.conv2d(x, w, **STEM[4]).isnan(), expected)
        ours.set_strict_nonfinite(True)
        try:
            assert torch.equal(ours.conv2d(x, w, **STEM[4]).isnan(), expected)
        finally:
            ours.set_strict_nonfinite(False)
    with pytest.raises(ZeroDivisionError), ours.strict_nonfinite():
        raise ZeroDivisionError
    assert not ours.functional.modes.wants_strict_nonfinite(None)


def functions(w):
    """A model that convolves by a function."""
    return made(lambda model, x: F.conv2d(x, model.w, stride=2, padding=3), w=torch.nn.Parameter(w))


class Subclass(torch.nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight * 1.0, stride=2, padding=3)


@pytest.mark.cover(2, keep=["graph", "traced"])
@pytest.mark.parametrize("kind", ["module", "swapped", "subclass", "functions", "graph", "traced"])
def test_of_modules(stem, kind):
    """Also under torch.compile, and with the module's own value before the process's."""
    x, w, expected = stem
    arguments = 3, 8, 5, 2, 3
    for strict in (None, True):
        if kind == "module":
            module = ours.nn.Conv2d(*arguments, bias=False, strict_nonfinite=strict)
        elif kind == "graph":
            exported = torch.export.export(functions(w), (x,)).module()
            module = ours.convert(exported, strict_nonfinite=strict).model
        elif kind == "functions":
            module = ours.convert(functions(w), functional=True, strict_nonfinite=strict).model
        else:
            plain = (Subclass if kind == "subclass" else torch.nn.Conv2d)(*arguments, bias=False)
            module = ours.convert(plain, strict_nonfinite=strict).model
            module = torch.fx.symbolic_trace(torch.nn.Sequential(module)) if kind == "traced" else module
        if kind not in ("functions", "graph"):
            (*module.parameters(),)[0].data.copy_(w)
        with computing("simulate"), torch.no_grad():
            assert torch.equal(module(x).isnan(), expected) is (strict is True)
            with ours.strict_nonfinite(strict is None):
                assert torch.equal(module(x).isnan(), expected)
            if kind == "swapped":
                compiled = torch.compile(module, fullgraph=True, backend="eager")
                assert torch.equal(compiled(x).isnan(), expected) is (strict is True)
                with ours.strict_nonfinite():
                    assert torch.equal(compiled(x).isnan(), expected)


def test_plans_are_looked_up_by_it():
    """What a device's kernel is called with, and a model's plan."""
    problem = ConvProblem(N=3, C=3, K=8, H=14, W=15, R=7, S=7, stride=(2, 2), padding=((3, 3), (3, 3)), dtype="fp32")
    found = [dict(device._arguments(problem, "conv2d", device.Asked(strict_nonfinite=one), 2, "estimate"))
             for one in (False, True)]  # fmt: skip
    assert found[1]["strict_nonfinite"] is True
    assert "strict_nonfinite" not in found[0]
    assert found[0]["algorithm"] != found[1]["algorithm"] == "implicit_gemm"
    module = ours.nn.Conv2d(3, 8, 7, 2, 3, strict_nonfinite=True)
    assert ours.plan_model(module, [torch.zeros(3, 3, 14, 15)]).rows[0].plan.algorithm == "implicit_gemm"
