"""The entry of the command line: settings before its imports, which take a quarter of a second."""

from __future__ import annotations

import importlib
import signal
import sys


def main() -> None:
    """Run the command that the arguments name, as `cli.main`; 2 too where stdout is closed.

    Ctrl-C during the imports ends the process as any other's, without a traceback, unless it is ignored.
    """
    if sys.stdout is None:
        print("nkiconv: stdout is closed; send it to a file, or to /dev/null", file=sys.stderr)
        sys.exit(2)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    cli = importlib.import_module("nkiconv.tools.cli")
    signal.signal(signal.SIGINT, before)
    cli.main()
