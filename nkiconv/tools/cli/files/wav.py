"""Sound for conv1d and depthwise_conv1d: 16-bit WAV files as [1, C, W] in -1..1, one channel a track."""

from __future__ import annotations

import struct
import wave
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ....errors import DtypeError, FileFormatError, NkiconvError, UnsupportedError
from ....problem import DTYPES
from ....reference import AnyArray
from .format import Format, Loaded, Source, as_integers

#: A sample of 16 bits stands for this part of 1.
_SCALE = 1 << 15
_BYTES = 2
_SAMPLES = np.dtype("<i2")
#: Bytes of a header before the data, and the largest length in it.
_HEADER, _MAX_LENGTH = 44, (1 << 32) - 1
#: The most channels in a header.
_MAX_CHANNELS = (1 << 16) - 1


class Wav(Format):
    """Uncompressed WAV of 16 bits a sample."""

    what = "a 16-bit WAV file"
    suffixes = (".wav",)
    media_of = ("conv1d", "depthwise_conv1d")

    def read(self, source: Source, dtype: str | None) -> Loaded:
        """As `Format.read`; fp32, which holds every sample exactly, unless dtype says otherwise."""
        try:
            with wave.open(str(source.path), "rb") as sound:
                channels, width, rate, frames = sound.getparams()[:4]
                if width != _BYTES:
                    raise DtypeError(f"{source.text}: has {8 * width} bits a sample: accepted are 16; convert it")
                promised, size = frames * channels * _BYTES, source.path.stat().st_size
                data = sound.readframes(frames) if promised < size else b""
        except (wave.Error, EOFError, struct.error, RuntimeError) as error:
            reason = str(error) or "it ends too early"
            raise FileFormatError(f"{source.text}: is no uncompressed WAV file ({reason}); convert it") from error
        if len(data) != promised:
            raise FileFormatError(
                f"{source.text}: is truncated ({size:,} bytes, its header says {promised:,} of sound); save it again"
            )
        if frames == 0:
            raise FileFormatError(f"{source.text}: holds no samples; save sound")
        samples = np.frombuffer(data, _SAMPLES).reshape(1, frames, channels).transpose(0, 2, 1)
        scaled = np.ascontiguousarray(samples).astype(np.float32) / np.float32(_SCALE)
        return Loaded(scaled.astype(DTYPES[dtype or "fp32"]), rate)

    def refusals(self, target: Source, shape: tuple[int, ...], origin: Loaded) -> Iterator[NkiconvError]:
        """As `Format.refusals`: several pieces, or more than the header can count."""
        N, K, Q = shape
        if N != 1 or K > _MAX_CHANNELS or K * Q * _BYTES > _MAX_LENGTH - _HEADER:
            yield UnsupportedError(
                f"{target.text}: y is [{N}, {K}, {Q}], a WAV file holds N=1, up to {_MAX_CHANNELS:,} channels and 4 GB;"
                " write y to a .npy file"
            )

    def write(self, file: BinaryIO, target: Source, y: AnyArray, origin: Loaded) -> int:
        """As `Format.write`: rounded and clipped to 16 bits, at x's sample rate."""
        assert origin.rate is not None
        values, clipped = as_integers(target, y[0], _SCALE, -_SCALE, _SCALE - 1)
        with wave.open(file, "wb") as sound:
            sound.setnchannels(y.shape[1])
            sound.setsampwidth(_BYTES)
            sound.setframerate(origin.rate)
            sound.writeframes(values.T.astype(_SAMPLES).tobytes())
        return clipped
