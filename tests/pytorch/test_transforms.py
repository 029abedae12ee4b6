"""Derivatives in both directions, twice and under torch.func: whoever computes, they are those of torch's formula."""

import functools

import pytest
import torch
from layers import CAUSAL, CONV1D, causal, causal_in_torch, randoms
from layers import conv1d as ours
from layers import conv1d_in_torch as torchs
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)


def operators(x, w, bias, residual, activation="silu", position="pre_activation"):
    return torch.ops.nkiconv.conv1d(x, w, bias, residual, [2], [1, 1], [1], [1], 2, activation, position, None)


X, W, B, R = randoms(*CONV1D)


def close(found, expected):
    assert_within_share(tree_leaves(found), tree_leaves(expected), FLOAT32_SUMS)


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


def causal_operator(x, w, bias, initial, activation="silu"):
    return torch.ops.nkiconv.causal_conv1d(x, w, bias, initial, None, None, True, activation, None)


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
