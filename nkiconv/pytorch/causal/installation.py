"""What was set somewhere else, to be set back."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class Installation:
    """What was installed; leaving it as a context manager, or `undo`, undoes it."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.steps: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Restore what was there before; the second time nothing. Later installations are to be undone first."""
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
