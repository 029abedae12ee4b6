"""l2norm of heads on Vector, and GpSimd for the last product, in stages that are issued one step apart: none waits.

    y[t, h, :] = z[t, h, :] / sqrt(sum of z[t, h, :]^2 + eps)

One `bn_stats` a head reads z once: count, mean and sum of squared deviations, of elements at even and odd places. The
sum of squares is that of deviations + count * mean^2, of both: no term is negative, so nothing cancels. Against a
product and a reduction that saves a third of Vector's time for heads of 128. A NaN or Inf makes all of its head NaN.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.tiles import size_of
from ..._engines import book_vector, pick_sum


@dataclass
class NormJob:
    """Heads on their way. z: [tokens, heads, dim] fp32 in SBUF; y_sbuf: the same of y's dtype; store: what to do with
    it; stats: [tokens, heads, 2, 3] fp32; factor: [tokens, heads, 1] fp32."""

    z: object
    y_sbuf: object
    eps: float
    ledger: object
    store: object
    stats: object = None
    factor: object = None
    stage: int = 0


def advance(job):
    """Issue the next stage of a job; returns whether there is one more."""
    STAGES[job.stage](job)
    job.stage = job.stage + 1
    return job.stage < len(STAGES)


def take_statistics(job):
    """Counts, means and sums of squared deviations."""
    tokens, heads, dim = job.z.shape
    job.stats = nl.ndarray((tokens, heads, 2, 3), dtype=nl.float32, buffer=nl.sbuf)
    for head in range(heads):
        book_vector(job.ledger, dim)
        into = job.stats[0:tokens, head, 0:2, 0:3].reshape((tokens, 6))
        nisa.bn_stats(dst=into, data=job.z[0:tokens, head, 0:dim])


def multiply_mean(job):
    """Counts times means, in the place of the counts; the second time, times means once more."""
    tokens, heads = job.z.shape[0], job.z.shape[1]
    book_vector(job.ledger, 2 * heads)
    counts, means = (job.stats[0:tokens, 0:heads, 0:2, place] for place in (0, 1))
    nisa.tensor_tensor(dst=counts, data1=counts, data2=means, op=nl.multiply)


def add_squares(job):
    """Sums of squares."""
    tokens, heads = job.z.shape[0], job.z.shape[1]
    job.factor = nl.ndarray((tokens, heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    book_vector(job.ledger, 4 * heads)
    nisa.tensor_reduce(dst=job.factor, op=nl.add, data=job.stats[0:tokens, 0:heads, 0:2, 0:3:2], axis=(2, 3))


def invert_root(job):
    """What each head is multiplied by."""
    book_vector(job.ledger, job.factor.shape[1])
    nisa.tensor_scalar(dst=job.factor, data=job.factor, op0=nl.add, operand0=job.eps, op1=nl.power, operand1=-0.5)


def scale_heads(job):
    """y, rounded once, and its store."""
    factor, engine = job.factor.broadcast(2, job.z.shape[2]), pick_sum(job.ledger, size_of(job.z.shape[1:]), False)
    nisa.tensor_tensor(dst=job.y_sbuf, data1=job.z, data2=factor, op=nl.multiply, engine=engine)
    job.store()


STAGES = (take_statistics, multiply_mean, multiply_mean, add_squares, invert_root, scale_heads)
