"""Settings outside of nkiconv that can be undone."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class Installation:
    """Changes outside of nkiconv; leaving it as a context manager, or `undo`, restores the state before."""

    def __init__(self) -> None:
        """Start with no changes."""
        self.steps: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Restore the state before; a second call does nothing. Undo later installations first."""
        while self.steps:
            self.steps.pop()()

    def set(self, names: dict[str, Any], name: str, value: Any) -> None:
        """Set an entry until it is undone."""
        missing = object()
        before = names.get(name, missing)
        names[name] = value

        def restore() -> None:
            if before is missing:
                del names[name]
            else:
                names[name] = before

        self.steps.append(restore)

    def __enter__(self) -> Installation:
        """It is installed already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo."""
        self.undo()
