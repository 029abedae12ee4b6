"""Pictures for conv2d by Pillow: [1, C, H, W] in 0..1, C = 1 for grey, 3 for RGB, 4 for RGBA.

Values are as stored, without gamma or colour profile, turned as the picture is to be seen. Alpha is a channel like the
others: it is convolved with them, and colours are not multiplied by it.
"""

from __future__ import annotations

import importlib
import struct
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from ....errors import DtypeError, FileFormatError, MissingPackageError, NkiconvError, UnsupportedError
from ....problem import DTYPES
from ....reference import AnyArray
from .format import Format, Loaded, Source, as_integers

#: Pillow's modes of the pictures that are taken, by channels.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_PNG, _JPEG = ".png", (".jpg", ".jpeg")
#: Where a PNG says how many bits a sample has: after signature, chunk header, width and height.
_PNG_DEPTH_AT = 24
#: Of JPEG's 1 to 95.
_QUALITY = 95
#: Pillow's exceptions for damaged pictures.
_DAMAGED = (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, ArithmeticError, struct.error)


class Image(Format):
    """A PNG or JPEG of 8 bits a sample; writing JPEG loses more than the rounding to 8 bits."""

    what = "a PNG or JPEG picture"
    suffixes = (_PNG, *_JPEG)
    media_of = ("conv2d", "depthwise_conv2d")

    def read(self, source: Source, dtype: str | None) -> Loaded:
        """As `Format.read`; fp32 unless dtype says otherwise."""
        pixels = _pixels(source)
        values = np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1))
        scaled = values[np.newaxis].astype(np.float32) / np.float32(255)
        return Loaded(scaled.astype(DTYPES[dtype or "fp32"]))

    def refusals(self, target: Source, shape: tuple[int, ...], origin: Loaded) -> Iterator[NkiconvError]:
        """As `Format.refusals`: not one picture, or not of as many channels as the format has."""
        modes = {count: mode for count, mode in _MODES.items() if count < 4 or not _is_jpeg(target)}
        if shape[0] != 1 or shape[1] not in modes:
            wanted = ", ".join(f"{count} ({mode})" for count, mode in modes.items())
            yield UnsupportedError(
                f"{target.text}: y has N={shape[0]}, K={shape[1]}, the file holds one picture of K = {wanted} channels;"
                " write y to a .npy file"
            )

    def write(self, file: BinaryIO, target: Source, y: AnyArray, origin: Loaded) -> int:
        """As `Format.write`: clipped to 0..1, rounded to 8 bits."""
        values, clipped = as_integers(target, y[0], 255, 0, 255)
        pixels = np.ascontiguousarray(values.astype(np.uint8).transpose(1, 2, 0))
        picture = _pillow(target, "Image").fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        if _is_jpeg(target):
            picture.save(file, format="JPEG", quality=_QUALITY)
        else:
            picture.save(file, format="PNG")
        return clipped


def _is_jpeg(source: Source) -> bool:
    return source.path.suffix.lower() in _JPEG


def _pillow(source: Source, module: str) -> Any:
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError as error:
        raise MissingPackageError.of(source.text, "pillow", "files") from error


def _pixels(source: Source) -> AnyArray:
    """uint8 [H, W] of a grey picture, [H, W, C] of others.

    Raises: FileFormatError, DtypeError, UnsupportedError: as `Image.read`.
    """
    pillow, ops = _pillow(source, "Image"), _pillow(source, "ImageOps")
    with source.path.open("rb") as file:
        depth = 8 if _is_jpeg(source) else _png_depth(file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pillow.DecompressionBombWarning)
                formats = ["JPEG" if _is_jpeg(source) else "PNG"]
                with pillow.open(file, formats=formats) as picture:
                    _check_kind(source, picture, depth)
                    picture.verify()  # checksums to the end of a PNG, which load does not look at
                file.seek(0)
                with pillow.open(file, formats=formats) as picture:
                    picture.load()
                    return np.array(ops.exif_transpose(picture))
        except NkiconvError:
            raise
        except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
            most = pillow.MAX_IMAGE_PIXELS
            raise FileFormatError(
                f"{source.text}: has more than {most:,} pixels; crop it or make it smaller"
            ) from error
        except pillow.UnidentifiedImageError as error:
            raise FileFormatError(f"{source.text}: does not start as such pictures do; save it again") from error
        except _DAMAGED as error:
            reason = str(error) or type(error).__name__
            raise FileFormatError(f"{source.text}: is truncated or damaged ({reason}); save it again") from error


def _png_depth(file: BinaryIO) -> int:
    """Bits a sample as the header of a PNG says; 0 of a shorter file. Leaves the file at its beginning."""
    header = file.read(_PNG_DEPTH_AT + 1)
    file.seek(0)
    return header[-1] if len(header) > _PNG_DEPTH_AT else 0


def _check_kind(source: Source, picture: Any, depth: int) -> None:
    """Refuse pictures that Pillow would convert silently."""
    accepted = "grey (L), RGB or RGBA of 8 bits"
    if picture.mode not in _MODES.values():
        raise DtypeError(
            f"{source.text}: has mode {picture.mode}: accepted are {accepted}; save Image.convert('RGB') of it"
        )
    if depth > 8:  # Pillow would drop the lower half
        raise DtypeError(f"{source.text}: has {depth} bits a sample: accepted are {accepted}; save it with 8")
    if getattr(picture, "n_frames", 1) != 1:
        raise FileFormatError(f"{source.text}: holds {picture.n_frames} pictures; save one of them")
    if "transparency" in picture.info:
        raise FileFormatError(
            f"{source.text}: has a transparent colour, and no channel for it; save Image.convert('RGBA') or 'RGB' of it"
        )
