"""A device whose constants nobody knows: the timing model under hidden ones, with noise on every run."""

from __future__ import annotations

import numpy as np

from nkiconv.simulator.hardware import CONSTANTS
from nkiconv.tools.calibrate.model import ModelDevice

#: What a run of a graph takes besides its calls, and each call besides its kernel, in us.
START_US, CALL_US = 95.0, 5.0


class HiddenDevice(ModelDevice):
    """A `Device` for probes.

    Args: constants: values by name, which its user does not see. noise: standard deviation of a run's time, a share.
    """

    name = description = "hidden"
    clock = "modelled, with noise"

    def __init__(self, constants: dict[str, float], noise: float, seed: int) -> None:
        super().__init__(constants)
        self._noise, self._rng = noise, np.random.default_rng(seed)

    def seconds(self, launched, calls, kwargs):
        """Of a graph: its start, and each call's own share."""
        exact = super().seconds(launched, calls, kwargs) + (START_US + CALL_US * len(calls)) * 1e-6
        return exact * (1 + self._noise * self._rng.standard_normal())


#: Constants that hardware cannot exceed, as shares of trn2.toml's: what documents give as a limit, and shares.
_HIGHEST = {
    "dma.engine_bytes_per_ns": 1.0, "dma.dma_transpose_frac_hbm": 1.0, "pe.row_tiles_overlap": 1.0,
    "dma.hbm_shared_gbps": 1.05,
}  # fmt: skip
#: How far a hidden constant is moved, as a share of trn2.toml's.
MOVED = 0.3


def hidden_constants(names, seed):
    """Constants moved by up to `MOVED`, as a device could have them: a trigger behind another is no quicker than one
    after a pause, and no limit is exceeded."""
    rng = np.random.default_rng(seed)
    found = {
        name: CONSTANTS[name].value * rng.uniform(1 - MOVED, _HIGHEST.get(name, 1 + MOVED)) for name in sorted(names)
    }
    if "dma.hwdge_again_ns" in found:
        found["dma.hwdge_again_ns"] = max(found["dma.hwdge_again_ns"], found["dma.hwdge_issue_ns"])
    return found
