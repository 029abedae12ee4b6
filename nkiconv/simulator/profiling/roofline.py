"""The least time that a problem can take on trn2: its bytes through the HBM, its flops through the Tensor Engine."""

from __future__ import annotations

from dataclasses import dataclass

from ..timing import Rates

_PEAKS = {
    "float32": "peak.fp32_tflops",
    "float8_e4m3": "peak.fp8_tflops",
    "float8_e5m2": "peak.fp8_tflops",
}


@dataclass(frozen=True)
class Roofline:
    """Limits of a problem in us, on all cores of the launch."""

    bytes_us: float
    flops_us: float

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.flops_us)

    @property
    def limit(self) -> str:
        """Which of the two it is."""
        return "flops" if self.flops_us > self.bytes_us else "bytes"


def peak_flops_per_ns(dtype: str, cores: int, rates: Rates) -> float:
    """Flops per ns of the Tensor Engines for matmuls of a dtype (nki.language's name)."""
    return rates(_PEAKS.get(dtype, "peak.bf16_tflops")) * 1e3 * cores


def bytes_per_ns(cores: int, rates: Rates) -> float:
    """The bandwidth of one core's DMA engines, or, on two cores, of their HBM.

    For data that passes through SBUF: a copy within HBM reads and writes at once, so that on one core it can be faster.
    """
    return rates("dma.steady_core_gbps") if cores == 1 else rates("dma.hbm_stack_gbps")


def roofline(min_bytes: int, flops: int, dtype: str, cores: int, rates: Rates) -> Roofline:
    """Limits for the least bytes to and from HBM and the flops that the problem needs."""
    return Roofline(
        min_bytes / bytes_per_ns(cores, rates) / 1e3,
        flops / peak_flops_per_ns(dtype, cores, rates) / 1e3,
    )
