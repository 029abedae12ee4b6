"""``python -m nkiconv.tools.tables.support docs/support.md`` rewrites the tables between their markers in that file."""

from __future__ import annotations

import sys
from pathlib import Path

from ..readme import put_between
from .page import MARKERS, page

put_between(Path(sys.argv[1]), MARKERS, page())
