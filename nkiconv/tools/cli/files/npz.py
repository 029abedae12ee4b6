"""Named arrays as .npz archives: .npy files in a zip archive, read in place and never unpacked."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, BinaryIO, cast

import numpy as np

from ....errors import FileFormatError, NkiconvError, UnsupportedError
from ....reference import AnyArray
from .format import Format, Loaded, Source, chosen_name, one_of_each, shown
from .npy import as_dtype, check_size, read_header

_SUFFIX = ".npy"
#: Bytes of the name of an array in an archive.
_NAME_MAX = 1000
#: zipfile's exceptions for archives that are damaged, encrypted, or packed in an unknown way.
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, struct.error)


class Npz(Format):
    """Arrays as numpy.savez and numpy.savez_compressed write them."""

    what = "a .npz file"
    suffixes = (".npz",)
    named = True

    def read(self, source: Source, dtype: str | None) -> Loaded:
        """As `Format.read`."""
        try:
            with zipfile.ZipFile(source.path) as archive:
                outside = [one for one in archive.namelist() if _points_outside(one)]
                if outside:
                    raise FileFormatError(
                        f"{source.text}: has a member named {shown(outside[0])}, which points out of the archive; "
                        "do not trust it"
                    )
                names = [one.removesuffix(_SUFFIX) for one in archive.namelist() if one.endswith(_SUFFIX)]
                one_of_each(source, names)
                member = chosen_name(source, names) + _SUFFIX
                with archive.open(member) as file:
                    array = _read(source.text, file, archive.getinfo(member).file_size)
        except NkiconvError:
            raise
        except _DAMAGED as error:
            raise FileFormatError(
                f"{source.text}: is truncated or damaged ({error}); save it again with numpy.savez"
            ) from error
        return Loaded(as_dtype(source.text, array, dtype))

    def refusals(self, target: Source, shape: tuple[int, ...], origin: Loaded) -> Iterator[NkiconvError]:
        """As `Format.refusals`: a name that would lead out of the archive, or is too long for one."""
        if len((target.name or "").encode()) > _NAME_MAX:
            yield UnsupportedError(f"{target.text}: the name has more than {_NAME_MAX:,} bytes; use a shorter one")
        if target.name is not None and _points_outside(target.name):
            yield UnsupportedError(f"{target.text}: the name points out of the archive; use one without .. and roots")

    def write(self, file: BinaryIO, target: Source, y: AnyArray, origin: Loaded) -> int:
        """As `Format.write`; the array is named y unless the target has a name."""
        member = zipfile.ZipInfo((target.name or "y") + _SUFFIX)  # of 1980, so that equal arrays make equal files
        with (
            zipfile.ZipFile(file, "w") as archive,
            archive.open(member, "w", force_zip64=True) as inside,
        ):
            np.lib.format.write_array(cast(BinaryIO, inside), y, allow_pickle=False)
        return 0


def _read(text: str, file: IO[bytes], size: int) -> AnyArray:
    """The array of a member with `size` bytes."""
    header = read_header(text, cast(BinaryIO, file))
    check_size(text, header, size - header.start)
    data = file.read(header.nbytes)
    if len(data) < header.nbytes:
        raise EOFError(f"{len(data):,} of {header.nbytes:,} bytes of data")
    file.read(1)  # the end of the member, where zipfile compares its checksum
    array = np.frombuffer(data, header.dtype)
    return array.reshape(header.shape) if header.order == "C" else array.reshape(header.shape[::-1]).T


def _points_outside(name: str) -> bool:
    """Whether unpacking a member of that name would write elsewhere than below the archive's own folder."""
    parts = name.replace("\\", "/")
    return ".." in PurePosixPath(parts).parts or parts.startswith("/") or parts[1:3] == ":/"
