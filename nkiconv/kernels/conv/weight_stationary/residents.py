"""Weight-resident groups of a core: loads, stationaries, biases.

Stationaries of groups are made AHEAD output tiles before their first use, and filters are loaded a weight-resident
group ahead: engines spread them with zeros while the Tensor Engine works on others. Filters of transposed convolutions
are loaded at their first output tile: they take most of SBUF's room for filters.
"""

from ...._nki import nl
from ..._warm import warm_zeros
from .filters import filters_of
from .results import Biases

#: The most output tiles between the stationaries of groups and their first use.
AHEAD = 2


class Residents(nl.NKIObject):
    """Stationaries and biases of the M tiles of a core's steps (weight-resident group, output tile)."""

    #: columns of a warm-up matmul, in 128s
    warm_blocks = 1

    def __init__(self, operands, geometry, schedule, steps, ledger):
        self.schedule, self.steps, self.order = schedule, steps, sorted({b for b, _ in steps})
        tiles = [tile for b in self.order for tile in schedule.residents[b].tiles]
        self.biases = Biases(operands.bias, schedule, [one for tile in tiles for one in tile])
        self.filters = filters_of(operands, geometry, schedule, tiles, ledger)
        self.ahead, self.loaded, self.made = 1 if schedule.gathers else 0, [], 0

    def start(self, inputs):
        """Load filters and x of the first sums, K tile by K tile; returns the zeros of `warm_zeros`."""
        tile = self.schedule.residents[self.order[0]].tiles[0]
        for k_tile in range(len(self.schedule.k_tiles)):
            self.filters.load(tile, k_tile)
            if k_tile == 0:
                self.biases.load()
            inputs.load(k_tile + 1)
        self.loaded.append(tile)
        self._load(1 + self.ahead if self.ahead > 0 else 0)
        return warm_zeros()

    def make_first(self):
        """Make the stationaries of the first group."""
        self.filters.start(len(self.order))
        self._make(1)

    def make_until(self, index, place):
        """Make the stationaries of a step and of the next ones, at most one group ahead: the group after that reuses
        this one's buffers."""
        at = self.order.index(self.steps[index][0])
        soon = self.steps[min(index + AHEAD * self.ahead, len(self.steps) - 1)][0]
        self._make(min(self.order.index(soon), at + 1) + 1)

    def _load(self, count):
        """Load the first `count` groups, or all."""
        for tile in [tile for b in self.order[:count] for tile in self.schedule.residents[b].tiles]:
            if tile not in self.loaded:
                for k_tile in range(len(self.schedule.k_tiles)):
                    self.filters.load(tile, k_tile)
                self.loaded.append(tile)

    def _make(self, count):
        """Make the stationaries of the first `count` groups."""
        while self.made < count:
            self._load(self.made + 1)
            self.filters.make(self.schedule.residents[self.order[self.made]].tiles)
            self.made += 1
            self._load(self.made + self.ahead)
            self.filters.prepare()


class StackedResidents(Residents):
    """Stationaries and biases of K packing; filters are loaded by M tiles, a few ahead."""

    def __init__(self, operands, geometry, schedule, steps, ledger):
        super().__init__(operands, geometry, schedule, steps, ledger)
        self.warm_blocks = 4 if schedule.stack.diagonal else 1

    def start(self, inputs):
        """Load filters, x and biases of the first sums, then x as room allows."""
        # filters that wait for zeros must not wait for those of all rows
        late = self.schedule.stack.filters == "straight" and not self.schedule.stack.fits_window
        if not late:
            inputs.clear(0, 0)
        zeros_sbuf = warm_zeros()
        self.filters.start()
        if late:
            inputs.clear(0, 1)
        inputs.load(1)
        self.biases.load()
        self.filters.load(0)
        inputs.load(len(inputs.tiles))
        return zeros_sbuf

    def make_first(self):
        """Make the stationaries of the first M tile."""
        self.filters.place(0)

    def make_until(self, index, place):
        """Load and make the stationaries of an M tile of a step."""
        m_tile = self.order.index(self.steps[index][0]) + place
        self.filters.load(m_tile + 1)
        self.filters.place(m_tile)
