"""An EEG recording: a filter of its own for each electrode, causal as in a monitor that shows them live.

matplotlib's eeg.dat: raw float64, 800 samples of 4 electrodes, 10 seconds at 80 Hz, normalised to a standard deviation
of 1 by the file's author.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...api.depthwise_conv1d import depthwise_problem
from ...errors import FileFormatError
from ...problem import ConvProblem
from ...reference import AnyArray, Float64Array
from . import filters as fir
from . import plots

RATE_HZ = 80.0
SAMPLES, TAPS = 800, 65
#: Samples by which a symmetric causal filter delays the signal.
DELAY = TAPS // 2
#: Samples of one spectrum; those of overlapping pieces are averaged.
PIECE = 200


@dataclass(frozen=True)
class Channel:
    """One electrode, and the filter it gets."""

    electrode: str
    what: str
    w: Float64Array


CHANNELS = (
    Channel("PG3", "low-pass 4 Hz: delta waves", fir.low_pass(TAPS, 4, RATE_HZ)),
    Channel("PG5", "band-pass 8-13 Hz: alpha waves", fir.band_pass(TAPS, 8, 13, RATE_HZ)),
    Channel("PG7", "high-pass 13 Hz: beta waves and up", fir.high_pass(TAPS, 13, RATE_HZ)),
    Channel("PG9", "band-stop 8-13 Hz: all but alpha waves", fir.band_stop(TAPS, 8, 13, RATE_HZ)),
)


def recording() -> AnyArray:
    """The recording, fp32 [1, 4, 800]. Raises UnsupportedError, FileFormatError."""
    path = plots.sample_data("eeg.dat")
    values = np.fromfile(path)
    if values.size != SAMPLES * len(CHANNELS):
        raise FileFormatError(
            f"{path.name}: holds {values.size} numbers, not {SAMPLES} samples of {len(CHANNELS)} electrodes; "
            "reinstall matplotlib"
        )
    return np.ascontiguousarray(values.reshape(SAMPLES, len(CHANNELS)).T[np.newaxis], np.float32)


def filters() -> AnyArray:
    """The four filters, fp32 [4, 65]; symmetric, so cross-correlation and convolution are the same."""
    return np.stack([channel.w for channel in CHANNELS]).astype(np.float32)


def problem(x: AnyArray, w: AnyArray) -> ConvProblem:
    """The convolution of the recording with its filters: every output depends on the past only."""
    return depthwise_problem(x, w, padding="causal")


def draw(x: AnyArray, y: AnyArray, w: AnyArray, path: Path) -> None:
    """Before and after, in time and in frequency: x, y [1, 4, 800], w [4, 65]."""
    drawn = plots.figure(13, 10)
    axes = drawn.subplots(len(CHANNELS), 2, width_ratios=(2, 1), sharex="col")
    drawn.suptitle(
        f"EEG, 4 electrodes, {SAMPLES} samples at {RATE_HZ:g} Hz: a causal {TAPS}-tap FIR filter for each electrode\n"
        f"outputs are drawn {DELAY / RATE_HZ:g} s earlier, the filters' delay; sd: standard deviation of the recording",
        fontsize=13,
    )
    for c, channel in enumerate(CHANNELS):
        _draw_time(axes[c, 0], channel, x[0, c], y[0, c])
        _draw_frequency(axes[c, 1], x[0, c], y[0, c], w[c].astype(np.float64))
    axes[-1, 0].set_xlabel("time (s)")
    axes[-1, 1].set_xlabel("frequency (Hz)")
    axes[0, 0].legend(loc="lower left", ncols=2)
    axes[0, 1].legend(loc="upper right", fontsize=8)
    plots.save_figure(drawn, path)


def _draw_time(axis: Any, channel: Channel, x: AnyArray, y: AnyArray) -> None:
    time_s = np.arange(SAMPLES) / RATE_HZ
    axis.plot(time_s, x, color=plots.BEFORE, linewidth=0.9, label="recorded")
    axis.plot(time_s[:-DELAY], y[DELAY:], color=plots.AFTER, linewidth=1.2, label="filtered")
    axis.set_title(f"{channel.electrode}, {channel.what}", loc="left", fontsize=11)
    axis.set_ylabel("amplitude (sd)")
    axis.set_xlim(0, SAMPLES / RATE_HZ)
    axis.grid(alpha=0.3)


def _draw_frequency(axis: Any, x: AnyArray, y: AnyArray, w: Float64Array) -> None:
    frequency_hz = np.fft.rfftfreq(PIECE, 1 / RATE_HZ)
    gain = fir.response(w, np.asarray(frequency_hz, np.float64), RATE_HZ)
    axis.semilogy(frequency_hz, _power(x), color=plots.BEFORE, label="recorded")
    axis.semilogy(frequency_hz, _power(y[TAPS:]), color=plots.AFTER, label="filtered")
    axis.semilogy(frequency_hz, _power(x) * gain**2, color="black", linestyle=":", label="recorded x gain$^2$")
    axis.set_ylabel("power (sd$^2$/Hz)")
    axis.set_xlim(0, RATE_HZ / 2)
    axis.set_ylim(1e-8, 2)
    axis.grid(alpha=0.3)


def _power(signal: AnyArray) -> Float64Array:
    """Power spectral density (Welch: Hann windows that overlap by half), for `PIECE // 2 + 1` frequencies."""
    window = np.hanning(PIECE)
    starts = range(0, len(signal) - PIECE + 1, PIECE // 2)
    pieces = np.stack([signal[start : start + PIECE] * window for start in starts])
    return np.asarray(2 * np.mean(np.abs(np.fft.rfft(pieces)) ** 2, axis=0) / (RATE_HZ * np.sum(window**2)))
