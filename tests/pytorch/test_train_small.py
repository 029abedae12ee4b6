"""Training by kernels is training by torch: gradients by filters and biases, wherever kernels compute, and all that
autograd does with them; small networks on real data, with mixed precision, DDP and FSDP2.
"""

import re
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import small_models
import torch
import train_small
from commands import ran
from small_models import TASKS
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch_exact import integers, leaves_of, same

import nkiconv
from nkiconv import pytorch
from nkiconv.errors import ComparisonError, DtypeError, GeometryError, UnsupportedError
from nkiconv.pytorch.computers import simulated

pytestmark = pytest.mark.simulator_only


@pytest.fixture
def small(monkeypatch):
    for name, value in {"BATCH": 2, "CROP": 12, "WINDOW": 40}.items():
        monkeypatch.setattr(small_models, name, value)


#: The others are long, and go through what these do; UNet is below.
QUICK = ("mamba2",)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
def test_curves_are_equal(name, capsys, tmp_path):
    assert ran("examples/train_small.py", "--only", name, "--steps", 2, "--plot", tmp_path / "losses.png") == 0
    said = capsys.readouterr().out
    assert {"simulate", "compare"} <= set(said.split())
    assert re.findall(r"^ +(\d+) +\d", said, re.MULTILINE) == ["1", "2"]
    assert f"{TASKS[name].title}: equal within rounding, apart by" in said
    assert (tmp_path / "losses.png").stat().st_size > 0


def test_what_torch_would_run_is_refused(monkeypatch):
    monkeypatch.setattr(train_small, "convert", lambda model: pytorch.convert(model, filter=lambda *_: False))
    with pytest.raises(UnsupportedError, match=r"UNet: .* of convolutions are nkiconv's; the others: aten::conv"):
        train_small.trained(TASKS["unet"], 1, ["simulate"])


GENERATOR = torch.Generator().manual_seed(1)
IMAGES, WANTED = (torch.rand(2, channels, 6, 6, generator=GENERATOR) for channels in (3, 2))


def net():
    torch.manual_seed(0)
    down = pytorch.nn.Conv2d(3, 4, 3, stride=2, padding=1, activation="silu")
    return nn.Sequential(down, pytorch.nn.ConvTranspose2d(4, 2, 2, stride=2))


def stepped(model, wrapped, steps=2):
    optimizer, losses = torch.optim.Adam(wrapped.parameters(), 0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(wrapped(IMAGES), WANTED)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(getattr(one, "to_local", lambda one=one: one)().detach() for one in model.parameters())]


@pytest.fixture
def group(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def of_filters(monkeypatch):
    """Whose gradients by filters the kernels found, one name for each launch."""
    found, real = [], simulated.BACKEND.filters_gradient

    def noted(given):
        found.append(given.asked.name)
        return real(given)

    monkeypatch.setattr(simulated.BACKEND, "filters_gradient", noted)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
@pytest.mark.parametrize("mode", ["simulate", "compare"])
def test_distributed_training(how, mode, of_filters, monkeypatch):
    """Of one process, which changes nothing, to the bit."""
    monkeypatch.setenv("NKICONV_CPU", mode)
    model, plain = net(), net()
    if how == "DDP":
        wrapped = nn.parallel.DistributedDataParallel(model)
    else:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    assert all(isinstance(one, DTensor) == (how == "FSDP2") for one in wrapped.parameters())
    found = stepped(model, wrapped)
    assert of_filters == ["conv2d"] * 4  # that of the transposed one too, of x and gy exchanged
    assert same(found, stepped(plain, plain))


def test_an_overflow_skips_a_step(monkeypatch):
    """Gradients of fp16 that are too large for it: a GradScaler sees them, halves its scale, and goes on."""
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    model, before = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    changed = []
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(IMAGES).float(), WANTED)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        both = zip(model.parameters(), before.parameters(), strict=True)
        changed.append(not all(torch.equal(one, other) for one, other in both))
        if len(changed) == 1:
            assert scaler.get_scale() == 2.0**25
            scaler.update(2.0**8)
    assert changed == [False, True]


@pytest.fixture
def launched(simulate, monkeypatch):
    """How often kernels for convolutions, and for gradients by filters, with biases' and without, are launched."""
    found, convolve, gradient = Counter(), simulated.BACKEND.convolve, simulated.BACKEND.filters_gradient

    def gradients(given):
        found["filters and bias" if given.bias else "filters"] += 1
        return gradient(given)

    monkeypatch.setattr(simulated.BACKEND, "convolve", lambda *args: found.update(["convolution"]) or convolve(*args))
    monkeypatch.setattr(simulated.BACKEND, "filters_gradient", gradients)
    return found


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float16")], ids=str)
@pytest.mark.parametrize("mode", ["simulate", "compare"], indirect=True)
def test_gradients_are_of_the_filters_dtype(dtypes, mode):
    of_x, of_w = (getattr(torch, one) for one in dtypes)
    (x, w, bias), wide = leaves_of((2, 3, 8, 8), (4, 3, 3, 3), (4,), most=31)
    given = [x.to(of_x).detach().requires_grad_(), w.to(of_w).detach().requires_grad_(), bias]
    y, expected = pytorch.conv2d(*given), F.conv2d(*wide)
    (g,) = integers(y.shape, most=31)
    found = torch.autograd.grad(y, given, g.to(of_x))
    wanted = torch.autograd.grad(expected, wide, g.double())
    assert [one.dtype for one in found] == [of_x, of_w, torch.float32]
    assert not all(torch.equal(one.double(), other) for one, other in zip(found, wanted, strict=True))
    assert same(found, wanted)


def test_strides_of_transposed_ones_are_refused(simulate):
    x, w = integers((1, 4, 8, 9), (4, 3, 3, 2))
    with pytest.raises(GeometryError, match=r"stride=\(2, 1\): must be 1 with transposed=True"):
        torch.ops.nkiconv.conv_transpose2d(
            x, w, None, None, [2, 1], [0] * 4, [1, 1], [1, 1], 1, None, "pre_activation", None
        )


#: Which of x, w and bias want gradients, and what a backward launches.
OF_WANTED = {
    (True, True, True): {"convolution": 1, "filters and bias": 1},
    (True, True, False): {"convolution": 1, "filters": 1}, (False, True, True): {"filters and bias": 1},
    (False, True, False): {"filters": 1}, (True, False, True): {"convolution": 1},
    (True, False, False): {"convolution": 1}, (False, False, True): {},
}  # fmt: skip


@pytest.mark.parametrize("wanted", OF_WANTED, ids=str)
def test_only_what_is_wanted_is_launched(wanted, launched):
    given = integers((2, 3, 5, 5), (4, 3, 3, 3), (4,))
    for one, want in zip(given, wanted, strict=True):
        one.requires_grad_(want)
    y = pytorch.conv2d(*given, activation="relu")
    launched.clear()
    y.sum().backward()
    assert launched == OF_WANTED[wanted]
    assert [one.grad is not None for one in given] == list(wanted)


def test_a_residual_alone_launches_nothing(launched):
    x, w, residual = integers((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3))
    residual.requires_grad_()
    y = pytorch.conv2d(x, w, residual=residual, residual_position="post_activation", activation="silu")
    launched.clear()
    y.sum().backward()
    assert launched == {}
    assert torch.equal(residual.grad, torch.ones_like(residual))


NUMBERS = ((4, 1, 3), (2,), (1, 2), (2,), 2)  # size, stride, padding, dilation, groups


def operator(x, g, bias=True, dtype=None):
    return torch.ops.nkiconv.conv1d_weight(x, g, *map(list, NUMBERS[:4]), NUMBERS[4], bias, dtype or x.dtype, None)


X, G = integers((2, 2, 6), (2, 4, 3))
REFUSED = [
    ({"g": G[..., :2]}, GeometryError, r"grad.shape=\(2, 4, 2\): must be y's, \(2, 4, 3\)"),
    ({"g": G.half()}, DtypeError, "grad.dtype=torch.float16: must be input's, torch.float32"),
    ({"g": G.to("meta")}, UnsupportedError, "grad.device=meta: must be input's, cpu"),
    ({"dtype": torch.bfloat16}, DtypeError, "weight.dtype=torch.bfloat16: must be float32 exactly when"),
    ({"x": X.to(torch.float8_e5m2)}, DtypeError, "input.dtype=torch.float8_e5m2: accepted are"),
    ({"x": X[:, :1]}, GeometryError, r"weight.shape=\(4, 1, 3\): has 1 input channels per group, input has C=1"),
    ({"x": X.double(), "g": G.double()}, DtypeError, "input.dtype=torch.float64: .* Trainium has no float64"),
]


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[case[2][:30] for case in REFUSED])
def test_refusals(changed, error, message, simulate):
    with pytest.raises(error, match=message):
        operator(**{"x": X, "g": G, **changed})


def test_what_the_kernel_refuses_is_raised(simulate, monkeypatch):
    def refuse(*args, **more):
        raise UnsupportedError("C=1: too few")

    monkeypatch.setattr(simulated.BACKEND, "launch", refuse)
    with pytest.raises(UnsupportedError, match="C=1: too few") as caught:
        operator(X, G)
    assert isinstance(caught.value, RuntimeError)


def overflowing(C, groups):
    """A gradient that is not finite: an overflow, which a GradScaler looks for."""
    x, w = torch.rand(2, C, 5, 5).half(), torch.rand(4, C // groups, 3, 3).half().requires_grad_()
    y = pytorch.conv2d(x, w, padding=1, groups=groups)
    g = torch.ones_like(y)
    g[0, 1, 0, 0], g[0, 2, 2, 2] = torch.inf, torch.nan
    return torch.autograd.grad(y, w, g, retain_graph=True)[0], lambda: torch.autograd.grad(y, w, g)


@pytest.mark.parametrize(("C", "groups"), [(3, 1), (40, 1), (4, 4)], ids=["few channels", "many", "depthwise"])
def test_what_is_not_finite_agrees(monkeypatch, C, groups):
    """Of filters where torch's gradient is not finite, the kernel's is not either."""
    monkeypatch.setenv("NKICONV_CPU", "compare")
    dw, again = overflowing(C, groups)
    assert dw.isfinite().flatten(1).all(1).tolist() == [True, False, False, True]
    real = simulated.BACKEND.filters_gradient
    monkeypatch.setattr(simulated.BACKEND, "filters_gradient", lambda *args: (real(*args)[0].nan_to_num(0.0), None))
    with pytest.raises(ComparisonError, match=r"filters' gradients .* differ by inf"):
        again()


@pytest.mark.usefixtures("estimates")
def test_many_channels_stay_apart(simulate):
    """Which `blocks` takes: compare mode holds whole filters then, the kernel itself spoils no other."""
    dw, _ = overflowing(40, 1)
    assert dw.isfinite().flatten(1).all(1).tolist() == [True, False, False, True]
    assert not dw[2].isfinite().any()


def test_sums_of_bf16_gradients_are_fp32(simulate):
    """pytorch/pytorch#68048, ROCm/rocm-libraries#8029: a bias's stopped at 256, a 1x1x1 filter's were off by half."""
    layer = pytorch.convert(nn.Conv2d(1, 2, 3, 2, 1).bfloat16()).model
    layer(torch.randn(1, 1, 80, 80, dtype=torch.bfloat16)).sum().backward()
    assert layer.bias.grad.tolist() == [1600, 1600]
    x, gy = (one.numpy().astype(ml_dtypes.bfloat16) for one in integers(*[(8, 16, 16, 16, 16)] * 2, most=2))
    wanted = np.einsum("ncdhw,nkdhw->kc", x.astype(np.float64), gy.astype(np.float64))[..., None, None, None]
    np.testing.assert_array_equal(nkiconv.conv3d_weight(x, (16, 16, 1, 1, 1), gy), wanted)
