"""Which NKI there is, and which of them the kernels use: AWS's where it is really installed, else the simulator.

Importing this decides nothing and cannot fail; `_nki` acts on `choose`.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

from .errors import UnsupportedError

#: the text that PyPI's placeholder packages raise on import
PLACEHOLDER_MARK = "WRONG PACKAGE"
#: and our name for them
PLACEHOLDER = "PyPI's placeholder of that name, not AWS's package"
#: The oldest of AWS's NKI that runs the kernels: the first that traces them with Python.
OLDEST_NKI = (0, 7)


@dataclass(frozen=True)
class AwsNki:
    """The package found under the name `nki`: the module, or the reason why it does not work."""

    module: ModuleType | None
    status: str
    version: str | None


@dataclass(frozen=True)
class Choice:
    """Which NKI runs, and why."""

    provider: str
    reason: str
    aws: AwsNki


def find_aws_nki() -> AwsNki:
    """Import AWS's `nki`, telling apart: works, absent, PyPI's stub, installed but broken."""
    version = _version("nki")
    try:
        module = importlib.import_module("nki")
        importlib.import_module("nki.isa")
        importlib.import_module("nki.language")
    except ModuleNotFoundError as error:
        if error.name == "nki":
            return AwsNki(None, "not installed", None)
        return AwsNki(None, f"installed but broken: {error}", version)
    except ImportError as error:
        if PLACEHOLDER_MARK in str(error):
            return AwsNki(None, PLACEHOLDER, version)
        return AwsNki(None, f"installed but broken: {error}", version)
    return AwsNki(module, "installed", version)


def too_old(version: str | None) -> str:
    """Why AWS's nki of this version cannot run the kernels, and the remedy; "" if it can, or its version is unknown."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    if found is None or (int(found[1]), int(found[2])) >= OLDEST_NKI:
        return ""
    oldest = ".".join(map(str, OLDEST_NKI))
    return (
        f"nki {version}: must be {oldest} or later, as kernels are Python that earlier versions do not compile; "
        f"install nki>={oldest} from AWS's package repository, or set NKICONV_NKI=simulator"
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def choose(setting: str | None = None) -> Choice:
    """The NKI to use for a setting of NKICONV_NKI (default: the environment's).

    Raises UnsupportedError for an unknown setting, for `aws` where AWS's nki does not work, and for `aws` and `auto`
    where it is older than OLDEST_NKI.
    """
    setting = os.environ.get("NKICONV_NKI", "auto") if setting is None else setting
    if setting not in ("aws", "simulator", "auto"):
        raise UnsupportedError(
            f"NKICONV_NKI={setting!r}: accepted are aws, simulator, auto; unset it or use one of them"
        )
    if setting == "simulator":
        return Choice("simulator", "NKICONV_NKI=simulator", AwsNki(None, "not looked for", _version("nki")))
    aws = find_aws_nki()
    if aws.module is not None and too_old(aws.version):
        raise UnsupportedError(too_old(aws.version))
    if aws.module is not None:
        return Choice("aws", "AWS's nki is installed" if setting == "auto" else "NKICONV_NKI=aws", aws)
    if setting == "aws":
        raise UnsupportedError(
            f"NKICONV_NKI='aws': AWS's nki must be importable (it is {aws.status}); "
            "install it from AWS's package repository, or set NKICONV_NKI=simulator"
        )
    return Choice("simulator", f"AWS's nki is {aws.status}", aws)
