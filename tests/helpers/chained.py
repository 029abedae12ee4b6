"""What tests of convert(fuse=True) share: numbers for models, what a report tells, what calls compute, comparisons."""

import copy

import torch
from operators_seen import Seen
from torch import nn
from torch.utils._pytree import tree_leaves

from nkiconv.pytorch import convert

C = 8


def drawn(model, seed=0):
    """A model with parameters and statistics that no layer has by default."""
    generator = torch.Generator().manual_seed(seed)
    for name, one in model.state_dict().items():
        if one.is_floating_point():
            low = 0.5 if name.endswith("var") else -0.5
            one.copy_(torch.rand(one.shape, generator=generator) + low)
    return model


def image(*shape, seed=1):
    """[N, C, ...], with a mean that is no small number."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 2


def made(forward, base=nn.Module, **parts):
    """A module with these parts whose forward is this function."""
    model = type("Made", (base,), {"forward": forward})()
    for name, part in parts.items():
        setattr(model, name, part)
    return model


def hooked(model, name=""):
    """A model with a hook of a module of it."""
    model.get_submodule(name).register_forward_hook(lambda *_: None)
    return model


def told(report):
    """What became of each norm, upsampling, layer and block of rows, and what is in calls of other convolutions."""
    found = [
        f"{one.norm}: {one.reason or one}" + "; offset" * one.offset + f"; statistics {' '.join(one.statistics)}"
        for one in report.chains
    ]
    found = [line.removesuffix("; statistics ") for line in found]
    found += [f"{one.name}: {one.reason or one}" for one in (*report.doublings, *report.layers, *report.blocks)]
    return found + [f"{one.name}: {one.epilogue}" for one in report.entries if one.epilogue]


def steps(name, given):
    """What a call computes, in order, by its arguments: "norm silu conv2d sum stats"."""
    plain, _, kind = name.partition("_with_")
    normed = given.get("x_scale") is not None or given.get("x_shift") is not None
    frames = given.get("initial_frames")
    residual, position = given.get("residual") is not None, given.get("residual_position")
    last = residual and "post_activation" in (position, given["residual"])
    before = given.get("x_norm"), "norm" * normed, given.get("x_activation"), "up" * (given.get("x_upsample") == 2)
    before += (given.get("chunks"), "frames" * (isinstance(frames, torch.Tensor) or bool(frames)))
    after = "sum" * (residual and not last), given.get("y_norm"), given.get("activation"), "sum" * last
    stats = kind == "stats" or given.get("return_stats") is not None
    return " ".join(filter(None, (*before, plain, *after, "stats" * stats)))


def calls(model, *inputs, grad=False):
    """What the calls of a run compute, but of norms' scale and shift."""
    with Seen() as seen, torch.set_grad_enabled(grad):
        model(*(one if one is None else one.clone() for one in inputs))
    found = []
    for func, args, kwargs in seen.nkiconvs:
        arguments = func._schema.arguments
        given = {one.name: one.default_value for one in arguments if one.has_default_value()}
        given |= dict(zip((one.name for one in arguments), args, strict=False)) | kwargs
        found.append(steps(func.name().removeprefix("nkiconv::"), given))
    return "; ".join(one for one in found if one not in ("norm_scale_shift", "known_stats"))


def terms_of(model):
    """Products in the sums of all layers."""
    return sum(one[0].numel() for one in model.parameters() if one.dim() > 1)


#: Each term of an fp32 sum rounds it by at most 2^-24 of what it has reached, of which the result may be a quarter.
OF_A_TERM = 4 * 2.0**-24


def assert_same(converted, model, *inputs, terms=None):
    """Both within fp32 rounding of the modules in float64; terms: products in a sum of all layers."""
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(*(one.double() for one in inputs))
        for one in (converted, model):
            error = (one(*(given.clone() for given in inputs)) - truth).abs().max()
            assert error <= OF_A_TERM * (terms or terms_of(model)) * max(1, truth.abs().max())


def derived(model, kind, inputs):
    """(what a copy of a model gives of inputs in a dtype, gradients of inputs and parameters, and moved statistics)."""
    own, leaves = copy.deepcopy(model).to(kind), [one.to(kind, copy=True).requires_grad_() for one in inputs]
    y = tree_leaves(own(*(one.clone() for one in leaves)))
    sum((one * one.detach().cos()).sum() for one in y).backward()
    gradients = [one.grad for one in (*leaves, *own.parameters()) if one.grad is not None]
    return [one.detach() for one in y], [*gradients, *(one for one in own.buffers() if one.is_floating_point())]


def assert_gradients(converted, model, *inputs, terms=None):
    """Results as `assert_same` has them; gradients, in which pixels are summed as well, and statistics by that more."""
    found, truth = derived(converted, torch.float32, inputs), derived(model, torch.float64, inputs)
    terms = terms or terms_of(model)
    for some, others, sums in zip(found, truth, (terms, terms * inputs[0][:, 0].numel()), strict=True):
        for one, other in zip(some, others, strict=True):
            assert (one - other).abs().max() <= OF_A_TERM * sums * max(1, other.abs().max())


def pair(make, training=False):
    """(convert(fuse=True) of a model, the model), with drawn parameters."""
    model = drawn(make()).train(training)
    return convert(model, fuse=True).model, model


def close(found, expected, terms):
    """Whether fp32 sums of so many products are the same in another order: either is off by its roundings."""
    return (found - expected).abs().max() <= 2 * OF_A_TERM * terms * max(1, expected.abs().max())
