"""Runs a script that was written for AWS's package, its kernels in this simulator; torch tensors are taken too.

    python -m nkiconv.simulator [--sentinels] [--races] [--overflow] [--nki 0.6] script.py [arguments of the script]

It corresponds to `NKI_SIMULATOR=1 python script.py` with AWS's package: `import nki` gives the simulator, and kernels
run in it when they are called. The script needs no change.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from .allowed import VERSIONS
from .installation import NkiInstalledError, install


def main(given: Sequence[str] | None = None) -> int:
    """Run a script under `install()`; its own errors and exit status pass through. Returns 2 where it cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m nkiconv.simulator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentinels", action="store_true", help="kernels may read what nothing wrote: NaN, or 4")
    parser.add_argument("--races", action="store_true", help="two cores that race take turns, with a warning")
    parser.add_argument("--overflow", action="store_true", help="tensors that do not fit in program order: a warning")
    parser.add_argument("--nki", choices=VERSIONS, default="0.7", help="the version of NKI that the script is for")
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its sys.argv[1:]")
    asked = parser.parse_args(given)
    if not asked.script.is_file():
        kind = "is a directory" if asked.script.is_dir() else "does not exist"
        print(f"{asked.script}: {kind}; give the path of a Python script", file=sys.stderr)
        return 2
    try:
        installation = install(sentinels=asked.sentinels, races=asked.races, overflow=asked.overflow, nki=asked.nki)
    except NkiInstalledError as error:
        print(f"{error}; run the script with NKI_SIMULATOR=1 instead, which has AWS's simulate it", file=sys.stderr)
        return 2
    before = sys.argv, list(sys.path)
    with installation:
        sys.argv = [str(asked.script), *asked.arguments]
        sys.path[0:1] = [str(asked.script.resolve().parent)]
        try:
            runpy.run_path(str(asked.script), run_name="__main__")
        finally:
            sys.argv, sys.path[:] = before
    return 0


if __name__ == "__main__":
    sys.exit(main())
