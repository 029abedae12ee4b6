"""Weight-resident groups of a core on their way: loads, stationaries, biases.

Of groups stationaries are made AHEAD output tiles before the first that needs them, and filters are loaded a group
ahead: engines put zeros between the groups of channels while the Tensor Engine works on others. Of transposed
convolutions a group is loaded at its first output tile: it takes most of what SBUF has for filters.
"""

from ...._nki import nl
from ..._warm import warm_zeros
from .filters import filters_of
from .results import Biases

#: Output tiles before the first of an M tile of groups, at most, that its stationaries are made at.
AHEAD = 2


class Residents(nl.NKIObject):
    """Stationaries and biases of the M tiles of a core's steps, (weight-resident group, output tile)."""

    #: times 128 columns of a matmul on zeros
    warm_blocks = 1

    def __init__(self, operands, geometry, schedule, steps, ledger):
        self.schedule, self.steps, self.order = schedule, steps, sorted({b for b, _ in steps})
        tiles = [tile for b in self.order for tile in schedule.residents[b].tiles]
        self.biases = Biases(operands.bias, schedule, [one for tile in tiles for one in tile])
        self.filters = filters_of(operands, geometry, schedule, tiles, ledger)
        self.ahead, self.loaded, self.made = 1 if schedule.gathers else 0, [], 0

    def start(self, inputs):
        """Load filters and x of the first sums, K tile by K tile; return zeros of `warm_zeros`."""
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
        """Make those that a step and the next ones need, one group ahead at most: the one after it has the buffers of
        this one."""
        at = self.order.index(self.steps[index][0])
        soon = self.steps[min(index + AHEAD * self.ahead, len(self.steps) - 1)][0]
        self._make(min(self.order.index(soon), at + 1) + 1)

    def _load(self, count):
        """Load so many groups, or all."""
        for tile in [tile for b in self.order[:count] for tile in self.schedule.residents[b].tiles]:
            if tile not in self.loaded:
                for k_tile in range(len(self.schedule.k_tiles)):
                    self.filters.load(tile, k_tile)
                self.loaded.append(tile)

    def _make(self, count):
        """Make the stationaries of so many groups."""
        while self.made < count:
            self._load(self.made + 1)
            self.filters.make(self.schedule.residents[self.order[self.made]].tiles)
            self.made += 1
            self._load(self.made + self.ahead)
            self.filters.prepare()


class StackedResidents(Residents):
    """The same of K packing, whose filters come M tile by M tile, a few ahead."""

    def __init__(self, operands, geometry, schedule, steps, ledger):
        super().__init__(operands, geometry, schedule, steps, ledger)
        self.warm_blocks = 4 if schedule.stack.diagonal else 1

    def start(self, inputs):
        """Load filters, x and biases of the first sums, then what there is room for."""
        # filters that wait for zeros must not come after all rows
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
        """Load and make those that an M tile of a step needs."""
        m_tile = self.order.index(self.steps[index][0]) + place
        self.filters.load(m_tile + 1)
        self.filters.place(m_tile)
