"""Diagnosis: installed packages, the NKI that runs and why, and missing parts for trn2.

Importable for every NKICONV_NKI: an impossible choice is part of the diagnosis.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import launches
from ..errors import UnsupportedError
from ..providers import OLDEST_NKI, PLACEHOLDER, PLACEHOLDER_MARK, too_old
from ..simulator.constants import VARIABLE, TargetFileError
from ..simulator.hardware import CONSTANTS

#: The driver's file on a machine with a Neuron device.
DEVICE = Path("/dev/neuron0")
NO_DEVICE = f"{DEVICE}: there is no Neuron device here; use a trn2 instance with the Neuron driver installed"
INSTALLED, MISSING = "installed", "missing"
TOO_OLD = f"older than {'.'.join(map(str, OLDEST_NKI))}"

#: distribution, module, its use in nkiconv
_PACKAGES = (
    ("numpy", "numpy", "arrays"),
    ("ml_dtypes", "ml_dtypes", "bf16 and fp8 arrays"),
    ("typer", "typer", "this command line"),
    ("rich", "rich", "tables and progress bars"),
    ("matplotlib", "matplotlib", "pictures of nkiconv demo, profile and bench"),
    ("pillow", "PIL", "nkiconv demo, and pictures in nkiconv run"),
    ("safetensors", "safetensors", ".safetensors files in nkiconv run"),
    ("torch", "torch", "nkiconv.pytorch, nkiconv plan-model, a reference in the tests"),
)
_AWS_PACKAGES = (
    ("nki", "nki", "trn2: the language of the kernels"),
    ("neuronx-cc", "neuronxcc", "trn2: the compiler"),
    ("torch-neuronx", "torch_neuronx", "trn2: running kernels on the device"),
)
_AWS = {name for name, _, _ in _AWS_PACKAGES}
#: Where AWS's packages come from.
FROM_AWS = "from AWS's own package repository, not from PyPI (the Neuron documentation gives its address)"
_VARIABLES = ("NKICONV_NKI", VARIABLE, launches.TARGET, launches.DEGREE, launches.FLAGS)
#: Accepted values of the target platform variables; unset is accepted too.
_ACCEPTED = {launches.TARGET: ("trn2", "gen3"), launches.DEGREE: ("1", "2")}


@dataclass(frozen=True)
class Package:
    """A distribution that nkiconv can use."""

    name: str
    purpose: str
    version: str | None
    status: str  # INSTALLED, MISSING, PLACEHOLDER or TOO_OLD


@dataclass(frozen=True)
class Diagnosis:
    """Everything `nkiconv doctor` knows."""

    python: str
    system: str
    packages: tuple[Package, ...]
    provider: str | None  # "aws" or "simulator"; None if the choice is impossible
    reason: str  # why that provider, or why none
    error: str  # the refusal's class where there is none
    target: str  # the constants of modelled times and plans: trn2, or the file that NKICONV_TARGET names
    variables: dict[str, str | None]
    device: bool
    advice: tuple[str, ...]  # obstacles to trn2 or the simulator on this machine, with remedies

    @property
    def ok(self) -> bool:
        """Whether kernels can run at all."""
        return self.provider is not None

    @property
    def trn2_ready(self) -> bool:
        """Whether AWS's packages and a device are there."""
        return self.device and all(p.status == INSTALLED for p in self.packages if p.name in _AWS)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**dataclasses.asdict(self), "ok": self.ok, "trn2_ready": self.trn2_ready}


def diagnose() -> Diagnosis:
    """Look at this machine and process; raises nothing."""
    packages = tuple(_package(*row) for row in (*_PACKAGES, *_AWS_PACKAGES))
    provider, reason, error = _choice()
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    return Diagnosis(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.machine()}",
        packages=packages,
        provider=provider,
        reason=reason,
        error=error,
        target=CONSTANTS.target,
        variables=variables,
        device=DEVICE.exists(),
        advice=(*_variable_advice(variables), *_launch_advice(packages, variables), *_trn2_advice(packages)),
    )


def _choice() -> tuple[str | None, str, str]:
    """Which NKI nkiconv uses, why, and ""; or None, the refusal, and its class."""
    try:
        choice = importlib.import_module("nkiconv._nki").CHOICE
        len(CONSTANTS)  # reads the target
    except (UnsupportedError, TargetFileError) as error:
        return None, str(error), type(error).__name__
    return choice.provider, choice.reason, ""


def _package(name: str, module: str, purpose: str) -> Package:
    """A distribution's status, from its metadata and source: nothing is imported."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    sources = list(_init_sources(name, module))
    if any(PLACEHOLDER_MARK in source for source in sources):
        return Package(name, purpose, version, PLACEHOLDER)
    if name == "nki" and too_old(version):
        return Package(name, purpose, version, TOO_OLD)
    return Package(name, purpose, version, INSTALLED if version or sources else MISSING)


def _init_sources(name: str, module: str) -> Iterator[str]:
    """Text of the package's top __init__.py, as imported and as its distribution lists it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    paths = [Path(spec.origin)] if spec is not None and spec.origin else []
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        files = []
    # PyPI's neuronx-cc has its text in a folder named neuronx-cc, which cannot be imported.
    paths += [Path(str(file.locate())) for file in files if len(file.parts) == 2 and file.name == "__init__.py"]
    for path in paths:
        if path.suffix == ".py" and path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")


def _variable_advice(variables: dict[str, str | None]) -> Iterator[str]:
    for name, accepted in _ACCEPTED.items():
        value = variables[name]
        if value is not None and value not in accepted:
            yield f"{name}={value!r}: the simulator accepts {', '.join(accepted)}; unset it or set one of them"


def _launch_advice(packages: tuple[Package, ...], variables: dict[str, str | None]) -> Iterator[str]:
    """Settings that launches on a device do not agree on, or that make them slow."""
    if variables[launches.DEGREE] in (None, *_ACCEPTED[launches.DEGREE]):
        try:
            launches.degree()
        except UnsupportedError as error:
            yield str(error)
    nki = next(package for package in packages if package.name == "nki")
    lazy = nki.status == INSTALLED and importlib.util.find_spec("torch_xla") is not None
    if lazy and variables[launches.TARGET] is None:
        yield launches.slow_without_target()


def _trn2_advice(packages: tuple[Package, ...]) -> Iterator[str]:
    placeholders = [p.name for p in packages if p.name in _AWS and p.status == PLACEHOLDER]
    lacking = [p.name for p in packages if p.name in _AWS and p.status in (MISSING, PLACEHOLDER)]
    if placeholders:
        names = " ".join(placeholders)
        yield f"{names}: PyPI's placeholders, not AWS's packages; remove them: pip uninstall {names}"
    yield from (too_old(p.version) for p in packages if p.status == TOO_OLD)
    if lacking:
        yield f"{', '.join(lacking)}: needed on trn2; install {FROM_AWS}"
    if not DEVICE.exists():
        yield NO_DEVICE


def lacking(found: Diagnosis, *names: str) -> Iterator[UnsupportedError]:
    """Which of these packages, AWS's and torch, a machine lacks, or why AWS's nki does not run the kernels there."""
    status = {package.name: package.status for package in found.packages}
    for name in names:
        if status[name] != INSTALLED:
            remedy = "install the one that torch-neuronx wants" if name == "torch" else f"install it {FROM_AWS}"
            yield UnsupportedError(f"{name}: is {status[name]}; {remedy}")
    if status["nki"] == INSTALLED and found.provider != "aws":
        yield UnsupportedError(
            f"nki: AWS's must run the kernels, and {found.reason}; unset NKICONV_NKI or reinstall nki"
        )
