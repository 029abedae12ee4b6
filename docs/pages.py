"""The API pages: what the docstrings say, as HTML. ``python docs/pages.py FOLDER`` writes them there.

pdoc finds a name in its module only once it is there, and a kernel's docstring only on the function: both are put in
place before it looks. A warning of pdoc's, as of a name that does not resolve, ends this without pages.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path

#: With the modules that these name in `__all__`: nkiconv.pytorch.nn, nkiconv.simulator.isa and language.
MODULES = ("nkiconv", "nkiconv.pytorch", "nkiconv.simulator", "nkiconv.simulator.profiling")


def write(folder: Path) -> None:
    """Write the pages of MODULES, and an index of them.

    Raises: UserWarning, where pdoc warns.
    """
    os.environ["NKICONV_NKI"] = "simulator"  # the pages are the same wherever they are made
    import pdoc

    from nkiconv.simulator import Kernel

    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            found = getattr(module, public)
            vars(module)[public] = found.function if isinstance(found, Kernel) else found
    pdoc.render.configure(docformat="google", footer_text=f"nkiconv {sys.modules['nkiconv'].__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
