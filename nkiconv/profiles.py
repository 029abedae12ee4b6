"""Profiles of named cases: the kernel's modelled time beside its floors and its roofline."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ._nki import CHOICE
from .cases import Case
from .errors import DtypeError, NkiconvError, UnsupportedError, raise_all
from .floors import Floors, floors
from .kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from .ops import choice_refusals, kernel_arguments
from .planner.candidates import kernel_choice
from .planner.request import DTYPES, Asked, Config, extras_of, geometry_of
from .problem import ConvProblem
from .simulator import ArraySpec
from .simulator.dtypes import canonical
from .simulator.profiling import Advance, Problem, Profile, Settings, Timed, ignore, profile_timed
from .verify import case_refusals, describe_tiles, name_violations


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
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    sensitivity: bool = False,
    standalone: bool = False,
    advance: Advance = ignore,
) -> tuple[CaseProfile, Timed]:
    """Profile a case without making its data.

    Args: dtype: instead of the case's own. algorithm: one of `ALGORITHMS`, and config its settings, as in a `Plan`;
        None takes the kernel's choice.
    Raises: UnsupportedError, for what cannot be profiled, before any work.
    """
    raise_all("this cannot be profiled", refusals(case, algorithm, lnc, dtype, config))
    problem = case.problem if dtype is None else case.problem.replace(dtype=dtype)
    if algorithm is None:
        algorithm, config = kernel_choice(geometry_of(problem), extras_of(problem, Asked()), lnc)
        raise_all("this cannot be profiled", list(choice_refusals(problem, Asked(), algorithm, config, lnc)))
    name = canonical(problem.dtype)
    assert name is not None
    x = ArraySpec((problem.N, problem.C, 1, problem.W), name)
    w = ArraySpec((problem.C, 1, 1, problem.S), name)
    settings = Settings(
        sensitivity=sensitivity,
        standalone=standalone,
        problem=Problem(problem.flops, problem.min_bytes, name),
        advance=advance,
    )
    kernel = depthwise_conv1d_implicit_gemm[lnc]
    arguments = kernel_arguments(problem, algorithm=algorithm, config=config)
    found, timed = profile_timed(kernel, (x, w), arguments, settings)
    tiles = describe_tiles(problem, False, algorithm, config)
    return CaseProfile(case.name, problem, lnc, algorithm, config, tiles, found, floors(problem, lnc)), timed


def refusals(
    case: Case, algorithm: str | None, lnc: int, dtype: str | None = None, config: Config = None
) -> list[NkiconvError]:
    """Why a case cannot be profiled here; empty when it can."""
    found = case_violations(case, algorithm, lnc, dtype, config)
    if CHOICE.provider == "aws":
        found.append(
            UnsupportedError("NKICONV_NKI: AWS's NKI records no instructions to profile; set NKICONV_NKI=simulator")
        )
    return found


def case_violations(
    case: Case, algorithm: str | None, lnc: int, dtype: str | None = None, config: Config = None
) -> list[NkiconvError]:
    """What is wrong with the choice of a case, an algorithm, cores and another dtype, wherever they are to run."""
    found = [*case_refusals(case), *name_violations(algorithm)]
    if dtype is not None and dtype not in DTYPES:
        found.append(DtypeError(f"dtype={dtype!r}: accepted are {', '.join(DTYPES)}; use one of them"))
    if lnc not in (1, 2):
        found.append(UnsupportedError(f"lnc={lnc!r}: must be 1 or 2 (LNC degrees of trn2); use lnc=2"))
    if not found:
        other = case if dtype is None else dataclasses.replace(case, problem=case.problem.replace(dtype=dtype))
        found += case_refusals(other, algorithm, degrees=(lnc,), config=config)
    return found
