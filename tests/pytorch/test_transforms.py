"""Derivatives in both directions, twice and under torch.func: whoever computes, they are those of torch's formula."""

import functools

import pytest
import torch
from gradchecks import assert_tangents
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch.computers import host
from nkiconv.rules import ACTIVATIONS

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)


def randoms(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator, dtype=dtype) / 2 for shape in shapes]


def ours(x, w, bias, residual, activation="silu", position="pre_activation"):
    return pytorch.conv1d(
        x, w, bias, 2, 1, activation=activation, residual=residual, residual_position=position, groups=2
    )


def operators(x, w, bias, residual, activation="silu", position="pre_activation"):
    return torch.ops.nkiconv.conv1d(x, w, bias, residual, [2], [1, 1], [1], [1], 2, activation, position, None)


def torchs(x, w, bias, residual, activation="silu", position="pre_activation"):
    z = F.conv1d(x, w, bias, 2, 1, groups=2)
    z = z + residual if position == "pre_activation" else z
    y = z if activation is None else host.activate(z, activation)
    return y + residual if position == "post_activation" else y


SHAPES = ((2, 4, 5), (4, 2, 3), (4,), (2, 4, 3))
X, W, B, R = randoms(*SHAPES)


def close(found, expected):
    assert_within_share(tree_leaves(found), tree_leaves(expected), FLOAT32_SUMS)


@in_both
@pytest.mark.cover(2)
@pytest.mark.parametrize("function", [ours, operators])
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_tangents(function, activation, position, mode):
    more = {"activation": activation, "position": position}
    assert_tangents(functools.partial(function, **more), functools.partial(torchs, **more), randoms(*SHAPES))


def by_bias(function):
    """A number of the bias alone: small Jacobians."""
    return lambda bias: (function(X, W, bias, R) * function(X, W, bias, R, None)).sum((0, 2))


def by_image(function):
    return lambda x: function(x[None], W, B, R[:1]).pow(2).sum()


TRANSFORMS = {
    "grad": lambda f: func.grad(lambda bias: by_bias(f)(bias).sum()),
    "vjp": lambda f: lambda bias: func.vjp(by_bias(f), bias)[1](torch.arange(4.0))[0],
    "jacrev": lambda f: func.jacrev(by_bias(f)),
    "jacfwd": lambda f: func.jacfwd(by_bias(f)),
    "hessian": lambda f: func.hessian(lambda bias: by_bias(f)(bias).sum()),
    "reverse twice": lambda f: func.jacrev(func.jacrev(by_bias(f))),
    "forward twice": lambda f: func.jacfwd(func.jacfwd(by_bias(f))),
    "forward in reverse": lambda f: func.jacrev(func.jacfwd(by_bias(f))),
}


@in_both
@pytest.mark.cover(12)
@pytest.mark.parametrize("function", [ours, operators])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, function, mode):
    found, expected = TRANSFORMS[name](function)(B), TRANSFORMS[name](torchs)(B)
    assert expected.abs().max() > 0
    close(found, expected)


@in_both
@pytest.mark.parametrize("function", [ours, operators])
def test_derivatives_of_each_sample(function, mode):
    def each(f):
        def loss(w, bias, x, residual):
            return f(x[None], w, bias, residual[None]).pow(2).sum()

        return func.vmap(func.grad(loss, (0, 1)), (None, None, 0, 0))(W, B, X, R)

    close(each(function), each(torchs))
    close(func.vmap(func.grad(by_image(function)))(X), func.vmap(func.grad(by_image(torchs)))(X))


@pytest.mark.cover(1)
@pytest.mark.parametrize("function", [ours, operators])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_gradcheck(function, activation):
    """torch's own check against differences, in float64, in both directions and of batches."""
    given = [one.requires_grad_() for one in randoms((1, 2, 3), (2, 1, 3), (2,), (1, 2, 2), dtype=torch.float64)]
    convolve = functools.partial(function, activation=activation)
    assert torch.autograd.gradcheck(convolve, given, check_forward_ad=True, check_batched_grad=True)
    if activation != "relu":  # has none
        assert torch.autograd.gradgradcheck(convolve, given, check_fwd_over_rev=True)


def causal(x, w, bias, initial, activation="silu"):
    return pytorch.causal_conv1d_fn(x, w, bias, initial_states=initial, return_final_states=True, activation=activation)


def causal_operator(x, w, bias, initial, activation="silu"):
    return torch.ops.nkiconv.causal_conv1d(x, w, bias, initial, None, None, True, activation, None)


def causal_in_torch(x, w, bias, initial, activation="silu"):
    rows = torch.cat([initial, x], 2)
    z = F.conv1d(rows, w[:, None], bias, groups=w.shape[0])
    return z if activation is None else F.silu(z), rows[..., x.shape[2] :]


CAUSAL = ((2, 3, 5), (3, 4), (3,), (2, 3, 3))


@in_both
@pytest.mark.parametrize("function", [causal, causal_operator])
def test_transforms_of_states(function, mode):
    x, w, bias, initial = randoms(*CAUSAL)

    def sums(f):
        return lambda bias: sum(one.pow(2).sum((0, 2)) for one in f(x, w, bias, initial))

    close(
        func.hessian(lambda bias: sums(function)(bias).sum())(bias),
        func.hessian(lambda b: sums(causal_in_torch)(b).sum())(bias),
    )
    close(func.jacfwd(func.jacrev(sums(function)))(bias), func.jacfwd(func.jacrev(sums(causal_in_torch)))(bias))


@pytest.mark.cover(1)
@pytest.mark.parametrize("function", [causal, causal_operator])
def test_gradcheck_of_states(function):
    given = [one.requires_grad_() for one in randoms((1, 2, 2), (2, 3), (2,), (1, 2, 2), dtype=torch.float64)]
    assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, given, check_fwd_over_rev=True)


@in_both
@pytest.mark.parametrize("by", ["cu_seqlens", "seq_idx"])
def test_packed_sequences_have_no_tangents(by, mode):
    x, w = randoms((1, 3, 6), (3, 4))
    packing = {"cu_seqlens": torch.tensor([0, 2, 6]), "seq_idx": torch.tensor([[0, 0, 1, 1, 1, 1]])}
    call = functools.partial(pytorch.causal_conv1d_fn, weight=w, **{by: packing[by]})
    with pytest.raises(UnsupportedError, match=r"packed sequences .* have no derivatives in forward mode"):
        func.jvp(call, (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="no derivatives in forward mode"):
        call(forward_ad.make_dual(x, x))
    with pytest.raises(UnsupportedError, match="no derivatives in forward mode"):
        func.jvp(func.grad(lambda x: call(x).pow(2).sum()), (x,), (x,))


@in_both
def test_a_step_of_decoding_leaves_no_tangent_in_its_state(mode):
    x, w, state = randoms((2, 3), (3, 4), (2, 3, 3))
    expected = F.conv1d(torch.cat([torch.zeros(2, 3, 3), x.cos()[..., None]], 2), w[:, None], groups=3)[..., 0]
    with forward_ad.dual_level():
        y = pytorch.causal_conv1d_update(forward_ad.make_dual(x, x.cos()), state, w)
        close(forward_ad.unpack_dual(y).tangent, expected)
        assert forward_ad.unpack_dual(state).tangent is None
