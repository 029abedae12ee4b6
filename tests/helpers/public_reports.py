"""What people reported of convolutions elsewhere, as rows for `tests/test_public_reports.py`, and what the rows share.

A row is named as the public report is, owner/repository#number of GitHub; its docstring says what failed there.
Integers, so that sums are exact in any order; the reference is torch's CPU or NumPy's.
"""

from collections.abc import Callable

import numpy as np
import torch
from causal import computing
from torch.nn import functional as F

from nkiconv import ConvProblem
from nkiconv.planner.entry import answer
from nkiconv.planner.request import Request

#: The reports of a row, of one fault, and the row.
REPORTS: dict[tuple[str, ...], Callable[[], None]] = {}


def report(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Make a function the row of these reports, which are of one fault."""

    def add(row: Callable[[], None]) -> Callable[[], None]:
        REPORTS[names] = row
        return row

    return add


def ints(*shape, seed=0, dtype=torch.float32):
    """A tensor of integers from -2 to 2."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def array(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def in_float64(*arrays):
    return [torch.from_numpy(one.astype(np.float64)) for one in arrays]


def equal(found, expected):
    """Fail unless all numbers are the same, in the dtype of what was found."""
    found, expected = (torch.as_tensor(one.astype(np.float32) if isinstance(one, np.ndarray) else one)
                       for one in (found, expected))  # fmt: skip
    assert found.shape == expected.shape
    assert torch.equal(found.double(), expected.to(found.dtype).double())


def as_torch(ours, theirs, tensors, **numbers):
    """Values and gradients of a kernel are torch's."""
    leaves = [one.detach().requires_grad_() for one in tensors]
    expected = theirs(*leaves, **numbers)
    slopes = ints(*expected.shape, seed=9)
    gradients = torch.autograd.grad(expected, leaves, slopes)
    with computing("simulate"):
        y = ours(*leaves, **numbers)
        found = torch.autograd.grad(y, leaves, slopes)
    for one, other in zip((y, *found), (expected, *gradients), strict=True):
        equal(one, other)


def causal_by_torch(x, w, bias=None):
    return F.conv1d(F.pad(x, (w.shape[1] - 1, 0)), w[:, None], bias, groups=w.shape[0])


def modelled(problem: ConvProblem) -> float:
    """Modelled us of what an estimate takes."""
    return answer(Request(problem=problem), quick=True, use_cache=False).modelled_us
