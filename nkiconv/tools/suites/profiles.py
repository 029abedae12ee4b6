"""Profiles of named cases: the kernel's modelled time, its floors and its roofline."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ... import rules
from ..._nki import CHOICE
from ...cases import Case
from ...errors import DtypeError, NkiconvError, UnsupportedError, raise_all, refused
from ...planner.estimate import chosen
from ...planner.floors import Floors, floors
from ...planner.operations import choice_refusals
from ...planner.request import Asked, Config, Request, array_work
from ...problem import ConvProblem
from ...simulator.profiling import Advance, Problem, Profile, Settings, Timed, ignore, profile_timed
from ...simulator.timing import Rates
from ..verify import case_operation, case_refusals, name_violations


@dataclass(frozen=True)
class CaseProfile:
    """A case's profile: all times modelled, in us."""

    case: str
    problem: ConvProblem
    lnc: int
    algorithm: str
    config: Config
    tiles: dict[str, int]
    profile: Profile
    floors: Floors
    precision: str | None = None  # how fp32 products are taken, where the caller said

    @property
    def x_copy_floor(self) -> float:
        """Modelled time over that of moving the same bytes."""
        return (self.profile.modelled_us - self.profile.launch_us) / self.floors.copy_us

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **self.profile.as_dict(),
            "case": self.case,
            "lnc": self.lnc,
            "dtype": self.problem.dtype,
            "precision": self.precision,
            "algorithm": self.algorithm,
            "config": self.config,
            "tiles": self.tiles,
            "copy_floor_us": self.floors.copy_us,
            "launch_floor_us": self.floors.launch_us,
            "x_copy_floor": self.x_copy_floor,
        }


def profile_case(
    case: Case,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    sensitivity: bool = False,
    standalone: bool = False,
    constants: tuple[tuple[str, float], ...] = (),
    advance: Advance = ignore,
) -> tuple[CaseProfile, Timed]:
    """Profile a case without making its data.

    Args: dtype: instead of the case's own. precision: as in `nkiconv.conv2d`. algorithm, config: as in a `Plan`; None
        takes the estimate. constants: (name, value) pairs of modelling constants, instead of trn2.toml's.
    Raises: UnsupportedError, for what cannot be profiled, before any work.
    """
    raise_all(
        "this cannot be profiled", refusals(case, algorithm, lnc, dtype=dtype, config=config, precision=precision)
    )
    problem = case.problem if dtype is None else case.problem.replace(dtype=dtype)
    asked = Asked(precision=precision)
    operation, request = case_operation(case), Request(problem=problem, lnc=lnc, asked=asked, constants=constants)
    shape = operation.shape(request, Rates(dict(constants)))
    if algorithm is None:
        estimate = chosen(request)
        algorithm, config = estimate.algorithm, estimate.config
        refused = choice_refusals(operation, problem, asked, algorithm, config, lnc)
        raise_all("this cannot be profiled", refused)
    flops, name = array_work(problem, asked)
    settings = Settings(
        sensitivity=sensitivity,
        standalone=standalone,
        problem=Problem(flops, problem.min_bytes, name),
        constants=dict(constants),
        advance=advance,
    )
    args, arguments = operation.launch(request, algorithm, config)
    found, timed = profile_timed(operation.kernel[lnc], args, arguments, settings)
    tiles = operation.symbols(shape, algorithm, config)
    least = floors(problem, lnc, dict(constants))
    return CaseProfile(case.name, problem, lnc, algorithm, config, tiles, found, least, precision), timed


def refusals(case: Case, algorithm: str | None, lnc: int, **how: Any) -> list[NkiconvError]:
    """Why a case cannot be profiled here; empty when it can. how: as `case_violations` takes it."""
    found = case_violations(case, algorithm, lnc, **how)
    if CHOICE.provider == "aws":
        found.append(
            UnsupportedError("NKICONV_NKI: AWS's NKI records no instructions to profile; set NKICONV_NKI=simulator")
        )
    return found


def case_violations(
    case: Case,
    algorithm: str | None,
    lnc: int,
    dtype: str | None = None,
    config: Config = None,
    precision: str | None = None,
) -> list[NkiconvError]:
    """Errors of the choice of a case, an algorithm, cores and another dtype, on any machine."""
    found = [*case_refusals(case), *name_violations(case_operation(case), algorithm)]
    dtypes = case_operation(case).dtypes
    found += refused(DtypeError, rules.accepted("dtype", dtype, (None, *dtypes)))
    found += refused(UnsupportedError, rules.lnc(lnc))
    if not found:
        other = case if dtype is None else dataclasses.replace(case, problem=case.problem.replace(dtype=dtype))
        found += case_refusals(other, algorithm, degrees=(lnc,), precision=precision, config=config)
    return found
