"""Our operators take DTensors: replicated ones, and images and rows sharded over a mesh, of which each has its own."""

import contextlib
import functools

import pytest
import torch
import torch.distributed as dist
from gradchecks import several
from layers import LAYERS, randoms
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError


@pytest.fixture(scope="module")
def mesh():
    """The first of two devices, whose collectives do nothing: nothing here is to need one."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def there(mesh, tensor, placement):
    return DTensor.from_local(tensor.detach(), mesh, [placement], run_check=False)


def gradients_agree(mesh, function, tensors, by_images, placement):
    """The function of DTensors has on each device the results and derivatives that it has there of plain tensors."""
    plain = [one.detach().requires_grad_(one.is_floating_point()) for one in tensors]
    placed = [there(mesh, one, placement if i in by_images else Replicate()) for i, one in enumerate(tensors)]
    leaves = [one.requires_grad_(one.is_floating_point()) for one in placed]
    found, expected = several(function(*leaves)), several(function(*plain))
    for one, other in zip(found, expected, strict=True):
        assert one.placements == (placement,)
        assert_within_share([one.to_local()], [other], FLOAT32_SUMS)
    sum(one.sum() for one in expected).backward()
    sum(one.to_local().sum() for one in found).backward()
    for one, other in zip(leaves, plain, strict=True):
        if other.grad is not None and other.grad.any():
            assert_within_share([one.grad.to_local()], [other.grad], FLOAT32_SUMS)
    if 1 not in by_images:
        assert leaves[1].grad.placements == (Replicate() if placement == Replicate() else Partial(),)


def of_statistics(name, x, w, scale):
    y, stats = getattr(pytorch, name)(x, w, x_scale=scale, return_stats="channel")
    return pytorch.norm_act_conv2d(y, w, stats=stats, num_groups=3)


def causal(by, x, w, numbers):
    return pytorch.causal_conv1d_fn(x, w, activation="silu", **{by: numbers})


#: Numbers of sequences and their ends, of two rows and of one.
NUMBERS, ENDS, ROWS = torch.tensor([[0] * 4 + [1] * 5, [0] * 9]), torch.tensor([0, 4, 9]), randoms((2, 4, 9), (4, 3))
STATS = randoms((2, 6, 5, 5), (6, 6, 3, 3), (2, 6))
#: Functions of tensors, these, and which have images: layers but those without strategies, whose results are lists, or
#: whose filters torch makes of others.
CALLS = {
    **{name: (one.ours, one.given, one.images) for name, one in LAYERS.items()
       if not name.startswith(("split", "statistics", "batch norm", "causal, ", "polyphase"))},
    **{f"statistics of {name}": (functools.partial(of_statistics, name), STATS, (0, 2))
       for name in ("conv2d", "conv_transpose2d")},
    "numbers": (functools.partial(causal, "seq_idx"), [*ROWS, NUMBERS], (0, 2)),
    "sequences of one row": (functools.partial(causal, "cu_seqlens"), [ROWS[0][:1], ROWS[1], ENDS], ()),
}  # fmt: skip


@pytest.mark.cover(18, keep=["sequences of one row-R", "numbers-S(0)"])
@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
@pytest.mark.parametrize(("function", "given", "by_images"), CALLS.values(), ids=CALLS)
def test_calls(function, given, by_images, placement, mesh):
    gradients_agree(mesh, function, given, by_images, placement if by_images else Replicate())


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
def test_statistics_of_channels(placement, mesh):
    x = torch.randn(2, 4, 5, 5)
    stats = pytorch.channel_stats(there(mesh, x, placement))
    assert stats.placements == ((Shard(1),) if placement == Shard(0) else (Replicate(),))
    assert_within_share([stats.to_local()], [pytorch.channel_stats(x)], FLOAT32_SUMS)


@pytest.mark.parametrize("inference", [False, True])
def test_modules(inference, mesh):
    """As `distribute_module` makes them, in training and for inference."""
    model = pytorch.convert(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3))).model
    x = torch.randn(2, 4, 6, 6)
    expected = model(x)
    placed = distribute_module(model, mesh, lambda _name, one, mesh: _replicate(one, mesh))
    with torch.inference_mode() if inference else contextlib.nullcontext():
        y = placed(there(mesh, x, Shard(0)))
    assert y.placements == (Shard(0),)
    assert_within_share([y.to_local()], [expected], FLOAT32_SUMS)


def _replicate(module, mesh):
    for name, one in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(there(mesh, one, Replicate())))


def test_frozen_filters_that_differ_between_devices(mesh, monkeypatch):
    """A device that has another filter than the first one, which distribute_tensor gives it."""
    model, x = pytorch.convert(nn.Sequential(nn.Conv2d(64, 64, 3)).eval()).model, torch.randn(2, 64, 4, 4)
    model[0].pack_filter()
    model = distribute_module(model, mesh)
    name = "torch.distributed.tensor.distribute_tensor"
    with monkeypatch.context() as other:
        other.setattr(name, lambda tensor, mesh, placements: there(mesh, tensor + 1, *placements))
        for _ in range(2):
            with pytest.raises(UnsupportedError, match="not the same as that of the mesh's first device; call unpack"):
                model(there(mesh, x, Shard(0)))
    model(there(mesh, x, Shard(0)))
    monkeypatch.setattr(name, None)  # one comparison is enough
    model(there(mesh, x, Shard(0)))


def test_functions_of_torch_keep_dtensors(mesh):
    x, w = (there(mesh, torch.randn(2, 4, 3, 3), Replicate()) for _ in range(2))
    with pytorch.intercept(), pytest.warns(UserWarning, match="conv2d stays with torch: tensor kind: DTensor"):
        y = torch.nn.functional.conv2d(x, w)
    assert isinstance(y, DTensor)


def test_models_of_fsdp2_are_converted_in_place_only(mesh):
    """FSDP2's hooks hold the modules that they were put on; a copy of these would not be gathered."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    fully_shard(model, mesh=mesh)
    with pytest.raises(UnsupportedError, match=r"model: cannot be copied \(.*FSDP.*convert it with inplace=True"):
        pytorch.convert(model)
    with pytest.raises(UnsupportedError, match=r"cannot be copied \(.*FSDP.*convert it before that.*pack_filters=None"):
        pytorch.convert(model, inplace=True, pack_filters="frozen", example_inputs=(torch.zeros(1, 4, 5, 5),))
    assert isinstance(pytorch.convert(model, inplace=True).model[0], pytorch.nn.Conv2d)
