"""Constants of the hardware as rows of TOML: trn2.toml's, and those of a target, a file that replaces some of them.

The environment's NKICONV_TARGET names the target. It is read once, when a constant is first used: another value or
another file takes a new process, so no cache can hold constants that have changed.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..whole_file import whole_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The environment's variable that names a target.
VARIABLE = "NKICONV_TARGET"
#: The name of trn2.toml's constants in tables.
DEFAULT = "trn2"
Standing = Literal["documented", "measured", "traced", "inferred"]

#: Constants that times are divided by, or that count something there must be one of.
_DIVISORS = (
    "clock.", "peak.", "dma.engines", "dma.rows_per_engine", "dma.engine_bytes_per_ns", "dma.hbm_stack_gbps",
    "dma.hbm_shared_gbps", "dma.hbm_run_least_bytes", "dma.steady_core_gbps", "dma.max_element_bytes_packet",
    "dma.hwdge_queue_depth", "dma.dma_transpose_frac", "throttle.window_ns", "throttle.half_rate",
    "scheduling.lookahead_window", "pe.fp32_passes", "pe.cyc_per_row", "pe.onezero_speedup_fp32",
    "gpsimd.local_gather_t", "gpsimd.local_gather_lane_bytes", "gpsimd.n_gather_group_elems",
)  # fmt: skip
#: Constants of the host's launches: no kernel's time rests on them, so they change no plan.
_HOST = "host."
#: Constants that are shares of something.
SHARES = ("pe.row_tiles_overlap",)
#: Constants that rules and kernels are written for: no target has others.
_LIMITS = ("memory.", "pe.max_", "dma.engines", "dma.rows_per_engine", "lnc2.sendrecv_gpsimd_max")
#: How many times its value, or 1 where that is less, a constant may be changed to: beyond it no timeline ends.
FAR = 1000
#: Keys of a row, and those that it may lack.
_KEYS, _RANGE = ("source", "standing", "unit", "value"), ("low", "high")


class TargetFileError(ValueError):
    """A target cannot be read, or has a row that is none."""


@dataclass(frozen=True)
class Constant:
    """One figure of the hardware, and how well it is known."""

    name: str  # section.name, as in trn2.toml
    value: float
    unit: str
    source: str
    standing: Standing
    low: float  # the range that it may lie in; low = high = value where none is stated
    high: float


def load_constants(path: Path) -> Mapping[str, Constant]:
    """The constants of a file like trn2.toml, by section.name.

    Raises TargetFileError: the file cannot be read; a row lacks value, unit, source or standing, has something of
    another type, or its range does not hold its value.
    """
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetFileError(f"{path}: cannot be read ({error.strerror}); name a file like trn2.toml") from error
    except ValueError as error:  # no UTF-8, or no TOML
        raise TargetFileError(f"{path}: is no TOML ({error}); write it as trn2.toml is") from error
    try:
        return MappingProxyType(dict(_constants(sections)))
    except TargetFileError as error:
        raise TargetFileError(f"{path}: {error}") from error


def _constants(sections: Mapping[str, Any]) -> Iterator[tuple[str, Constant]]:
    for section, rows in sections.items():
        if not isinstance(rows, dict):
            raise TargetFileError(f"{section}={rows!r}: must be a section of rows; write [{section}] above them")
        for key, row in rows.items():
            name = f"{section}.{key}"
            yield name, _constant(name, row)


def _constant(name: str, row: Any) -> Constant:
    if not isinstance(row, dict):
        raise TargetFileError(f"{name}={row!r}: must be a row; write {{ value, unit, source, standing }}")
    missing, unknown = set(_KEYS) - set(row), set(row) - {*_KEYS, *_RANGE}
    if missing or unknown:
        what = [f"lacks {', '.join(sorted(missing))}"] * bool(missing)
        what += [f"has {', '.join(sorted(unknown))}, which no row has"] * bool(unknown)
        raise TargetFileError(f"{name}: {' and '.join(what)}; a row has {', '.join(_KEYS)}, low, high")
    for key in ("unit", "source"):
        if not isinstance(row[key], str):
            raise TargetFileError(f"{name}: {key}={row[key]!r}: must be text; put it in quotes")
    if row["standing"] not in get_args(Standing):
        raise TargetFileError(f"{name}: standing={row['standing']!r}: must be one of {', '.join(get_args(Standing))}")
    value = _number(name, "value", row["value"])
    low, high = (_number(name, key, row.get(key, value)) for key in _RANGE)
    if not low <= value <= high:
        rule = "is outside its range"
        raise TargetFileError(f"{name}: value {value:g} {rule} {low:g}..{high:g}; write low <= value <= high")
    return Constant(name, value, row["unit"], row["source"], row["standing"], low, high)


def _number(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TargetFileError(f"{name}: {key}={value!r}: must be a finite number; write one without quotes")
    return float(value)


#: trn2.toml's constants, by section.name.
SHIPPED = load_constants(Path(__file__).with_name("trn2.toml"))


def unknown_name(name: str) -> str:
    """The error of a name that trn2.toml does not have."""
    close = difflib.get_close_matches(name, SHIPPED, n=3, cutoff=0.4)
    return f"unknown name; did you mean {', '.join(close)}?" if close else "unknown name; see simulator/trn2.toml"


def value_unsupported(name: str, value: float) -> str:
    """Why the timing cannot use such a value of a constant; "" if it can."""
    known = SHIPPED[name].value
    if value < 0 <= known or (value == 0 and name.startswith(_DIVISORS)):
        return f"must be {'above 0' if name.startswith(_DIVISORS) else 'at least 0'}; pass a larger number"
    if value > 1 and name in SHARES:
        return "must be at most 1, a share; pass 0 to 1"
    most = FAR * max(abs(known), 1.0)
    if abs(value) > most:
        return f"must be at most {most:g}, {FAR} times trn2.toml's {known:g}; pass less"
    return ""


def load_target(path: Path | str) -> Mapping[str, Constant]:
    """Every constant under a target: its rows, and trn2.toml's of those that it does not name.

    Args: path: a file like trn2.toml, whole or in part; a measured constant's low and high are its confidence interval.
    Raises TargetFileError: as `load_constants`; or trn2.toml has no such constant, has another unit, is a limit of the
        hardware that the row changes, or the value is none that the timing can use, as 0 of what takes time.
    """
    rows = load_constants(Path(path))
    for name, one in rows.items():
        reason = _row_unsupported(one)
        if reason:
            raise TargetFileError(f"{path}: {name}: {reason}")
    return MappingProxyType({**SHIPPED, **rows})


def _row_unsupported(one: Constant) -> str:
    """Why a target cannot have a row; "" if it can."""
    shipped = SHIPPED.get(one.name)
    if shipped is None:
        return unknown_name(one.name)
    if one.unit != shipped.unit:
        return f"unit={one.unit!r}: must be trn2.toml's, {shipped.unit!r}; convert the value"
    if one.name.startswith(_LIMITS) and one.value != shipped.value:
        return f"value={one.value:g}: is a limit of the hardware, which rules check; leave it at {shipped.value:g}"
    if one.value == 0 < shipped.value and one.name not in SHARES:
        return "value=0: must be above 0; leave the row out where nothing was measured"
    for value in (one.value, one.low, one.high) if one.standing == "inferred" else (one.value,):
        reason = value_unsupported(one.name, value)
        if reason:
            return f"value={value:g}: {reason}"
    return ""


def write_target(constants: Mapping[str, Constant], path: Path | str) -> None:
    """Write constants as a target, that `load_target` reads back: rows by section, in trn2.toml's order of names.

    Raises: TargetFileError as `load_target`, before anything is written; OSError where the disk refuses.
    """
    for one in constants.values():
        reason = _row_unsupported(one)
        if reason:
            raise TargetFileError(f"{one.name}: {reason}")
    order = {name: i for i, name in enumerate(SHIPPED)}
    lines, section = ["# Constants instead of trn2.toml's; low..high of a measured one is its confidence interval."], ""
    for one in sorted(constants.values(), key=lambda one: order[one.name]):
        begins, key = one.name.split(".")
        if begins != section:
            section = begins
            lines += ["", f"[{section}]"]
        texts = {name: json.dumps(getattr(one, name), ensure_ascii=False) for name in ("unit", "source", "standing")}
        numbers = {name: repr(float(getattr(one, name))) for name in ("value", "low", "high")}
        row = {"value": numbers["value"], **texts, "low": numbers["low"], "high": numbers["high"]}
        lines.append(f"{key} = {{ {', '.join(f'{name} = {text}' for name, text in row.items())} }}")
    with whole_file(Path(path)) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def of_kernels(constants: Mapping[str, Constant]) -> dict[str, Constant]:
    """Those that kernels' times, and so plans, rest on."""
    return {name: one for name, one in constants.items() if not name.startswith(_HOST)}


def modelled(target: str) -> str:
    """The adjective of times under a target's constants."""
    return "modelled" if target == DEFAULT else f"modelled ({target})"


class InUse(Mapping[str, Constant]):
    """The constants of this process: trn2.toml's, or the target's that NKICONV_TARGET names.

    Raises TargetFileError: at each use, where the target cannot be read.
    """

    @functools.cached_property
    def path(self) -> Path | None:
        """The target's file; None without one."""
        named = os.environ.get(VARIABLE)
        return Path(named).resolve() if named else None

    @functools.cached_property
    def _constants(self) -> Mapping[str, Constant]:
        if self.path is None:
            return SHIPPED
        try:
            return load_target(self.path)
        except TargetFileError as error:
            raise TargetFileError(f"{VARIABLE}={os.environ.get(VARIABLE)!r}: {error}") from error

    @property
    def target(self) -> str:
        """The name of these constants in tables: "trn2", or the target's file."""
        return DEFAULT if self.path is None else self.path.name

    @property
    def modelled(self) -> str:
        """The adjective of times under these constants."""
        return modelled(self.target)

    @functools.cached_property
    def key(self) -> str:
        """ "trn2", and a hash of the values, ranges and standings that are not trn2.toml's."""
        known = {name: (one.value, one.low, one.high, one.standing) for name, one in of_kernels(SHIPPED).items()}
        own = {name: (one.value, one.low, one.high, one.standing) for name, one in of_kernels(self).items()}
        changed = sorted((name, row) for name, row in own.items() if row != known[name])
        return f"{DEFAULT} {hashlib.sha256(json.dumps(changed).encode()).hexdigest()[:12]}" if changed else DEFAULT

    @functools.cached_property
    def numbers(self) -> Mapping[str, float]:
        """Values by name."""
        return MappingProxyType({name: one.value for name, one in self._constants.items()})

    def __getitem__(self, name: str) -> Constant:
        return self._constants[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)
