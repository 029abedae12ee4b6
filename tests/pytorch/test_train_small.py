"""Training by kernels is training by torch: small networks on real data, with mixed precision, DDP and FSDP2."""

import re

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
from torch_exact import same

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError
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
def launched(monkeypatch):
    """Whose gradients by filters the kernels found, one name for each launch."""
    found, real = [], simulated.filters_gradient

    def noted(asked, *args):
        found.append(asked.name)
        return real(asked, *args)

    monkeypatch.setattr(simulated, "filters_gradient", noted)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
@pytest.mark.parametrize("mode", ["simulate", "compare"])
def test_distributed_training(how, mode, launched, monkeypatch):
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
    assert launched == ["conv2d"] * 4  # that of the transposed one too, of x and gy exchanged
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
