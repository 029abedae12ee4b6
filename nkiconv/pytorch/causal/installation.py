"""Settings outside of nkiconv that can be undone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any


class Installation(ExitStack):
    """Changes outside of nkiconv; leaving it as a context manager, or `undo`, restores the state before."""

    def undo(self) -> None:
        """Restore the state before; a second call does nothing. Undo later installations first."""
        self.close()

    def set(self, names: dict[str, Any], name: str, value: Any) -> None:
        """Set an entry until it is undone."""
        if name in names:
            self.callback(names.__setitem__, name, names[name])
        else:
            self.callback(names.__delitem__, name)
        names[name] = value
