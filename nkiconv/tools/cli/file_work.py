"""The work of `nkiconv run`: a convolution, from options and files too, and y written in its file's format."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DtypeError, LayoutError, UnsupportedError, raise_all
from ...problem import DTYPES, ConvProblem, dtype_name
from ...reference import AnyArray
from . import files
from .file_options import BY_RANK, FileOptions

if TYPE_CHECKING:
    from ...api.epilogue import Epilogue
    from ..verify import Report

_CANNOT = "nkiconv run cannot run these files"
#: Orders of x, residual and y with the channels last.
_CHANNELS_LAST = ("NHWC", "NWC")


@dataclass(frozen=True)
class Work:
    """A convolution to run: arrays as the kernel takes them, and everything checked."""

    name: str
    operation: str  # the caller's name; all but depthwise_conv1d run as conv2d
    x: AnyArray
    w: AnyArray
    problem: ConvProblem
    epilogue: Epilogue
    filter_layout: str | None = None

    def verify(
        self, verify: Any, *, keep: bool, channels: int | str, **how: Any
    ) -> tuple[list[Report], AnyArray | None]:
        """A report for each LNC degree, and y of the first as the kernel returns it; None unless `keep`.

        verify: the module of that name. channels: how many to check; all of a y that is kept. how: as its functions
        take it.
        """
        how["channels"] = "all" if keep else channels
        arguments = self.name, self.x, self.w, self.problem, self.epilogue
        if self.operation == "depthwise_conv1d":
            found: tuple[list[Report], AnyArray | None] = verify.verify_depthwise_conv1d(*arguments, keep=keep, **how)
            return found
        reports, y = verify.verify_conv(*arguments, filter_layout=self.filter_layout, **how)
        return [dataclasses.replace(report, operation=self.operation) for report in reports], y if keep else None


@dataclass(frozen=True)
class Written:
    """The file of y, and how many of its values were clipped."""

    path: str
    clipped: int
    values: int

    @property
    def text(self) -> str:
        """In words."""
        return f"wrote {self.path}" + (f" ({self.clipped:,} of {self.values:,} values clipped)" if self.clipped else "")


@dataclass(frozen=True)
class FileWork:
    """A convolution of files: the work, and where y goes, if anywhere."""

    work: Work
    origin: files.Loaded
    layout: str | None
    target: files.Source | None
    force: bool

    def write(self, y: AnyArray) -> Written:
        """Write y, as the kernel returned it, to the target.

        Raises UnsupportedError: it cannot be written.
        """
        assert self.target is not None
        target, one = self.target, files.format_of(self.target)
        out = y
        if self.work.operation == "conv1d":
            api = importlib.import_module("nkiconv.api.conv_problem")
            out = api.as_rows(api.ROWS, y, self.layout or "NCW")
        if one.media_of is not None and self.layout in _CHANNELS_LAST:
            out = np.moveaxis(out, -1, 1)
        clipped = files.save(target, one.what, self.force, lambda file: one.write(file, target, out, self.origin))
        return Written(str(target.path), clipped, out.size)


def file_work(
    options: FileOptions,
    layout: str | None,
    *,
    degrees: Sequence[int],
    algorithm: str | None,
    precision: str | None,
    strict_nonfinite: bool,
) -> FileWork:
    """Read the files and check everything, before any work.

    Raises: FileFormatError, UnsupportedError: a file cannot be read or written. GeometryError, DtypeError, LayoutError,
        UnsupportedError: as the operation.
    """
    assert options.filter is not None
    dtype = None if options.dtype is None else dtype_name(options.dtype)
    source = files.source("--input", options.x)
    target = None if options.out is None else _target(options, source)
    w = _plain_array("--filter", options.filter, dtype)
    operation = _operation(options, w)
    raise_all(_CANNOT, options.not_taken(operation, layout, precision))
    origin = _load(source, dtype, operation, layout)
    x = origin.array
    if dtype is not None and x.dtype != DTYPES[dtype]:
        raise DtypeError(f"--dtype={options.dtype}: {options.x} holds {x.dtype}; drop the option or convert the file")
    epilogue = importlib.import_module("nkiconv.api.epilogue").Epilogue(
        bias=None if options.bias is None else _plain_array("--bias", options.bias, dtype),
        activation=options.activation,
        residual=_residual(options, dtype, operation, layout),
        residual_position=options.residual_position or "pre_activation",
        precision=precision,
        strict_nonfinite=strict_nonfinite,
    )
    layouts = {"layout": layout, "filter_layout": options.filter_layout}
    geometry = options.geometry(operation) | {name: value for name, value in layouts.items() if value is not None}
    geometry["algorithm"] = algorithm
    if operation == "depthwise_conv1d":
        checked = _rows(x, w, epilogue, geometry, degrees)
    else:
        checked = _images(operation, x, w, epilogue, geometry, degrees)
    work = Work(_title(options), operation, *checked)
    if target is not None:
        shape = _canonical_shape(work.problem, operation)
        raise_all(_CANNOT, files.format_of(target).refusals(target, shape, origin))
    return FileWork(work, origin, layout, target, options.force)


def _target(options: FileOptions, source: files.Source) -> files.Source:
    """Where y goes; refused where it cannot be written, or is of media that x is not of."""
    assert options.out is not None
    target = files.source("--out", options.out)
    one = files.format_of(target)
    if one.media_of is not None and one is not files.format_of(source):
        raise UnsupportedError(
            f"{target.text}: {one.what} is written where x is one, and {source.text} is "
            f"{files.format_of(source).what}; write y to a .npy, .npz or .safetensors file"
        )
    files.check_free(target, one.what, options.force)
    return target


def _plain_array(option: str, text: str, dtype: str | None) -> AnyArray:
    """An array that is neither picture nor sound."""
    source = files.source(option, text)
    one = files.format_of(source)
    if one.media_of is not None:
        raise UnsupportedError(
            f"{source.text}: is {one.what}, which --input, --residual and --out take; give a .npy, .npz or "
            ".safetensors file"
        )
    return files.load(source, dtype).array


def _operation(options: FileOptions, w: AnyArray) -> str:
    """The operation that was asked for, or the one that filters of w's rank are of."""
    if options.operation is not None:
        return options.operation
    if w.ndim not in BY_RANK:
        raise LayoutError(
            f"--filter={options.filter}: has shape {w.shape}: must be [C, S] (depthwise_conv1d), [K, C / groups, S] "
            "(conv1d) or [K, C / groups, R, S] (conv2d); reshape it"
        )
    return BY_RANK[w.ndim]


def _load(source: files.Source, dtype: str | None, operation: str, layout: str | None) -> files.Loaded:
    """x or a residual; pictures and sound in the layout that was asked for."""
    one = files.format_of(source)
    if one.media_of is None:
        return files.load(source, dtype)
    if operation not in one.media_of:
        raise UnsupportedError(
            f"{source.text}: is {one.what}, for {' and '.join(one.media_of)}, and the operation is {operation}; give a "
            "filter of the rank of these, or --operation"
        )
    loaded = files.load(source, dtype)
    if layout not in _CHANNELS_LAST:
        return loaded
    return files.Loaded(np.ascontiguousarray(np.moveaxis(loaded.array, 1, -1)), loaded.rate)


def _residual(options: FileOptions, dtype: str | None, operation: str, layout: str | None) -> AnyArray | None:
    """The residual; pictures and sound are fp32 for every x."""
    if options.residual is None:
        return None
    source = files.source("--residual", options.residual)
    kind = dtype if files.format_of(source).media_of is None else None
    return _load(source, kind, operation, layout).array


def _title(options: FileOptions) -> str:
    """The title in the report: x's file, and the epilogue."""
    after = options.residual_position == "post_activation"
    parts = [
        PurePath(options.x).name,
        "bias" if options.bias is not None else None,
        "residual" if options.residual is not None and not after else None,
        options.activation,
        "residual" if options.residual is not None and after else None,
    ]
    return ", ".join(part for part in parts if part is not None)


#: Of a `Work`, after its operation: x, w, problem, epilogue and the order of w.
_Checked = tuple[AnyArray, AnyArray, ConvProblem, Any, str | None]


def _rows(x: AnyArray, w: AnyArray, epilogue: Any, geometry: dict[str, Any], degrees: Sequence[int]) -> _Checked:
    """A depthwise_conv1d; w may be [C, 1, S], as torch has it."""
    depthwise = importlib.import_module("nkiconv.api.depthwise_conv1d")
    rows = w[:, 0] if w.ndim == 3 and w.shape[1] == 1 else w
    for lnc in degrees:
        problem = depthwise.checked_depthwise_conv1d(x, rows, epilogue, lnc=lnc, **geometry)
    return x, rows, problem, epilogue, None


def _images(
    operation: str, x: AnyArray, w: AnyArray, epilogue: Any, geometry: dict[str, Any], degrees: Sequence[int]
) -> _Checked:
    """A conv2d, conv1d or depthwise_conv2d, all of which run as conv2d; geometry: with the layouts."""
    conv1d, conv = importlib.import_module("nkiconv.api.conv1d"), importlib.import_module("nkiconv.api.conv_problem")
    if operation == "depthwise_conv2d":
        geometry = {**geometry, "groups": conv1d.depthwise_groups(x, w, geometry.get("layout", "NCHW"))}
    kind = conv.ROWS if operation == "conv1d" else conv.IMAGES
    whole = {"layout": kind.layouts[0], "filter_layout": kind.filter_layouts[0], **geometry}
    for lnc in degrees:
        problem = conv.checked_conv(kind, x, w, epilogue, lnc=lnc, **whole)
    order = whole["filter_layout"]
    x, w, epilogue = conv.as_images(kind, x, w, epilogue, whole["layout"], order)
    return x, w, problem, epilogue, conv.other_layout(kind, order)


def _canonical_shape(problem: ConvProblem, operation: str) -> tuple[int, ...]:
    """Of y, channels first."""
    rows = operation in ("conv1d", "depthwise_conv1d")
    return (problem.N, problem.K, problem.Q) if rows else (problem.N, problem.K, problem.P, problem.Q)
