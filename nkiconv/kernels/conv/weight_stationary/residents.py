"""Weight-resident groups of a core on their way: loads, stationaries, biases.

Of groups stationaries are made AHEAD output tiles before the first that needs them, and filters are loaded a group
ahead: engines put zeros between the groups of channels while the Tensor Engine works on others. Of transposed
convolutions a group is loaded at its first output tile: it takes most of what SBUF has for filters.
"""

from ...._nki import nl
from .filters import filters_of
from .results import load_bias

#: Output tiles before the first of an M tile of groups, at most, that its stationaries are made at.
AHEAD = 2


class Residents(nl.NKIObject):
    """Stationaries and biases of the M tiles of a core's steps, (weight-resident group, output tile)."""

    def __init__(self, operands, geometry, schedule, steps, ledger):
        self.operands, self.schedule, self.steps = operands, schedule, steps
        self.order = sorted({b for b, _ in steps})
        self.filters = filters_of(operands, geometry, schedule, ledger)
        self.ahead = 1 if schedule.gathers else 0
        self.biases, self.made = {}, 0

    def start(self, inputs):
        """Load filters and x of the first sums, K tile by K tile."""
        tile = self.schedule.residents[self.order[0]].tiles[0]
        for chunk in range(len(self.schedule.chunks)):
            self.filters.load(tile, chunk)
            if chunk == 0:
                self.biases[tile] = load_bias(self.operands, self.schedule, tile)
            inputs.load(chunk + 1)
        if self.ahead > 0:
            self._load(1 + self.ahead)

    def make_first(self):
        """Make the stationaries of the first group."""
        self.filters.start(len(self.order))
        self._make(1)

    def make_until(self, index):
        """Make those that are due at a step; no further than one group ahead: the one after it has the buffers of this
        one."""
        at = self.order.index(self.steps[index][0])
        soon = self.steps[min(index + AHEAD * self.ahead, len(self.steps) - 1)][0]
        self._make(min(self.order.index(soon), at + 1) + 1)

    def _load(self, count):
        """Load so many groups, or all."""
        for b in self.order[:count]:
            for tile in self.schedule.residents[b].tiles:
                if tile not in self.biases:
                    for chunk in range(len(self.schedule.chunks)):
                        self.filters.load(tile, chunk)
                    self.biases[tile] = load_bias(self.operands, self.schedule, tile)

    def _make(self, count):
        """Make the stationaries of so many groups."""
        while self.made < count:
            self._load(self.made + 1)
            self.filters.make(self.schedule.residents[self.order[self.made]].tiles)
            self.made += 1
            self._load(self.made + self.ahead)
            self.filters.prepare()
