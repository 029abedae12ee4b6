"""Two cores taking turns: exactly one runs; they change over where they meet or, if asked, at each instruction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import MeetingError
from .rules import broken

if TYPE_CHECKING:
    from .program import Launch, Program


@dataclass(frozen=True)
class Offer:
    """A core's side of a meeting: its kind, its source line, and the data for the other core."""

    kind: tuple[Any, ...]
    location: str
    payload: Any = None

    def describe(self) -> str:
        """Call, distinguishing arguments, and source line."""
        return f"{self.kind[0]} {', '.join(str(part) for part in self.kind[1:])} at {self.location}"


class _Abandoned(BaseException):
    """Unwinds a core that waits for one that has failed."""


class Rendezvous:
    """Runs the cores of a launch in turns.

    Core 0 runs in the calling thread. At its first meeting core 1 is started in a thread and runs up to the same
    meeting; without meetings core 1 runs after core 0 in the calling thread. A core that calls `step` lets the other
    one run up to its next step or meeting. The thread has ended when `run` returns or raises. `alone`: the core that
    runs while the other does not; a meeting raises MeetingError.
    """

    def __init__(self, launch: Launch, run_core: Callable[[Program], Any], *, alone: int | None = None) -> None:
        self._programs = launch.programs
        self._alone = alone
        self._run_core = run_core
        self._turn = [threading.Semaphore(0) for _ in launch.programs]
        self._offers: list[Offer | None] = [None] * len(launch.programs)
        self._inbox: list[Offer | None] = [None] * len(launch.programs)
        self._results: list[Any] = [None] * len(launch.programs)
        self._done = [False] * len(launch.programs)
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> list[Any]:
        """Run all cores to their ends and return their results; the first failure is raised here."""
        if self._alone is not None:
            return [self._run_core(self._programs[self._alone])]
        try:
            self._results[0] = self._run_core(self._programs[0])
        except _Abandoned:
            pass  # core 1 has failed and left its error
        except BaseException as error:
            self._failure = error
        self._done[0] = True
        if self._thread is not None:
            self._turn[1].release()
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        if self._thread is None and len(self._programs) > 1:
            self._results[1] = self._run_core(self._programs[1])
        return self._results

    def meet(self, core: int, offer: Offer) -> tuple[Offer, bool]:
        """Wait for the other core at the same meeting (NKI154 when it never comes).

        Returns the other core's offer, and whether this core came second (and so ran the meeting).
        """
        if self._alone is not None:
            raise MeetingError(offer.describe())
        other = 1 - core
        partner = self._offers[other]
        if partner is not None:
            if partner.kind != offer.kind:
                self._refuse(f"core {core} is at {offer.describe()}, core {other} at {partner.describe()}", offer)
            self._offers[other] = None
            self._inbox[other] = offer
            return partner, True
        self._offers[core] = offer
        self._hand_over(core, other)
        answer, self._inbox[core] = self._inbox[core], None
        if answer is None:
            self._refuse(f"core {core} waits at {offer.describe()}, core {other} ended without meeting it", offer)
        return answer, False

    def step(self, core: int) -> None:
        """Let the other core run up to its own next step, unless it waits for this one or has ended."""
        other = 1 - core
        if self._offers[other] is not None or self._done[other]:
            return
        self._hand_over(core, other)

    def _hand_over(self, core: int, other: int) -> None:
        """Let the other core run until it waits, steps or ends; if it fails, this one is abandoned."""
        if self._done[other]:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._core_1, name="nki core 1", daemon=True)
            self._thread.start()
        else:
            self._turn[other].release()
        self._turn[core].acquire()
        if self._failure is not None:
            raise _Abandoned

    def _core_1(self) -> None:
        try:
            self._results[1] = self._run_core(self._programs[1])
        except _Abandoned:
            pass  # core 0 has failed and left its error
        except BaseException as error:  # handed to the calling thread, which raises it
            self._failure = error
        finally:
            self._done[1] = True
            self._turn[0].release()

    def _refuse(self, detail: str, offer: Offer) -> NoReturn:
        raise broken("NKI154", offer.kind[0], detail, location=offer.location)
