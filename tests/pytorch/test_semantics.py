"""What torch says of its convolutions beside their values holds for ours, whoever computes: traces and exports too."""

import functools
from collections import Counter

import pytest
import torch
from causal import integers
from chained import made
from commands import process
from gradchecks import several
from layers import FORMS, LAYERS, SPLITS, of_split, pair_of
from operators_seen import Seen
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_exact import same

from nkiconv import pytorch
from nkiconv.errors import ComparisonError, DtypeError, UnsupportedError
from nkiconv.pytorch import b2b
from nkiconv.pytorch.computers import agreements, host, simulated


@pytest.fixture(params=["torch", "operators in torch", "simulate"])
def computer(request, monkeypatch):
    """Who computes."""
    who = request.param
    monkeypatch.setenv("NKICONV_CPU", "simulate" if who == "simulate" else "torch")
    if who == "operators in torch":
        with Seen():
            yield who
    else:
        yield who


def test_plain_bf16_is_torchs_own_and_an_epilogue_rounds_once():
    generator = torch.Generator().manual_seed(0)
    x, w, bias, residual = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((2, 40, 9), (8, 40, 3), (8,), (2, 8, 7))
    )
    assert torch.equal(pytorch.conv1d(x, w, bias), F.conv1d(x, w, bias))
    wide = F.silu(F.conv1d(x.float(), w.float(), bias.float()) + residual.float()).bfloat16()
    assert torch.equal(pytorch.conv1d(x, w, bias, residual=residual, activation="silu"), wide)
    assert torch.equal(pytorch.conv1d(x, w, bias, activation="relu"), F.conv1d(x, w, bias).relu())


@pytest.mark.parametrize("where", ["simulate", "meta"])
def test_float64_of_kernels_is_refused(where, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate" if where == "simulate" else "torch")
    x, w = (torch.zeros(shape, dtype=torch.float64) for shape in ((1, 4, 8), (4, 4, 3)))
    if where == "meta":
        x, w = x.to("meta"), w.to("meta")
    with pytest.raises(DtypeError, match=r"input.dtype=torch.float64: .*\.float\(\), or compute it with torch on cpu"):
        pytorch.conv1d(x, w)
    with pytest.raises(DtypeError, match=r"x.dtype=torch.float64: .* NKICONV_CPU=torch"):
        pytorch.causal_conv1d_fn(x, w[:, 0])


def test_bf16_is_summed_in_fp32_where_onednn_has_none(monkeypatch):
    monkeypatch.setattr(host, "NATIVE", (torch.float32, torch.float64))
    x, w = (torch.randn(shape).bfloat16().requires_grad_() for shape in ((2, 8, 30), (6, 8, 5)))
    wide = [one.detach().float().requires_grad_() for one in (x, w)]
    y, expected = pytorch.conv1d(x, w, padding=2), F.conv1d(*wide, padding=2)
    g = torch.randn(y.shape).bfloat16()
    found = [y, *torch.autograd.grad(y, (x, w), g)]
    for one, ref in zip(found, [expected, *torch.autograd.grad(expected, wide, g.float())], strict=True):
        assert torch.equal(one, ref.bfloat16())


def test_autocast_casts_as_torch_does(computer):
    x, w, bias = integers(2, 4, 7), integers(4, 4, 3), integers(4)
    with torch.autocast("cpu", torch.bfloat16):
        for given in ((x, w, bias), (x.bfloat16(), w, bias)):
            y = pytorch.conv1d(*given)
            assert y.dtype == torch.bfloat16
            assert torch.equal(y, F.conv1d(*given))
        y = pytorch.conv1d(x, w / 64, bias, activation="silu")  # summed in fp32 all the same, and rounded once
        assert torch.equal(y, F.silu(F.conv1d(x.double(), w.double() / 64, bias.double())).bfloat16())
        with pytest.raises(DtypeError, match=r"input.dtype=torch.int64: accepted are"):
            pytorch.conv1d(x.long(), w)


@pytest.mark.cover(8)
@pytest.mark.parametrize("which", ["input", "weight", "both", "neither"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_channels_last_goes_through(which, activation, computer):
    x, w = integers(2, 4, 7, 6), integers(8, 4, 3, 3)
    x = x.to(memory_format=torch.channels_last) if which in ("input", "both") else x
    w = w.to(memory_format=torch.channels_last) if which in ("weight", "both") else w
    y, expected = pytorch.conv2d(x, w, activation=activation), F.conv2d(x, w)
    assert y.stride() == expected.stride()
    if activation is None:
        assert torch.equal(y, expected)
    else:
        torch.testing.assert_close(y, F.silu(expected))


def test_importing_warns_of_nothing_and_is_light():
    """Though each operator's kernel for derivatives takes the place of another one; what plans comes with its use."""
    script = """
import sys, warnings
import torch
before = set(sys.modules)
warnings.simplefilter("error", UserWarning)
import nkiconv.pytorch
heavy = ("nkiconv.simulator.isa", "nkiconv.simulator.launch", "nkiconv.simulator.timing", "nkiconv.planner",
         "nkiconv.kernels", "nkiconv.api", "sympy", "rich", "typer", "torch._dynamo", "torch._inductor",
         "torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor")
new = set(sys.modules) - before
assert not [name for name in new if name.startswith(heavy)], new
assert set(nkiconv.pytorch.__all__) <= set(dir(nkiconv.pytorch))
assert all(getattr(nkiconv.pytorch, name) is not None for name in nkiconv.pytorch.__all__)
"""
    done = process("-c", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.cover(4)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, "relu", "sigmoid"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d"])
def test_bias_and_residual_may_be_changed_before_backward(name, activation, position, computer):
    """Neither is read again but where the argument of an activation is summed anew."""
    call, _ = pair_of(name, activation=activation, position=position)

    def gradients(changed):
        x, w, bias, residual = (one.clone() for one in LAYERS[name].given)
        y = call(x.requires_grad_(), w.requires_grad_(), bias, residual)
        for one in (residual, bias)[: changed and 1 + (activation is None or position == "pre_activation")]:
            one.add_(1)
        return torch.autograd.grad(y.sum(), [x, w])

    assert same(gradients(True), gradients(False))


#: By torch (F) and by us, with results changed in place.
CHANGED = {
    "activation": (lambda x, w: F.silu(F.conv2d(x, w)).add_(1),
     lambda x, w: pytorch.conv2d(x, w, activation="silu").add_(1)),
    "residual": (lambda x, w: F.silu(F.conv2d(x, w, padding=1) + x).add_(1),
     lambda x, w: pytorch.conv2d(x, w, padding=1, activation="silu", residual=x).add_(1)),
    "plain": (lambda x, w: F.conv2d(x, w).add_(1), lambda x, w: pytorch.conv2d(x, w).add_(1)),
    "one image": (lambda x, w: F.conv2d(x[0], w).add_(1), lambda x, w: pytorch.conv2d(x[0], w).add_(1)),
    "rows": (lambda x, w: F.conv1d(x[..., 0], w[..., 0]).add_(1),
     lambda x, w: pytorch.conv1d(x[..., 0], w[..., 0]).add_(1)),
    "depthwise": (lambda x, w: F.conv1d(x[0, :, :, 0], w[:, :1, 0], groups=4).add_(1),
     lambda x, w: pytorch.conv1d(x[0, :, :, 0], w[:, :1, 0], groups=4).add_(1)),
    "causal": (lambda x, w: F.silu(F.conv1d(F.pad(x[..., 0], (2, 0)), w[:, :1, 0], groups=4)).mul_(2),
     lambda x, w: pytorch.causal_conv1d_fn(x[..., 0], w[:, 0, 0], activation="silu").mul_(2)),
    "states": (
        lambda x, w: torch.cat([F.conv1d(F.pad(x[..., 0], (2, 0)), w[:, :1, 0], groups=4), x[:, :, -2:, 0]], 2).mul(2),
        lambda x, w: torch.cat([one.mul_(2) for one in pytorch.causal_conv1d_fn(
            x[..., 0], w[:, 0, 0], return_final_states=True)], 2)),
    "frames": (lambda x, w: F.conv3d(torch.stack([2 * x, x], 2), w[:, :, None]).mul_(2),
     lambda x, w: pytorch.conv3d(x[:, :, None], w[:, :, None], initial_frames=2 * x[:, :, None]).mul_(2)),
}  # fmt: skip


def checkpointed(saved, function, *given):
    """Whether a policy keeps results of convolutions, or with "" of all operators."""

    def policy(_context, operator, *_args, **_named):
        return CheckpointPolicy.MUST_SAVE if saved in str(operator) else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *given, use_reentrant=False, context_fn=contexts)


def with_hooks(function, *given):
    """In a module whose full backward hook sees what comes back."""
    module = made(lambda self, *given: function(*given).relu_())
    module.register_full_backward_hook(lambda _module, before, _behind: tuple(2 * one for one in before))
    return module(*given)


#: relu_ saves its result, so that it goes with no policy, of torch's either.
WAYS = {
    "call": lambda function, *given: function(*given).relu_(), "hooks": with_hooks,
    "convolutions kept": functools.partial(checkpointed, "conv"), "all kept": functools.partial(checkpointed, ""),
}  # fmt: skip


@pytest.mark.cover(10)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHANGED)
def test_results_may_be_changed_in_place(name, way, computer):
    found = []
    for one in CHANGED[name]:
        given = [integers(2, 4, 6, 5).requires_grad_(), integers(4, 4, 3, 3).requires_grad_()]
        y = WAYS[way](one, *given)
        g = integers(*y.shape, seed=1)
        found.append([y, *torch.autograd.grad(y, given, g, allow_unused=True, materialize_grads=True)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("computer", ["torch", "simulate"])
def test_selective_checkpointing_is_never_wrong(computer, monkeypatch):
    """What torch refuses, a kept result that was changed before another layer reads it, is refused or right."""

    layers = {name: nn.Conv2d(4, 4, 3, padding=1) for name in ("first", "second")}
    model, x = made(lambda m, x: m.second(m.first(x).add_(1)), **layers), integers(1, 4, 6, 5).requires_grad_()
    monkeypatch.setenv("NKICONV_CPU", computer)
    for one in model.parameters():
        one.data = integers(*one.shape)
    leaves = [x, *model.parameters()]
    expected = torch.autograd.grad(model(x).sum(), leaves)
    y = checkpointed("conv", pytorch.convert(model).model, x)
    if computer == "torch":
        with pytest.raises(RuntimeError, match="has been mutated"):
            torch.autograd.grad(y.sum(), leaves)
        return
    assert same(torch.autograd.grad(y.sum(), leaves), expected)


X, W = integers(2, 3, 7) + 0.3, integers(3, 4, seed=1)
IMAGE, STATS = torch.ones(2, 6, 5, 6), pytorch.channel_stats(torch.ones(2, 6, 5, 6))
SPLIT, THREE, PROJ, MIXED = of_split()[:2], torch.rand(2, 12, 9), torch.rand(12, 3), torch.rand(6, 6)


def named(form):
    return FORMS[form].call(*FORMS[form].tensors(2), layer="encoder.stem")


def rows():
    return pytorch.causal_conv1d_fn(X, W, return_final_states=True, layer="mixer.conv")


def intercepted():
    with pytorch.intercept():
        return F.conv2d(IMAGE, torch.ones(1, 6, 1, 1))


#: What gives results, what is made of these, a call, and what the comparison says.
WRONG = {
    "rows": (host, "reference", lambda y: y * 1.0001, rows, r"mixer.conv \(depthwise_conv1d\): the kernel"),
    "states": (simulated.BACKEND, "convolve", lambda y, final: (y, final + 1), rows,
     "the kernel's final state is not the last 3 columns"),
    "split": (simulated.BACKEND, "causal_conv1d_split", lambda y, *more: (y * (1 + 2**-12), *more),
     lambda: pytorch.causal_conv1d_split(*SPLIT, splits=SPLITS), "further from float64"),
    "statistics": (simulated.BACKEND, "convolve", lambda y, stats: (y, stats * 1.001), lambda: named("statistics"),
     r"encoder.stem \(conv2d\): the kernel is up to"),
    "upsampled": (simulated.BACKEND, "convolve", lambda y: y.flip(3), lambda: named("upsampled"),
     r"encoder.stem \(conv2d\): the kernel"),
    "channel_stats": (simulated, "from_numpy", lambda found: found + 1e-3,
     lambda: pytorch.channel_stats(IMAGE), "channel_stats: the kernel is up to"),
    "norm_scale_shift": (simulated, "from_numpy", lambda found: found + 1e-3,
     lambda: pytorch.norm_scale_shift(STATS, num_groups=3), "norm_scale_shift: the kernel is up to"),
    "intercepted": (simulated.BACKEND, "convolve", lambda y: y + 1, intercepted, "conv2d"),
    "gated": (simulated.BACKEND, "convolve", lambda y: y * 1.0001, lambda: pytorch.gated_short_conv(THREE, PROJ[:4]),
     "gated_short_conv: the kernel and torch differ"),
    "gated tokens": (simulated.BACKEND, "causal_conv1d_split", lambda y, *more: (y * 1.0001, *more),
     lambda: pytorch.gated_short_conv(THREE.transpose(1, 2), PROJ[:4], layout="NWC"),
     "gated_short_conv: the kernel and torch differ"),
    "b2b": (simulated, "from_numpy", lambda found: found + 1,
     lambda: b2b.OPERATOR(THREE, PROJ, PROJ[:4], None, None, False, "mixer"), "mixer: .* further from float64"),
    "mlp": (simulated, "from_numpy", lambda found: found + 1, lambda: pytorch.pointwise_mlp(IMAGE, *[MIXED] * 2),
     "pointwise_mlp: .* further from float64"),
}  # fmt: skip


@pytest.mark.parametrize(("module", "function", "wrong", "call", "words"), WRONG.values(), ids=WRONG)
def test_a_comparison_finds_what_differs(module, function, wrong, call, words, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    call()
    real = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *args: wrong(*several(real(*args))))
    with pytest.raises(ComparisonError, match=words):
        call()


# A comparison that finds no difference says so, once, when the program ends.

COMPARED = """
import torch
from nkiconv import pytorch as nkiconv_torch

for _ in range(2):
    nkiconv_torch.conv2d(torch.ones(1, 3, 6, 6), torch.ones(4, 3, 3, 3))
"""


@pytest.mark.slow
@pytest.mark.simulator_only
def test_a_program_ends_with_what_was_compared():
    done = process("-c", COMPARED, NKICONV_CPU="compare")
    said = "held 2 kernels' results against torch: all agree within their error bounds\n"
    assert (done.stdout, done.stderr) == ("", f"nkiconv: NKICONV_CPU=compare {said}")


def test_a_difference_is_said():
    assert agreements.text(Counter({True: 4, False: 1})).endswith("held 5 kernels' results against torch: 1 DIFFER")
    one = agreements.text(Counter({True: 1}))
    assert one.endswith("held 1 kernel's result against torch: all agree within their error bounds")


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, (4, 0)))


#: Modules of torch.nn, or ours of that name, and an input's shape.
TRACED = {
    "transposed rows": (lambda of: of.ConvTranspose1d(4, 4, 3, stride=2), (2, 4, 8)),
    "transposed images": (lambda of: of.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1), (2, 4, 8, 6)),
    "transposed volumes": (lambda of: of.ConvTranspose3d(4, 4, 3, padding=1), (2, 4, 4, 3, 5)),
    "to a size": (lambda of: made(lambda m, x: m.conv(x, output_size=[2 * x.shape[2] + 1, 2 * x.shape[3] + 2]),
            conv=of.ConvTranspose2d(4, 4, 3, stride=2)),
        (2, 4, 8, 6)),
    "same rows": (lambda of: of.Conv1d(4, 4, 3, padding="same", groups=4), (2, 4, 8)),
    "same images": (lambda of: of.Conv2d(4, 4, (3, 4), padding="same", dilation=2), (2, 4, 8, 6)),
    "one image": (lambda of: of.Conv2d(4, 4, 3, stride=2, padding=1), (4, 8, 6)),
    "causal rows": (lambda of: getattr(of, "CausalConv1d", Causal)(4, 6, 3, dilation=2), (2, 4, 8)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("make", "shape"), TRACED.values(), ids=TRACED)
def test_jit_traces_hold_for_other_extents(make, shape):
    theirs, ours = make(nn), make(pytorch.nn)
    ours.load_state_dict(theirs.state_dict())
    traced = torch.jit.trace(ours, torch.randn(shape))
    x = torch.randn([*shape[:2], *(extent + 3 for extent in shape[2:])])
    torch.testing.assert_close(traced(x), theirs(x))


def codec():
    """Of each kind of function one, with what is fused."""

    def forward(self, x):
        y, state = pytorch.causal_conv1d_fn(self.up(self.rows(x)), self.weight, return_final_states=True)
        return self.image(y[:, None], residual=y[:, None]), state

    rows, up = pytorch.nn.CausalConv1d(4, 6, 3, activation="silu"), pytorch.nn.ConvTranspose1d(6, 4, 4, stride=2)
    image = pytorch.nn.Conv2d(1, 1, 4, padding="same", activation="gelu")
    return made(forward, rows=rows, up=up, image=image, weight=nn.Parameter(torch.randn(4, 3)))


def under_onnx(function):
    """What torch.onnx.export calls, which takes onnxscript for the rest."""
    from torch.onnx._internal.exporter import _flags

    return _flags.set_onnx_exporting_flag(function)()


def test_onnx_gets_torchs_convolutions():
    model, x = codec().eval(), torch.randn(2, 4, 9)
    program = under_onnx(lambda: export(model, (x,), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO},)))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert not [name for name in names if "nkiconv" in name]
    assert sum("conv" in name for name in names) == 4
    other = torch.randn(3, 4, 14)
    for one, two in zip(program.module()(other), model(other), strict=True):
        torch.testing.assert_close(one, two)


def test_onnx_refuses_our_operators_by_name():
    program = export(pytorch.nn.Conv2d(4, 4, 3), (torch.randn(1, 4, 8, 8),))
    with pytest.raises(UnsupportedError, match=r"^torch\.onnx\.export: ONNX has no nkiconv::conv2d; pass the model"):
        under_onnx(program.run_decompositions)
