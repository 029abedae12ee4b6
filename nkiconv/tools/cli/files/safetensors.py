"""Named tensors as .safetensors files. The package of that name checks a file, NumPy maps the one array wanted."""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from ....errors import DtypeError, FileFormatError, MissingPackageError, NkiconvError, UnsupportedError
from ....problem import DTYPES
from ....reference import AnyArray
from ....rules import E4M3FN_REMEDY
from .format import Format, Loaded, Source, chosen_name, one_of_each

#: The format's names of our dtypes. Its F8_E4M3 is not ours: it has no infinities, and goes up to 448.
_DTYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E5M2": "fp8_e5m2"}
_METADATA = "__metadata__"


class Safetensors(Format):
    """Tensors as safetensors.numpy.save_file or safetensors.torch.save_file write them."""

    what = "a .safetensors file"
    suffixes = (".safetensors",)
    named = True

    def read(self, source: Source, dtype: str | None) -> Loaded:
        """As `Format.read`."""
        package = _package(source, "safetensors")
        try:
            with package.safe_open(source.path, framework="np") as file:
                names = sorted(file.keys())
        except package.SafetensorError as error:
            raise FileFormatError(f"{source.text}: is truncated or damaged ({error}); save it again") from error
        name = chosen_name(source, names)
        start, tensors = _header(source)
        one_of_each(source, [key for key, _ in tensors])
        tensor = dict(tensors)[name]
        found = _DTYPES.get(tensor["dtype"])
        if found is None:
            remedy = "cast it"
            if tensor["dtype"] == "F8_E4M3":
                remedy = f"NKI's e4m3 is another format: {E4M3FN_REMEDY}, in a .npy file of --dtype fp8_e4m3"
            raise DtypeError(
                f"{source.text}: {name} has dtype {tensor['dtype']}: accepted are {', '.join(_DTYPES)}; {remedy}"
            )
        shape = tuple(tensor["shape"])
        if math.prod(shape) == 0:
            raise FileFormatError(f"{source.text}: {name} holds no elements (shape {shape}); save data")
        return Loaded(np.asarray(np.memmap(source.path, DTYPES[found], "r", start + tensor["data_offsets"][0], shape)))

    def refusals(self, target: Source, shape: tuple[int, ...], origin: Loaded) -> Iterator[NkiconvError]:
        """As `Format.refusals`: the package is missing, or the name is the format's own."""
        _package(target, "safetensors")
        if target.name == _METADATA:
            yield UnsupportedError(f"{target.text}: {_METADATA} is the format's own; use another name")

    def write(self, file: BinaryIO, target: Source, y: AnyArray, origin: Loaded) -> int:
        """As `Format.write`; the tensor is named y unless the target has a name."""
        file.write(_package(target, "safetensors.numpy").save({target.name or "y": np.ascontiguousarray(y)}))
        return 0


def _package(source: Source, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError.of(source.text, "safetensors", "files") from error


def _header(source: Source) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    """Where the data start, and (name, {dtype, shape, data_offsets}) of each tensor of a file that has been checked."""
    with source.path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        pairs = json.loads(file.read(length), object_pairs_hook=list)
    return 8 + length, [(name, dict(about)) for name, about in pairs if name != _METADATA]
