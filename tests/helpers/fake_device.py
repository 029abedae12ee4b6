"""A device for tests: kernels run in nkiconv's simulator, and the clock is a linear law with seeded noise."""

import numpy as np

from nkiconv.simulator import simulate

#: What the law says a call takes, by the kernel's name, and what a chain takes before its first call.
CALL_US = {
    "depthwise_conv1d_implicit_gemm": 12.0, "conv2d_implicit_gemm": 12.0, "conv_transpose2d_implicit_gemm": 12.0,
    "copy_floor": 3.0, "launch_floor": 2.0
}  # fmt: skip
START_US = 150.0


class FakeDevice:
    """A `nkiconv.tools.measure.device.Device`.

    Args: noise: standard deviation of a chain's time, a share of it. spoil: called with every output of `run`, returns
    the output to give instead. fail_at: the call of `seconds`, from 0, that raises.
    """

    name = "fake1.large"
    description = "fake1.large, made of Python"

    def __init__(self, noise=0.0, seed=0, spoil=None, fail_at=None):
        self.noise, self.spoil, self.fail_at = noise, spoil, fail_at
        self.rng = np.random.default_rng(seed)
        self.timed = []  # kernel's name and arrays of each call, by chain
        self.num_forgotten = 0

    def run(self, launched, args, kwargs):
        output = simulate(launched)(*args, **kwargs)
        return output if self.spoil is None else self.spoil(output)

    def seconds(self, launched, calls, kwargs):
        if len(self.timed) == self.fail_at:
            raise RuntimeError("the compiler gave up\nlong story")
        self.timed.append((launched.__name__, calls))
        law_us = START_US + CALL_US[launched.__name__] * len(calls)
        return law_us * 1e-6 * (1 + self.noise * self.rng.standard_normal())

    def forget(self):
        self.num_forgotten += 1


def off_by_one(c, q):
    """A `spoil` that adds 1 to one output of channel c."""

    def spoil(output):
        spoiled = output.copy()
        spoiled[0, c, 0, q] += 1
        return spoiled

    return spoil
