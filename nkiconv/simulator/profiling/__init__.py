"""Profiles: where a kernel's modelled time goes, as data, as a Perfetto trace and as a picture."""

from __future__ import annotations

from .profile import Problem, profile, profile_timed
from .report import Phases, Profile, Sensitivity, Share
from .timed import Timed
from .usage import EngineUse

__all__ = ["EngineUse", "Phases", "Problem", "Profile", "Sensitivity", "Share", "Timed", "profile", "profile_timed"]
