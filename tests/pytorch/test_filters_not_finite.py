"""Gradients of filters where gy is not finite: an overflow, which a GradScaler looks for."""

import pytest
import torch

from nkiconv import pytorch
from nkiconv.errors import ComparisonError
from nkiconv.pytorch.computers import simulated

pytestmark = pytest.mark.simulator_only


def overflowing(C, groups):
    x, w = torch.rand(2, C, 5, 5).half(), torch.rand(4, C // groups, 3, 3).half().requires_grad_()
    y = pytorch.conv2d(x, w, padding=1, groups=groups)
    g = torch.ones_like(y)
    g[0, 1, 0, 0], g[0, 2, 2, 2] = torch.inf, torch.nan
    return y, w, g


@pytest.mark.parametrize(("C", "groups"), [(3, 1), (40, 1), (4, 4)], ids=["few channels", "many", "depthwise"])
def test_what_is_not_finite_agrees(monkeypatch, C, groups):
    """Of filters where torch's gradient is not finite, the kernel's is not either."""
    monkeypatch.setenv("NKICONV_CPU", "compare")
    y, w, g = overflowing(C, groups)
    (dw,) = torch.autograd.grad(y, w, g, retain_graph=True)
    assert dw.isfinite().flatten(1).all(1).tolist() == [True, False, False, True]
    real = simulated.filters_gradient
    monkeypatch.setattr(simulated, "filters_gradient", lambda *args: (real(*args)[0].nan_to_num(0.0), None))
    with pytest.raises(ComparisonError, match=r"filters' gradients .* differ by inf"):
        torch.autograd.grad(y, w, g)


def test_many_channels_stay_apart(monkeypatch):
    """Which `blocks` takes: compare mode holds whole filters then, the kernel itself spoils no other."""
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    y, w, g = overflowing(40, 1)
    (dw,) = torch.autograd.grad(y, w, g)
    assert dw.isfinite().flatten(1).all(1).tolist() == [True, False, False, True]
    assert not dw[2].isfinite().any()
