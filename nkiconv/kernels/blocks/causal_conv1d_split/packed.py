"""The loop of `causal_conv1d_split_heads` for rows of unequal lengths: packed sequences, short images.

    for each panel of channels, whose filters stay in SBUF
        for each block of 128 columns: pieces of rows, in front of each the S - 1 tokens before it, or its state
            for each group of up to 512 channels:  sums of the block, y, stored piece by piece

x arrives in memory order, in long runs, and engines copy its pieces to their columns, all channels of the panel at
once. States are transposed by the Tensor Engine, on the way in and out, so that HBM sees long runs of them too. Next
states are columns of the block: tokens, and states of rows of fewer.
"""

from functools import partial

from ...._nki import nisa, nl
from ....schedules.depthwise import gate_of
from ....schedules.packed_rows import by_image, chunk_of, panels, tokens_of
from ....schedules.tiles import cut_at, share, size_of, slot_for, some_of, transposes_of_bank, whole_words
from ..._dma import load, store
from ..._engines import copy_balanced, copy_in_sbuf, itemsize_of, pick_memset
from ..._prologue import gates_of
from ...conv.filter_feed import transposed_bank
from .kernel import Results, load_columns, load_filters, load_state, place_of, transpose_positions, warmed

#: Blocks whose x is loaded ahead of the current one.
BLOCKS_AHEAD = 1
#: Steps from the copies of a step's columns to its sums.
STEPS_AHEAD = 3
#: Groups of the first block whose loads start in each of its steps.
FIRST_LOADS = 2


def convolve_packed(operands, geometry, epilogue, eps, final_hbm):
    """Compute operands.parts, and states after the rows if final_hbm is not None; rows without tokens are left."""
    out = Results(operands.parts, epilogue, eps, warmed())
    for visits in panels(geometry, nl.num_programs(), nl.program_id(0)):
        Panel(operands, geometry, visits, out, final_hbm).run()
    out.end()


class Panel:
    """A panel of channels, [partitions, channel tiles, ...] in SBUF.

    tiles: the first channel tile of each group; each: tiles of the last group. By block: x, chunks in memory order;
    columns. By the first of rows whose states are transposed together: states before and after, [.., rows, S - 1],
    `known` if their loads have started for a group. factors: y's, by (block, group). pending: functions of the ledger
    that finish loads.
    """

    def __init__(self, operands, geometry, visits, out, final_hbm):
        self.operands, self.geometry, self.visits, self.out, self.final_hbm = operands, geometry, visits, out, final_hbm
        self.tiles, self.count, self.halo, self.known = {}, 0, geometry.S - 1, set()
        for group in dict.fromkeys(group for visit in visits for group in visit.groups):
            self.tiles[group] = self.count
            self.count += group.tiles
            self.each = group.tiles
        self.x, self.columns, self.before, self.after, self.y = {}, {}, {}, {}, {}
        self.factors, self.filters, self.pending = {}, {}, {}

    def run(self):
        """Compute y of all visits."""
        ahead = self.preparations()
        for _ in range(STEPS_AHEAD):
            next(ahead, None)
        for visit in self.visits:
            ends = visit.ends if self.final_hbm is not None else ()
            for place, group in enumerate(visit.groups):
                next(ahead, None)
                self.sum(visit, group)
                for end in some_of(ends, share(len(ends), len(visit.groups), place)):
                    self.store_ends(*end)

    def preparations(self):
        """Do what sums need, and yield after the share of each step: loads ahead, and a share of the columns of the
        next visit. In the first visit all is done group by group, so that sums begin early."""
        loads = [(visit, group) for visit in self.visits for group in visit.groups]
        loaded, until = 0, 0
        for index, visit in enumerate(self.visits):
            until += len(visit.groups)
            following, work = self.visits[index + 1 : index + 2], []
            for place, group in enumerate(visit.groups):
                far = until + sum(len(one.groups) for one in self.visits[index + 1 : index + 1 + BLOCKS_AHEAD])
                far = min(far, FIRST_LOADS * (place + 1)) if index == 0 and place + 1 < len(visit.groups) else far
                for one in loads[loaded:far]:
                    self.load(*one)
                loaded = max(loaded, far)
                if index == 0:
                    self.do(self.fills(visit, (group,)))
                if place == (0 if index > 0 else len(visit.groups) - 1):
                    work = [each for one in following for each in self.fills(one, one.groups)]
                self.do(some_of(work, share(len(work), len(visit.groups), place)) if index > 0 else work)
                yield

    def do(self, work):
        """Call functions of the ledger."""
        for each in work:
            each(self.out.ledger)

    def new(self, *shape):
        """A new tile [128, tiles of the panel, ...] in SBUF."""
        return nl.ndarray((nl.tile_size.pmax, self.count, *shape), dtype=self.operands.x.dtype, buffer=nl.sbuf)

    def of(self, tile, group):
        """A group's part of a tile."""
        return tile[:, self.tiles[group] : self.tiles[group] + group.tiles]

    def load(self, visit, group):
        """Start the loads of a group's x and factors in a block, and of filters and states that it is the first to
        read; make the filters."""
        operands, geometry, row = self.operands, self.geometry, visit.block[0].row
        if group not in self.filters:
            self.filters[group] = load_filters(operands, geometry, group, not self.filters, self.out)
        (first, count), gate = tokens_of(geometry, visit.block), gate_of(geometry)
        if visit.block not in self.x:
            self.x[visit.block] = {chunk: self.new(count) for chunk in ("x", *gate)}
        sources, pending = self.x[visit.block], self.pending.setdefault((visit.block, group), [])
        for run in group.runs:
            tiles = slice(run.tile0, run.tile0 + run.tiles)
            arrived = [self.of(tile, group)[0 : run.rows, tiles] for tile in sources.values()]
            for chunk, into in zip(sources, arrived):
                offset = place_of(geometry, chunk, row, first - row.image * geometry.T, run.c0)
                if by_image(geometry):
                    self.load_images(into, run, offset)
                else:
                    load_columns(into.expand_dim(2), operands.x, geometry, run, row, offset)
            pending += gates_of(arrived, gate == "G")
        self.load_states(visit, group, pending)
        if "C" in geometry.chunks:
            self.factors[visit.block, group] = self.load_factor(visit, group)

    def load_images(self, into, run, offset):
        """Load whole images of a run of channel tiles, neighbouring channels of an image as one run of HBM, into
        [partitions, image, tile, token], the elements of `into`."""
        geometry, (rows, tiles, count) = self.geometry, into.shape
        images = into.reshape((rows, count // geometry.T, tiles, geometry.T))
        steps = run.row_step * geometry.x_c, geometry.x_n, run.tile_step * geometry.x_c, 1
        load(images, self.operands.x, list(zip(steps, images.shape)), offset)

    def load_states(self, visit, group, pending):
        """Start the loads of states that a block is the first of a group to read."""
        if self.operands.state is None:
            return
        for row in (piece.row.number for piece in visit.block if piece.first < self.halo):
            first, count = chunk_of(self.geometry, row)
            if (first, group) in self.known:
                continue
            self.known.add((first, group))
            if first not in self.before:
                self.before[first] = self.new(count, self.halo)
            # several groups on neighbouring partitions, for all DMA engines
            lead = len(self.known) * slot_for(count) % nl.tile_size.pmax
            state_sbuf = load_state(self.operands, self.geometry, group, first, count, lead=lead)
            pending.append(partial(transpose_positions, self.of(self.before[first], group), group, state_sbuf))

    def load_factor(self, visit, group):
        """Load y's factor, [columns, channels]: rows that belong to no token are zeros."""
        geometry, x_hbm = self.geometry, self.operands.x
        factor_sbuf = nl.ndarray((visit.columns, group.count), dtype=x_hbm.dtype, buffer=nl.sbuf)
        nisa.memset(dst=factor_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for piece in visit.block:
            offset = place_of(geometry, "C", piece.row, piece.row.first + piece.first, group.c0)
            into = factor_sbuf[piece.place : piece.place + piece.count]
            load(into, x_hbm, [[geometry.x_t, piece.count], [geometry.x_c, group.count]], offset)
        return factor_sbuf

    def fills(self, visit, groups):
        """Functions that fill the columns of a block."""
        work = [each for group in groups for each in self.pending.pop((visit.block, group))]
        if visit.block not in self.columns:
            self.columns[visit.block] = self.new(visit.columns + self.halo)
        for part in self.parts_of(groups):
            work += [partial(self.fill, visit.block, piece, part) for piece in visit.block]
        for part in self.parts_of(groups) if self.final_hbm is not None else ():
            work += [partial(self.keep_end, visit.block, piece, part) for piece in visit.block if piece.is_end]
        return work

    def parts_of(self, groups):
        """(partitions, tiles) of neighbouring channel tiles of groups with equally many partitions."""
        runs = [(run.rows, self.tiles[group] + run.tile0, run.tiles) for group in groups for run in group.runs]
        found = []
        for rows, first, tiles in sorted(runs, key=lambda run: run[1]):
            if found and found[-1][0].stop == rows and found[-1][1].stop == first:
                found[-1] = (found[-1][0], slice(found[-1][1].start, first + tiles))
            else:
                found.append((slice(0, rows), slice(first, first + tiles)))
        return found

    def fill(self, block, piece, part, ledger):
        """Fill the columns of a piece, and those in front of it with tokens and its state."""
        held = min(self.halo, piece.first)
        head, first = self.halo - held, piece.token - held - tokens_of(self.geometry, block)[0]
        columns = self.columns[block][part][:, :, piece.place : piece.place + self.halo + piece.count]
        if head > 0 and self.operands.state is None:
            engine = pick_memset(ledger, columns.shape[1] * head)
            nisa.memset(dst=columns[:, :, 0:head], value=0.0, engine=engine)
        elif head > 0:
            start, _ = chunk_of(self.geometry, piece.row.number)
            state = self.before[start][part][:, :, piece.row.number - start, piece.first : self.halo]
            copy_in_sbuf(columns[:, :, 0:head], state, ledger)
        x, columns = self.x[block]["x"][part], columns[:, :, head:]
        if by_image(self.geometry):
            rows, tiles, count = x.shape
            groups, T = tiles // self.each, self.geometry.T
            x = x.reshape((rows, groups, count // T, self.each, T))[:, :, first // T]
            copy_in_sbuf(columns.reshape_dim(1, (groups, self.each)), x, ledger)
        else:
            copy_in_sbuf(columns, x[:, :, first : first + held + piece.count], ledger)

    def keep_end(self, block, piece, part, ledger):
        """Keep the state after a row."""
        first, rows = chunk_of(self.geometry, piece.row.number)
        if first not in self.after:
            self.after[first] = self.new(rows, self.halo)
        end = piece.place + piece.count
        last = self.columns[block][part][:, :, end : end + self.halo]
        copy_in_sbuf(self.after[first][part][:, :, piece.row.number - first], last, ledger)

    def sum(self, visit, group):
        """Compute y of a block."""
        columns = self.of(self.columns[visit.block], group)

        def window(rows, tile, s):
            return columns[0:rows, tile, s : s + visit.columns]

        factor = self.factors.pop((visit.block, group), None)
        self.out.add(group, visit.columns, window, self.filters[group], *self.rows(visit, group), factor)

    def rows(self, visit, group):
        """(a view [columns, channels] for y of a group, its stores): those of all groups of its part after the last."""
        own = [one for one in visit.groups if one.part == group.part]
        y_hbm, first = self.out.parts[group.part], min(one.first for one in own)
        width, channels = sum(one.count for one in own), size_of(y_hbm.shape[2:])
        if group is own[0]:
            self.y[group.part] = nl.ndarray((visit.columns, width), dtype=y_hbm.dtype, buffer=nl.sbuf)
        y_sbuf, stores = self.y[group.part], []
        for piece in visit.block if group is own[-1] else ():
            source = y_sbuf[piece.place : piece.place + piece.count]
            stores.append((source, y_hbm, [[channels, piece.count], [1, width]], piece.token * channels + first))
        return y_sbuf[:, group.first - first : group.first - first + group.count], stores

    def store_ends(self, group, row, rows):
        """Store states after rows, of a group: transposed position by position."""
        first, _ = chunk_of(self.geometry, row)
        after, item = self.of(self.after[first], group), itemsize_of(self.operands.x.dtype)
        found_sbuf = nl.ndarray((rows, group.count, self.halo), dtype=self.operands.x.dtype, buffer=nl.sbuf)
        for run in group.runs:
            for tile in range(run.tile0, run.tile0 + run.tiles):
                states = after[0 : run.rows, tile, row - first : row - first + rows]
                for at, some in cut_at(self.halo, transposes_of_bank(run.rows, item)):
                    sources = [states[:, :, place] for place in range(at, at + some)]
                    found_psum = transposed_bank(sources, rows, whole_words(run.rows, item))
                    into = found_sbuf[:, group.channels(run, tile), at : at + some]
                    copy_balanced(into, found_psum[:, :, 0 : run.rows].permute((0, 2, 1)), self.out.ledger)
        C, elements = self.geometry.C, group.count * self.halo
        source, pattern = found_sbuf.reshape((rows, elements)), [[C * self.halo, rows], [1, elements]]
        store(source, self.final_hbm, pattern, (row * C + group.c0) * self.halo)
