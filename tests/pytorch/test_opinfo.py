"""torch's own checks: `opcheck` of every operator, and its tables of convolutions, by which torch tests itself."""

import functools

import pytest
import torch
from gradchecks import several
from layers import LAYERS
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nkiconv import pytorch


class Recorded(TorchDispatchMode):
    """Keeps the calls of nkiconv's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "nkiconv":
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


@pytest.mark.cover(0, keep=["causal"])
@pytest.mark.parametrize("name", LAYERS)
def test_opcheck(name):
    """Of each operator that a layer runs, and its backward, with what these are given; numbers of sequences are read in
    backward, which torch.compile cannot."""
    layer = LAYERS[name]
    with Recorded() as recorded:
        found = several(layer.ours(*(one.detach().requires_grad_("numbered" not in name) for one in layer.given)))
        if found[0].requires_grad:
            sum(one.sum() for one in found).backward()
    assert recorded.calls
    for operator, args, more in recorded.calls:
        leaves = [
            one.detach().clone().requires_grad_(one.is_floating_point()) if isinstance(one, torch.Tensor) else one
            for one in args
        ]
        found = torch.library.opcheck(operator, tuple(leaves), more)
        assert set(found.values()) == {"SUCCESS"}, (operator, found)


# torch's table (`op_db`) of samples, and calls that must raise.

#: torch's name of an operator: nkiconv's function and torch's.
FUNCTIONS = {"nn.functional.conv1d": (pytorch.conv1d, F.conv1d), "nn.functional.conv2d": (pytorch.conv2d, F.conv2d)}
#: On the host whatever torch convolves; in the simulator what the kernels take.
KINDS = [
    *(("simulate", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
    *(("torch", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)),
]
#: Of the largest number, that sums in fp32 which are rounded once are off by.
SHARES = {
    torch.float64: FLOAT64_SUMS, torch.float32: FLOAT32_SUMS,
    **{kind: FLOAT32_SUMS + torch.finfo(kind).eps / 2 for kind in (torch.bfloat16, torch.float16)},
}  # fmt: skip


def entry(name):
    """torch's entry of an operator; only now is torch's table imported, which takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    (found,) = (one for one in op_db if one.name == name)
    return found


def check(ours, theirs, leaves):
    """Fail unless values and gradients are those of torch in float64."""
    found = []
    for call, wide in ((ours, False), (theirs, True)):
        given = [(one.double() if wide else one).detach().clone().requires_grad_() for one in leaves]
        y = call(*given)
        g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(leaves[0].dtype).to(y.dtype)
        found.append([y, *torch.autograd.grad(y, given, g)])
    for one, other in zip(*found, strict=True):
        assert one.dtype == leaves[0].dtype
        if other.any():
            assert_within_share([one.double()], [other], SHARES[one.dtype])
        assert one.shape == other.shape


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of padding="same" with even filters
@pytest.mark.parametrize(("mode", "dtype"), KINDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples(name, mode, dtype, monkeypatch, plans):
    """And what must raise does by both, float64 in it being dtype."""
    monkeypatch.setenv("NKICONV_CPU", mode)
    torch.manual_seed(0)
    ours, theirs = FUNCTIONS[name]
    for one in entry(name).sample_inputs("cpu", dtype):
        tensors = [one.input, *(each for each in one.args if each is not None)]
        print([each.shape for each in tensors], one.kwargs)
        check(*(functools.partial(f, **one.kwargs) for f in (ours, theirs)), tensors)
    for error in entry(name).error_inputs("cpu") if dtype in (torch.float32, torch.float64) else ():
        one = error.sample_input
        tensors = [
            each.to(dtype) if isinstance(each, torch.Tensor) and each.dtype == torch.float64 else each
            for each in (one.input, *one.args)
        ]
        for function in (ours, theirs):
            with pytest.raises(error.error_type):
                function(*tensors, **one.kwargs)
