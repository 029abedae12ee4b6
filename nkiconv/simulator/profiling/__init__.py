"""Profiles: where a kernel's modelled time goes, as data, as a Perfetto trace and as a picture."""

from __future__ import annotations

from .compare import Comparison
from .profile import profile, profile_timed
from .report import NoTimelineError, Phases, Profile, Sensitivity, Share
from .settings import Advance, Problem, Settings, ignore
from .timed import Timed, in_time
from .usage import EngineUse

__all__ = [
    "Advance",
    "Comparison",
    "EngineUse",
    "NoTimelineError",
    "Phases",
    "Problem",
    "Profile",
    "Sensitivity",
    "Settings",
    "Share",
    "Timed",
    "ignore",
    "in_time",
    "profile",
    "profile_timed",
]
