"""Writes the output of a page's commands, and the functions that it shows, into the page:
`python -m nkiconv.tools.tables.console docs/first_kernel.md`.

After a fence of console lines that is followed by `<!-- prints -->`, the next fence holds their output, 80 columns
wide, with errors. If `<!-- tables -->` follows, the lines up to `<!-- /tables -->` hold it, which is Markdown. Commands
run in the folder above the page's. The fence after `<!-- shows FILE.py:NAME -->` holds that function.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from ...simulator.constants import VARIABLE
from ...simulator.hardware import CONSTANTS
from ...whole_file import write_page

#: A fence of commands, the mark, the fence that is written.
_BLOCK = re.compile(r"(```console\n(.*?)```\n\n<!-- prints -->\n```text\n)(.*?)(```\n)", re.DOTALL)
#: The same for output in Markdown.
_TABLES = re.compile(r"(```console\n([^`]*?)```\n\n<!-- tables -->\n)(.*?)(<!-- /tables -->\n)", re.DOTALL)
#: The mark, with a file and a function's name, and the fence that is written.
_SHOWN = re.compile(r"(<!-- shows ([\w./]+):(\w+) -->\n```py\n)(.*?)(```\n)", re.DOTALL)


def filled(text: str, root: Path) -> str:
    """A page with the functions that it shows and the output of its commands."""
    text = _SHOWN.sub(lambda found: found[1] + source_of(root / found[2], found[3]) + found[5], text)
    text = _BLOCK.sub(lambda found: found[1] + printed(found[2], root) + found[4], text)
    return _TABLES.sub(lambda found: found[1] + printed(found[2], root, errors=False) + found[4], text)


def source_of(path: Path, name: str) -> str:
    """A function's lines, decorators included."""
    text = path.read_text(encoding="utf-8")
    (node,) = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == name)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"


def printed(commands: str, root: Path, errors: bool = True) -> str:
    """The output of commands, each a line that begins with nkiconv; a backslash at the end joins two lines.

    errors: whether a command may fail, and what it says on stderr is part of its output.
    """
    return "".join(_run(line, root, errors) for line in commands.replace("\\\n", " ").splitlines() if line.strip())


def _run(line: str, root: Path, errors: bool) -> str:
    name, *arguments = shlex.split(line)
    if name != "nkiconv":
        raise ValueError(f"{line}: must begin with nkiconv")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NKI", "NEURON_"))}
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "nkiconv", *arguments],
        cwd=root,
        env={**kept, VARIABLE: str(CONSTANTS.path or ""), "COLUMNS": "80", "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else None,
        text=True,
        check=not errors,
    )
    lines = [one.rstrip() for one in done.stdout.replace(f"{root}{os.sep}", "").splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def main() -> None:
    """Rewrite the pages that are named."""
    for name in sys.argv[1:]:
        page = Path(name)
        write_page(filled(page.read_text(encoding="utf-8"), page.resolve().parents[1]).split("\n"), page)


if __name__ == "__main__":
    main()
