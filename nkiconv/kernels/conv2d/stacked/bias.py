"""Biases of a stack: one number a partition, for each u and job.

A DMA of single numbers takes an engine 55 ns for each, so that biases of several jobs come as rows, a job a partition,
and are transposed on the array.
"""

from ...._nki import nisa, nl
from ..boxes import load_box


def load_biases(bias_hbm, stack):
    """Rows [jobs, (u, k)] fp32 of up to 128 jobs each, zeros behind those of few channels; none without a bias."""
    found = []
    for first in range(0, len(stack.jobs) if bias_hbm != None else 0, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, len(stack.jobs) - first)
        rows_sbuf = nl.ndarray((count, stack.U * stack.kn), dtype=nl.float32, buffer=nl.sbuf)
        alike = stack.jobs[0][1] == stack.kn
        if not alike:
            nisa.memset(dst=rows_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        # jobs of as many channels by one DMA
        together = count if alike else 1
        for job in range(0, count, together):
            k0, kn = stack.jobs[first + job]
            for u in range(stack.U):
                load_box(rows_sbuf, bias_hbm, (job, u * kn), [[kn, together], [1, kn]], k0)
        found.append(rows_sbuf)
    return found


def transpose_biases(rows, stack):
    """[(u, k), 1] fp32 of each job, None without a bias."""
    found = []
    for rows_sbuf in rows:
        jobs, outputs = rows_sbuf.shape[0], rows_sbuf.shape[1]
        biases_sbuf = nl.ndarray((outputs, jobs), dtype=nl.float32, buffer=nl.sbuf)
        biases_psum = nl.ndarray((outputs, jobs), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=biases_psum, data=rows_sbuf, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=biases_sbuf, src=biases_psum, engine=nisa.engine.vector)
        for job in range(jobs):
            found.append(biases_sbuf[0 : stack.U * stack.jobs[len(found)][1], job : job + 1])
    while len(found) < len(stack.jobs):
        found.append(None)
    return found
