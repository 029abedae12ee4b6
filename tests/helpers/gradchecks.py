"""Functions of tensors against the same by torch in float64: derivatives in both directions, twice, and of batches."""

import torch
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import func
from torch.autograd import forward_ad, gradcheck, gradgradcheck


def assert_derivatives(function, leaves, **more):
    """First and second derivatives by every leaf, along random directions: in a tenth of the time of whole matrices."""
    assert gradcheck(function, leaves, fast_mode=True, **more)
    assert gradgradcheck(function, leaves, fast_mode=True)


def several(found):
    """The results of a function that returns one or more."""
    return found if isinstance(found, tuple) else (found,)


def assert_gradients(function, right, given, share=FLOAT32_SUMS):
    """Results, and gradients by all tensors of all results and of each alone; of several as a share of the largest."""
    given = [None if one is None else one.detach().requires_grad_() for one in given]
    wide = [None if one is None else one.detach().double().requires_grad_() for one in given]
    found, expected = several(function(*given)), several(right(*wide))
    assert_within_share(found, expected, FLOAT32_SUMS)
    gs = [one.detach().cos() for one in expected]
    for at in {(0, len(gs)), *((i, i + 1) for i in range(len(gs)))}:
        pairs = []
        for results, leaves, kind in ((found, given, torch.float32), (expected, wide, torch.float64)):
            some = [one.to(kind) for one in gs[slice(*at)]]
            kept = [one for one in leaves if one is not None]
            pairs.append(torch.autograd.grad(results[slice(*at)], kept, some, True, materialize_grads=True))
        for one in [pairs] if len(gs) > 1 else ([[by] for by in each] for each in zip(*pairs, strict=True)):
            assert_within_share(*one, share)


def assert_tangents(function, right, given, share=FLOAT32_SUMS):
    """Tangents of all tensors, and of each alone."""
    for at in (range(len(given)), *([i] for i in range(len(given)))):
        found = []
        for call, kind in ((function, torch.float32), (right, torch.float64)):
            with forward_ad.dual_level():
                pairs = [(one.to(kind), one.cos().to(kind)) for one in given]
                duals = [forward_ad.make_dual(*pair) if i in at else pair[0] for i, pair in enumerate(pairs)]
                results = map(forward_ad.unpack_dual, several(call(*duals)))
                found.append([torch.zeros_like(y) if tangent is None else tangent for y, tangent in results])
        assert_within_share(*found, share)


def assert_batches(function, right, given, batched, share=FLOAT32_SUMS):
    """Results of `vmap`, the tensors at `batched` having two each."""
    given = [torch.stack([one, one.cos()], 1) if i in batched else one for i, one in enumerate(given)]
    dims = tuple(1 if i in batched else None for i in range(len(given)))
    found = several(func.vmap(function, dims)(*given))
    each = [[one.select(1, k) if i in batched else one for i, one in enumerate(given)] for k in (0, 1)]
    expected = zip(*(several(right(*(one.double() for one in some))) for some in each), strict=True)
    for one, others in zip(found, expected, strict=True):
        assert_within_share(one, others, share)
