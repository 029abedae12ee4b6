"""Sphinx's settings for these pages: `make docs`. A warning, as of a link that leads nowhere, ends the build."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

os.environ["NKICONV_NKI"] = "simulator"  # the pages are the same wherever they are made
sys.path.insert(0, str(Path(__file__).parent))

import docstrings

import nkiconv
from nkiconv.simulator import Kernel

project = "nkiconv"
version = release = nkiconv.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"nkiconv {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_heading_anchors = 3
smartquotes = False  # quotation marks in docstrings are code's
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

#: The modules whose public names have a page each.
MODULES = (
    "nkiconv",
    "nkiconv.pytorch",
    "nkiconv.pytorch.nn",
    "nkiconv.simulator",
    "nkiconv.simulator.isa",
    "nkiconv.simulator.language",
    "nkiconv.simulator.profiling",
)


def setup(app) -> None:
    """Have autodoc read docstrings as the house writes them."""
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            found = getattr(module, public)  # puts there what is imported late
            vars(module)[public] = found.function if isinstance(found, Kernel) else found
            docstrings.note_fields(found)
        docstrings.note_data(module)
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("source-read", download_outside)


def download_outside(app, page: str, source: list[str]) -> None:
    """Have links of a page to Markdown outside docs/ give that file, which is no page of the site."""
    if "/" not in page:
        source[0] = re.sub(r"\[([^]]+)\]\((\.\./[^)#]+\.md)\)", r"{download}`\1 <\2>`", source[0])
