"""The API pages: what the docstrings say, as HTML. ``python docs/pages.py FOLDER`` writes them there.

pdoc finds a name in its module only once it is there, a kernel's docstring only on the function, and does not read what
comments say of a dataclass's fields: all of that is put in place before it looks. A warning of pdoc's, as of a name
that does not resolve, ends this without pages.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
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
            if inspect.isclass(found) and dataclasses.is_dataclass(found):
                pdoc.doc_ast.walk_tree(found).var_docstrings.update(field_comments(found))
    pdoc.render.configure(docformat="google", footer_text=f"nkiconv {sys.modules['nkiconv'].__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*MODULES, output_directory=folder)


def field_comments(kind: type) -> dict[str, str]:
    """What comments say of a dataclass's fields: `#:` lines above one, or the end of its own line."""
    lines = inspect.getsource(kind).splitlines()
    found: dict[str, str] = {}
    for node in ast.parse("\n".join(lines)).body[0].body:
        if isinstance(node, ast.AnnAssign):
            first, last = node.lineno - 1, node.end_lineno - 1
            above = first
            while lines[above - 1].strip().startswith("#:"):
                above -= 1
            told = [line.strip().removeprefix("#:").strip() for line in lines[above:first]]
            behind = [part for part in lines[last][node.end_col_offset :].split("# ")[1:] if "type:" not in part]
            found[node.target.id] = " ".join([*told, *behind]).strip()
    return {name: text for name, text in found.items() if text}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    print(f"wrote {sys.argv[1]}/index.html")
