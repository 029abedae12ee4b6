"""Our operators take DTensors: replicated ones, and images and rows sharded over a mesh, of which each has its own."""

import contextlib

import pytest
import torch
import torch.distributed as dist
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
    return None if tensor is None else DTensor.from_local(tensor.detach(), mesh, [placement], run_check=False)


def gradients_agree(mesh, function, tensors, by_images, placement, no_grad=()):
    """The function of DTensors has on each device the results and derivatives that it has there of plain tensors."""
    plain = [one if one is None or i in no_grad else one.clone().requires_grad_() for i, one in enumerate(tensors)]
    expected = function(*plain)
    placed = [there(mesh, one, placement if i in by_images else Replicate()) for i, one in enumerate(tensors)]
    leaves = [one if one is None or i in no_grad else one.requires_grad_() for i, one in enumerate(placed)]
    found = function(*leaves)
    several = isinstance(expected, tuple)
    for one, other in zip(found if several else (found,), expected if several else (expected,), strict=True):
        assert one.placements == (placement,)
        assert_within_share([one.to_local()], [other], FLOAT32_SUMS)
    sum(one.sum() for one in (expected if several else (expected,))).backward()
    sum(one.to_local().sum() for one in (found if several else (found,))).backward()
    for i, (one, other) in enumerate(zip(leaves, plain, strict=True)):
        if other is None or i in no_grad:
            continue
        assert_within_share([one.grad.to_local()], [other.grad], FLOAT32_SUMS)
        if i == 1:
            assert one.grad.placements == (Replicate() if placement == Replicate() else Partial(),)


def of_statistics(name):
    def function(x, w, scale):
        y, stats = getattr(pytorch, name)(x, w, x_scale=scale, return_stats="channel")
        return pytorch.norm_act_conv2d(y, w, stats=stats, num_groups=3)

    return function


def causal(x, w, bias, **more):
    return pytorch.causal_conv1d_fn(x, w, bias, activation="silu", **more)


IMAGE, FILTERS = (2, 4, 5, 5), (6, 4, 3, 3)
NUMBERS, ENDS = torch.tensor([[0] * 4 + [1] * 5, [0] * 9]), torch.tensor([0, 4, 9])
#: Functions of tensors, their shapes or values, and which of these have images.
CALLS = {
    "rows": (lambda x, w, b: pytorch.conv1d(x, w, b, 2, 1), [(2, 4, 9), (6, 4, 3), (6,)], (0,)),
    "depthwise": (lambda x, w, b: pytorch.conv1d(x, w, b, groups=4), [(2, 4, 9), (4, 1, 3), (4,)], (0,)),
    "images": (lambda x, w, b: pytorch.conv2d(x, w, b, padding=1), [IMAGE, FILTERS, (6,)], (0,)),
    "no padding": (lambda x, w, b: pytorch.conv2d(x, w, b), [IMAGE, FILTERS, (6,)], (0,)),
    "residual": (
        lambda x, w, b, r: pytorch.conv2d(x, w, b, activation="silu", residual=r),
        [IMAGE, FILTERS, (6,), (2, 6, 3, 3)], (0, 3),
    ),
    "volumes": (lambda x, w, b: pytorch.conv3d(x, w, b), [(2, 2, 3, 4, 4), (3, 2, 2, 3, 3), (3,)], (0,)),
    "transposed": (lambda x, w, b: pytorch.conv_transpose2d(x, w, b, 2), [IMAGE, (4, 3, 3, 3), (3,)], (0,)),
    "statistics": (of_statistics("conv2d"), [(2, 6, 5, 5), (6, 6, 3, 3), (2, 6)], (0, 2)),
    "statistics of transposed": (of_statistics("conv_transpose2d"), [(2, 6, 5, 5), (6, 6, 3, 3), (2, 6)], (0, 2)),
    "frames": (
        lambda x, w, f: pytorch.conv3d(x, w, initial_frames=f),
        [(2, 2, 3, 4, 4), (3, 2, 2, 3, 3), (2, 2, 1, 4, 4)], (0, 2),
    ),
    "causal": (causal, [(2, 4, 9), (4, 3), None], (0,)),
    "states": (
        lambda x, w, b, s: causal(x, w, b, initial_states=s, return_final_states=True),
        [(2, 4, 9), (4, 3), None, (2, 4, 2)], (0, 3),
    ),
    "numbers": (lambda x, w, b, n: causal(x, w, b, seq_idx=n), [(2, 4, 9), (4, 3), None, NUMBERS], (0, 3)),
    "sequences of one row": (
        lambda x, w, b, ends: pytorch.causal_conv1d_fn(x, w, b, cu_seqlens=ends), [(1, 4, 9), (4, 3), (4,), ENDS], ()),
}  # fmt: skip


@pytest.mark.cover(18, keep=["sequences of one row-R"])
@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name, placement, mesh):
    function, given, by_images = CALLS[name]
    torch.manual_seed(0)
    tensors = [torch.randn(one) if isinstance(one, tuple) else one for one in given]
    integers = tuple(i for i, one in enumerate(given) if isinstance(one, torch.Tensor))
    gradients_agree(mesh, function, tensors, by_images, placement if by_images else Replicate(), integers)


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


def frozen(model):
    converted = pytorch.convert(model.eval()).model
    converted[0].pack_filter()
    return converted


def test_frozen_filters_that_differ_between_devices(mesh, monkeypatch):
    """A device that has another filter than the first one, which distribute_tensor gives it."""
    model, x = distribute_module(frozen(nn.Sequential(nn.Conv2d(64, 64, 3))), mesh), torch.randn(2, 64, 4, 4)
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
