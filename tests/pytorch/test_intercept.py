"""Under intercept, torch's functions conv1d and conv2d are nkiconv's for whoever calls them; valid calls never fail."""

import threading
import warnings

import pytest
import torch
from operators_seen import seen
from torch import nn
from torch.nn import functional as F

from nkiconv import ComparisonError
from nkiconv.pytorch import convert, intercept

OURS, THEIRS = "nkiconv::conv2d", "aten::convolution"


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, groups=4)

    def forward(self, x):
        rows = F.pad(x.flatten(2), (2, 0))
        return torch.conv1d(rows, self.conv.weight, bias=self.conv.bias, groups=4)


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), Reader()).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
ALL = [OURS, "nkiconv::depthwise_conv1d"]


def test_kernels_that_disagree_are_not_hidden(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    monkeypatch.setattr("nkiconv.pytorch.computers.simulated._over", lambda *_: 2.0)
    with intercept(), pytest.raises(ComparisonError):
        F.conv2d(X, torch.ones(1, 3, 1, 1))


Tagged = type("Tagged", (torch.Tensor,), {})
REFUSED = {
    "integers": (lambda: F.conv1d(torch.ones(1, 1, 3).long(), torch.ones(1, 1, 1).long()),
     "dtype: torch.int64 must be one of"),
    "complex": (lambda: F.conv2d(X + 0j, torch.ones(1, 3, 1, 1) + 0j), "dtype: torch.complex64 must be one of"),
    "subclass": (lambda: F.conv2d(X.as_subclass(Tagged), torch.ones(1, 3, 1, 1)), "Tagged has a meaning"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_nkiconv_does_not_take_stays_with_torch_and_is_told_once(case):
    call, message = REFUSED[case]
    expected = call()
    with intercept(), pytest.warns(UserWarning, match="stays with torch") as told:
        found, again = call(), call()
    assert len(told) == 1
    assert message in str(told[0].message)
    assert type(found) is type(expected)
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)


def test_errors_of_torch_stay_torch_s():
    w = torch.ones(1, 4, 1, 1)
    with warnings.catch_warnings(), intercept():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="expected input"):
            F.conv2d(X, w)


def test_blocks_may_be_nested_and_end_with_exceptions():
    made = model()
    with intercept(), intercept():
        assert seen(made, X)[1] == ALL
    with pytest.raises(TypeError), intercept(), intercept():
        made(None)
    assert seen(made, X)[1] == [THEIRS] * 2
    with pytest.warns(UserWarning, match="stays with torch") as told, intercept(), intercept():
        assert seen(*[F.conv2d, X.long(), torch.ones(1, 3, 1, 1).long()])[1] == [THEIRS]
    assert len(told) == 1


def test_it_holds_in_its_own_thread_only():
    made, names = model(), {}
    inside, outside = threading.Event(), threading.Event()

    def block():
        with intercept():
            inside.set()
            outside.wait(60)
            names["inside"] = seen(made, X)[1]

    thread = threading.Thread(target=block)
    thread.start()
    inside.wait(60)
    names["outside"] = seen(made, X)[1]
    outside.set()
    thread.join()
    assert names == {"inside": ALL, "outside": [THEIRS] * 2}


def test_a_converted_model_runs_a_forward_of_its_own_so():
    made = Reader()
    made.forward = lambda x: F.conv2d(x, torch.ones(1, 3, 1, 1))
    found, names = seen(convert(made, inplace=True).model, X)
    assert names == [OURS]
    torch.testing.assert_close(found, X.sum(1, keepdim=True))
