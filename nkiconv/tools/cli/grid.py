"""Tables of commands: on a terminal of any width without a digit lost, as Markdown, or as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...simulator.hardware import CONSTANTS
from ..tables.readme import Columns, cell
from .shell import FORMATS, asked, notes, write_out

#: Columns that a cell of text may be folded to before a row becomes a paragraph.
FOLDED = 18
#: And at the least, where names in the first column need the room.
LEAST_TEXT = 12
#: Between two columns.
_GAP = 2
#: Characters of a heading and a cell that a paragraph does not break.
WHOLE = 32
#: A space that does not break.
_FIXED = "\u00a0"
#: Headings in two lines.
_BROKEN = {
    "instructions": "instruc-\ntions",
    "look-ahead": "look-\nahead",
    "x implicit_gemm": "x implicit\n_gemm",
}


@dataclass
class Grid:
    """Rows of text under headings; the first column names a row."""

    title: str
    headings: Sequence[str]
    #: headings of text; all others are of numbers, and stand on the right
    text: Sequence[str]
    #: headings that a screen shows without --wide, those to drop first on a narrow one last; none: all
    main: Sequence[str] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    #: by number of a row: how it looks on a terminal
    styles: dict[int, str] = field(default_factory=dict)
    #: keys of rows that `put` takes, and formats of numbers
    columns: Columns = ()

    @staticmethod
    def of(title: str, columns: Columns, main: Sequence[str] = ()) -> Grid:
        """A table of rows that are dictionaries; columns without a format are text."""
        text = [heading for heading, _, kind in columns if not kind]
        return Grid(title, [heading for heading, _, _ in columns], text, main, columns=columns)

    def put(self, row: Mapping[str, Any], style: str = "") -> None:
        """One more row, by the columns' keys; empty where it has none."""
        self.add(*(cell(row[key], kind) if key in row else "" for _, key, kind in self.columns), style=style)

    def add(self, *cells: str, style: str = "") -> None:
        """One more row."""
        if style:
            self.styles[len(self.rows)] = style
        self.rows.append(cells)

    def show(self, screen: Console) -> None:
        """Print it as `--format` asks: Markdown; CSV; or a table, of its main columns unless `--wide` is given. With
        `--wide`, a paragraph per row where the table has no room."""
        if asked().format != FORMATS[0]:
            write_out(self.markdown() if asked().format == "markdown" else self.csv())
            return
        shown = self if asked().wide or not self.main else self._narrowed(screen.width)
        screen.print(Text(self._caption(), style="italic"))
        widths = shown._fitted(screen.width)
        if widths:
            screen.print(shown._table(widths))
        else:
            for number, row in enumerate(self.rows):
                screen.print(Text(row[0], style=self.styles.get(number, "bold")), overflow="fold")
                for line in _packed(list(self._pairs(row)), screen.width - 2):
                    screen.print(Text(f"  {line}"))
            screen.print()
        hidden = [one for one in self.headings if one not in shown.headings]
        if hidden:
            notes(screen, f"--wide also shows: {', '.join(hidden)}")

    def _caption(self) -> str:
        """The title, of times that are modelled under a target with that target's name."""
        modelled = any("modelled" in one for one in (self.title, *self.headings))
        return f"{self.title}; {CONSTANTS.modelled}" if modelled and CONSTANTS.path else self.title

    def _narrowed(self, width: int) -> Grid:
        """The main columns that a screen has room for, at least two, in their usual order."""
        for count in range(len(self.main), 1, -1):
            places = [i for i, one in enumerate(self.headings) if one in self.main[:count]]
            rows = [tuple(row[i] for i in places) for row in self.rows]
            found = Grid(self.title, [self.headings[i] for i in places], self.text, (), rows, self.styles)
            if found._fitted(width):
                break
        return found

    def markdown(self) -> str:
        """A table of Markdown."""
        lines = [self.headings, ["---" if one in self.text else "---:" for one in self.headings], *self.rows]
        return "\n".join("| " + " | ".join(one.replace("|", "\\|") for one in line) + " |" for line in lines) + "\n"

    def csv(self) -> str:
        """A header and a line a row."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.headings, *self.rows])
        return file.getvalue()

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for heading, wide in zip(self.headings, widths, strict=True):
            if heading in self.text:
                table.add_column(heading, overflow="fold", width=wide)
            else:
                table.add_column(_BROKEN.get(heading, heading), justify="right", overflow="fold", width=wide)
        for number, row in enumerate(self.rows):
            cells = (Text(_at_marks(one, wide)) for one, wide in zip(row, widths, strict=True))
            table.add_row(*cells, style=self.styles.get(number, ""))
        return table

    def _fitted(self, width: int) -> list[int]:
        """The widths of a table that a terminal has room for: whole headings first, then cells of text; none where
        there is no such table. Left to itself, rich cuts what columns of a least width leave no room for."""
        wanted = self._widths()
        found = [
            min(wide, FOLDED) if heading in self.text else self._number_width(heading)
            for heading, wide in zip(self.headings, wanted, strict=True)
        ]
        spare = width - sum(found) - _GAP * len(found)
        if spare < 0:
            return []
        for place in sorted(range(len(found)), key=lambda place: self.headings[place] in self.text):
            more = min(spare, wanted[place] - found[place])
            found[place] += more
            spare -= more
        self._widen_names(found)
        return found

    def _widen_names(self, widths: list[int]) -> None:
        """Give the first column what others of text can spare, where it would break a name."""
        longest = [
            max((len(word) for row in self.rows for word in row[i].split()), default=0) for i in range(len(widths))
        ]
        for i, heading in enumerate(self.headings[1:], 1):
            give = min(longest[0] - widths[0], widths[i] - max(longest[i], LEAST_TEXT))
            if heading in self.text and give > 0:
                widths[0] += give
                widths[i] -= give

    def _number_width(self, heading: str) -> int:
        """Of a column of numbers, whose heading may be folded between words."""
        place = list(self.headings).index(heading)
        words = _BROKEN.get(heading, heading).split()
        return max([*map(len, words), *(len(row[place]) for row in self.rows)])

    def _widths(self) -> list[int]:
        """Columns that no cell is folded in."""
        headings = [max(map(len, _BROKEN.get(one, one).split("\n"))) for one in self.headings]
        return [max([wide, *map(len, cells)]) for wide, *cells in zip(headings, *self.rows, strict=True)]

    def _pairs(self, row: tuple[str, ...]) -> Iterator[str]:
        yield from (f"{heading} {one}" for heading, one in zip(self.headings[1:], row[1:], strict=True) if one)


def _at_marks(text: str, width: int) -> str:
    """Text with words that are longer than a column continued after a dot or the like, where one is near."""
    words = []
    for word in text.split(" "):
        lines = [word]
        while len(lines[-1]) > width:
            last = lines.pop()
            cut = max(last.rfind(mark, width // 2, width) for mark in "._=,:/") + 1 or width
            lines += last[:cut], last[cut:]
        words.append("\n".join(lines))
    return " ".join(words)


def _packed(pairs: list[str], width: int) -> list[str]:
    """Pairs in lines of up to `width`; only long ones are broken."""
    kept = ", ".join(pair.replace(" ", _FIXED) if len(pair) <= WHOLE else pair for pair in pairs)
    return [line.replace(_FIXED, " ") for line in textwrap.wrap(kept, width, break_on_hyphens=False)]
