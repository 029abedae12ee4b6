"""Matmuls on zeros while the array would wait for data, so that it is at its full rate when they come.

The array starts at half rate and stays there until a window of 3.4 us in which it was busy for 3/8 of what it could do
(trn2.toml, throttle.*). Zeros are of 16 bits whatever the data are: an fp32 matmul takes four times as long.
"""

from .._nki import nisa, nl

#: Matmuls that a config can ask for, at most.
WARM_UP_MAX = 256


def warm_zeros():
    """Zeros [128, 128] in SBUF for `warm_up`."""
    zeros_sbuf = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0, engine=nisa.engine.vector)
    return zeros_sbuf


def warm_up(zeros_sbuf, count, blocks):
    """`count` matmuls of `blocks` times 128 columns of zeros; results are never read."""
    if count > 0:
        shape = (nl.tile_size.pmax, blocks, nl.tile_size.pmax)
        zeros_psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
        for _ in range(count):
            nisa.nc_matmul(
                dst=zeros_psum,
                stationary=zeros_sbuf,
                moving=zeros_sbuf.expand_dim(1).broadcast(1, blocks),
                accumulate=False,
            )
