"""How much of the convolutions' arithmetic is nkiconv's: counted, and found where models convolve by functions."""

import importlib
import sys
import warnings

import pytest
import torch
from torch import nn

from nkiconv.pytorch import convert

FILE = "modeling_stub"
#: A model file as those of transformers are: functions of torch, which its layers look up when they run.
SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
    rows = F.pad(hidden_states, (weight.shape[1] - 1, 0)).to(weight.dtype)
    y = F.conv1d(rows, weight[:, None], bias, groups=weight.shape[0])
    y = {None: lambda y: y, "silu": F.silu, "gelu": F.gelu}[activation](y)
    return y.to(hidden_states.dtype)

def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
    rows = torch.cat([conv_state, hidden_states], 2)
    conv_state.copy_(rows[..., -conv_state.shape[2]:])
    return causal_conv1d_fn(rows, weight, bias, activation)[..., -hidden_states.shape[2]:]

class Mixer(nn.Module):
    def __init__(self, activation="silu"):
        super().__init__()
        self.conv1d = nn.Conv1d(6, 6, 4, padding=3, groups=6)
        self.activation = activation

    def forward(self, x, state=None):
        weight = self.conv1d.weight.squeeze(1)
        if state is not None:
            return causal_conv1d_update(x, state, weight, self.conv1d.bias, activation=self.activation)
        return causal_conv1d_fn(x, weight, self.conv1d.bias, activation=self.activation, other_layers="argument")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / f"{FILE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(FILE)
    del sys.modules[FILE]


X = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(1))
FLOPS = 2 * 2 * 6 * 9 * 4  # of a causal convolution of X with 4 taps


def test_functions_of_a_model_s_file(file):
    """Their modules are never called: the share of a run says what the list of modules cannot."""
    torch.manual_seed(0)
    model, state = nn.Sequential(file.Mixer(), nn.Conv1d(6, 6, 1)), torch.randn(2, 6, 3)
    states, before = [state.clone(), state.clone()], dict(vars(file))
    expected, step = model(X), model[0](X[..., :1], states[0])
    apart = convert(model, causal_conv1d=False, functional=False, example_inputs=(X,))
    assert (len(apart.swapped), apart.measured.nkiconv) == (2, 2 * 2 * 9 * 6 * 6)
    assert 0 < apart.measured.fraction < 1
    report = convert(model)
    assert [(entry.operator, entry.swapped) for entry in report.entries] == [("causal_conv1d", False), ("conv1d", True)]
    assert report.entries[0].function == f"causal_conv1d_fn of {FILE}"
    assert str(report).startswith("1 of 2 convolution modules swapped for nkiconv's, 1 by functions that are nkiconv's")
    assert not report.kept
    torch.testing.assert_close(report.model(X), expected)
    torch.testing.assert_close(report.model[0](X[..., :1], states[1]), step)
    assert torch.equal(*states)
    share = report.share(X)
    assert (share.fraction, share.nkiconv) == (1, FLOPS + 2 * 2 * 9 * 6 * 6)
    report.installation.undo()
    assert all(vars(file)[name] is one for name, one in before.items())


def test_calls_that_nkiconv_refuses_stay_with_the_file_s_function(file):
    model = file.Mixer("gelu")
    expected = model(X)
    report = convert(model, functional=False)
    with pytest.warns(UserWarning, match="causal_conv1d_fn: stays with the model's own function: activation='gelu'"):
        found = report.model(X)
    assert torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(report.model(X), expected)
    assert report.share(X).fraction == 0
    report.installation.undo()
