"""FIR filters, designed with NumPy: windowed sinc for frequency bands, Gaussians for pictures. All float64."""

from __future__ import annotations

import numpy as np

from ...reference import Float64Array


def low_pass(taps: int, cutoff_hz: float, rate_hz: float) -> Float64Array:
    """Windowed sinc with a Hamming window, gain 1 at 0 Hz and about 1/2 at the cutoff; `taps` is odd, so symmetric."""
    t = np.arange(taps) - taps // 2
    ideal = np.sinc(2 * cutoff_hz / rate_hz * t) * np.hamming(taps)
    return np.asarray(ideal / ideal.sum())


def high_pass(taps: int, cutoff_hz: float, rate_hz: float) -> Float64Array:
    """The complement of `low_pass`."""
    return _impulse(taps) - low_pass(taps, cutoff_hz, rate_hz)


def band_pass(taps: int, low_hz: float, high_hz: float, rate_hz: float) -> Float64Array:
    """Keeps low_hz to high_hz."""
    return low_pass(taps, high_hz, rate_hz) - low_pass(taps, low_hz, rate_hz)


def band_stop(taps: int, low_hz: float, high_hz: float, rate_hz: float) -> Float64Array:
    """The complement of `band_pass`."""
    return _impulse(taps) - band_pass(taps, low_hz, high_hz, rate_hz)


def gaussian(sigma: float) -> Float64Array:
    """Blur: samples of a Gaussian out to 3 sigma, sum 1."""
    t = _offsets(sigma)
    bell = np.exp(-0.5 * (t / sigma) ** 2)
    return np.asarray(bell / bell.sum())


def gaussian_derivative(sigma: float) -> Float64Array:
    """Slope of the blurred signal, for a cross-correlation: 1 on a ramp that rises by 1 a sample."""
    t = _offsets(sigma)
    weights = t * gaussian(sigma)
    return np.asarray(weights / (weights * t).sum())


def response(w: Float64Array, frequency_hz: Float64Array, rate_hz: float) -> Float64Array:
    """Gain of a filter [S] at each frequency."""
    phases = np.exp(-2j * np.pi * np.outer(frequency_hz / rate_hz, np.arange(len(w))))
    return np.asarray(np.abs(phases @ w))


def _impulse(taps: int) -> Float64Array:
    return np.asarray(np.arange(taps) == taps // 2, np.float64)


def _offsets(sigma: float) -> Float64Array:
    reach = int(np.ceil(3 * sigma))
    return np.arange(-reach, reach + 1, dtype=np.float64)
