"""x_scale, x_shift, x_activation, x_upsample and return_stats of convolutions: values and derivatives.

y = conv(upsample(act(x * x_scale + x_shift))), of transposed convolutions too, and mean and variance of y.
"""

import contextlib
import functools

import pytest
import torch
from gradchecks import assert_gradients, several
from layers import FORMS
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_share

from nkiconv.errors import ComparisonError
from nkiconv.pytorch import conv2d
from nkiconv.pytorch.computers import simulated

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
of_each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


#: What is given: arguments of `tensors`, what of the tensors is None, and the rest of the call.
CALLS = {
    "all": ({}, (), {"activation": "relu"}),
    "of channels": ({"form": "channel"}, (), {"activation": "sigmoid", "residual_position": "post_activation"}),
    "scale": ({"residual": False}, (5,), {"act": "gelu"}),
    "shift": ({"residual": False, "groups": 1}, (4,), {"act": None, "activation": "gelu_tanh"}),
    "no prologue": ({}, (4, 5), {"act": None, "activation": "silu"}),
    "plain": ({"residual": False}, (2, 4, 5), {"act": None}),
    "a filter a channel": ({"groups": 4, "channels": 4, "form": "channel"}, (), {"act": "tanh"}),
}


@in_both
@pytest.mark.cover(12)
@pytest.mark.parametrize("look", [contextlib.nullcontext, Seen])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("name", "rank"), [(name, rank) for name, form in FORMS.items() for rank in form.ranks])
def test_gradients(name, rank, call, look, mode):
    """By torch's functions, and by operators, which whoever looks on sees."""
    numbers, none, more = CALLS[call]
    form = FORMS[name]
    given = [None if i in none else one for i, one in enumerate(form.tensors(rank, **numbers))]
    pair = (functools.partial(one, **more) for one in (form.ours, form.torchs))
    with look():
        assert_gradients(*pair, given, (1 + 3 * form.stats) * FLOAT32_SUMS)  # of statistics sums of sums


@pytest.mark.cover(4)
@of_each_form
def test_one_image(form, mode):
    x, w, bias, residual, *scales = form.tensors(2, "channel")
    y, *stats = several(form.ours(x, w, bias, residual, *scales))
    of_one, *found = several(form.ours(x[0], w, bias, residual[0], *scales))
    assert of_one.shape == y.shape[1:]
    assert_within_share([of_one], [y[0]], FLOAT32_SUMS)
    for one, other in zip(found, stats, strict=True):
        assert_within_share([one], [other[:1]], FLOAT32_SUMS)


def test_pixels_that_are_one_of_input_are_summed_in_fp32():
    """In bf16 the sum of 256 and three ones would be 256."""
    x, w = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16, requires_grad=True), torch.ones(1, 1, 1, 1).bfloat16()
    g = torch.tensor([[[[256.0, 1.0], [1.0, 2.0]]]]).bfloat16()
    for call in (conv2d, functools.partial(conv2d, x_scale=torch.ones(1))):
        for look in (Seen, torch.enable_grad):
            with look():
                (found,) = torch.autograd.grad(call(x, w, x_upsample=2), x, g)
            assert found.item() == 260


@pytest.mark.parametrize(("name", "wrong", "words"), [
    ("statistics", lambda y, stats: (y, stats * 1.001), r"encoder.stem \(conv2d\): the kernel is up to"),
    ("upsampled", lambda y: y.flip(3), r"encoder.stem \(conv2d\): the kernel"),
])  # fmt: skip
def test_comparison_names_the_layer_that_differs(name, wrong, words, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    form, real = FORMS[name], simulated.convolve
    given = form.tensors(2)
    form.call(*given)
    monkeypatch.setattr(simulated, "convolve", lambda *args: wrong(*several(real(*args))))
    with pytest.raises(ComparisonError, match=words):
        form.call(*given, layer="encoder.stem")
