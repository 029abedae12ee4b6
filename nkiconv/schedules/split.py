"""Causal depthwise conv1d whose channels are split into parts of heads: the steps of each core, in order.

    part i of `splits`: (heads, dim, normalised); its channels follow those of the parts before it

The sums of 128 tokens and up to 512 channels, a `HeadGroup`, fill a bank of PSUM: one step. Images, or sequences, of
the same number of up to 64 tokens share steps; of others see `packed_rows`. A normalised head is whole in a group.
Steps of normalised parts, which keep Vector busy, alternate with steps of the others. The cores share each kind of
steps, in order: by groups, and by tokens if groups do not divide evenly.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import shown
from .depthwise import TINY_BYTES
from .long_kernels import too_many
from .tiles import BANK_COLUMNS, P_MAX, PARTS, Thing, cut, cut_at, div_ceil, share, some_of

#: (heads, dim, whether heads are normalised)
Split = tuple[int, int, bool]
#: Orders of x in memory.
LAYOUTS = ("NCW", "NWC")
#: Taps of a filter, at most: each is a matmul, and its stationary diagonals take SBUF.
TAPS_MAX = 16
#: Taps of a decode step, and positions of state and tokens, at most: SBUF holds filters and windows of two groups.
STEP_TAPS_MAX, STEP_POSITIONS_MAX = 8, 16
#: The fewest channels of a partition, runs of 64 bytes.
ROW_LEAST = 32
#: The most sequences of a decode step that Vector computes; tokens; bytes a partition of rows and filters. Of 8,192
#: channels in bf16 1 to 64 sequences take 7 to 22 us so, with states by index 13 to 31; 96 would take 30 and 53, in
#: place of 25 and 31 on the Tensor Engine (modelled; `make chains` times steps of 1 and 32).
VECTOR_SEQUENCES, VECTOR_TOKENS, VECTOR_BYTES = 64, 128, 131_072
#: Integers up to this are exact in fp32, in which Vector computes.
EXACT_INTS = 2**24
#: Bytes a partition of one load of a group's x, about: larger loads keep stores waiting.
SPAN_BYTES = 4096
#: How many times as long as a larger element a tiny one takes a DMA engine (trn2.toml, dma.tiny_element_ns).
TINY_TIMES = 5
#: The fewest images whose tokens arrive in runs of all channels: 16 of one token of 8,192 channels take 18 us in place
#: of 20, 64 25 in place of 31 (modelled).
TRANSPOSED_IMAGES = 16
#: Tokens of the first loads of a core, in tiles of 128: work begins when the first load ends.
FIRST_TILES = (1, 3)


def splits_unsupported(splits: object, C: int | None = None) -> str:
    """Why `splits` does not split C channels, or any number if None; "" if it does."""
    if not isinstance(splits, tuple) or not splits or not all(map(_is_split, splits)):
        return (
            f"splits={shown(splits)}: must be a tuple of (heads, dim, normalised), ints of at least 1 and a flag; "
            f"write ((16, 128, True), (16, 128, True), (32, 128, False))"
        )
    total = sum(heads * dim for heads, dim, _ in splits)
    if C is not None and total != C:
        return f"splits={splits}: has {total} channels, x has C={C}; name all of them, in order"
    long = [dim for _, dim, normalised in splits if normalised and not 2 <= dim <= BANK_COLUMNS]
    if long:
        return (
            f"splits={splits}: normalised heads have 2 to {BANK_COLUMNS} channels (one bank of PSUM), not {long[0]}; "
            f"normalise longer ones after the call"
        )
    return ""


def _is_split(one: object) -> bool:
    if not isinstance(one, tuple) or len(one) != 3:
        return False
    return all(type(size) is int and size >= 1 for size in one[:2]) and isinstance(one[2], bool)


def taps_unsupported(S: int) -> str:
    """Why filters of S taps are unsupported; "" if they are supported."""
    return "" if S <= TAPS_MAX else f"S={S}: must be at most {TAPS_MAX} taps; use depthwise_conv1d, which takes more"


def chunks_unsupported(chunks: str | None, layout: str) -> str:
    """Why chunks of x's channels do not go with a layout; "" if they do."""
    if chunks is None or layout == "NWC":
        return ""
    return f"chunks={chunks!r}, layout={layout!r}: must be token-major, 'NWC'; use depthwise_conv1d for 'NCW'"


def channels_unsupported(first_channel: object, C: int, channels: int) -> str:
    """Why x, which has `channels`, has not C of them from `first_channel` on; "" if it has, or if that is None."""
    if first_channel is None:
        return ""
    if not (type(first_channel) is int and 0 <= first_channel <= channels - C):
        return (
            f"first_channel={shown(first_channel)}: must be an int of at least 0 so that {C} of x's {channels} "
            f"channels follow; pass the place of the first that is convolved, or None for all"
        )
    return ""


def step_unsupported(T: int, S: int) -> str:
    """Why a decode step does not support T tokens of each sequence and S taps; "" if it does."""
    if S == 1:
        return "S=1: one tap needs no state; use causal_conv1d_split"
    if S > STEP_TAPS_MAX:
        return f"S={S}: must be at most {STEP_TAPS_MAX} taps of a step; use depthwise_conv1d, which takes more"
    if T + S - 1 <= STEP_POSITIONS_MAX:
        return ""
    most = STEP_POSITIONS_MAX - S + 1
    return f"W={T}: with S={S} a step takes at most {most} tokens; use causal_conv1d_split with initial_state"


def is_step(T: int, S: int, state: bool, final: bool, packed: bool) -> bool:
    """Whether a call is a decode step: a few tokens after states, which the caller updates."""
    return state and not final and not packed and step_unsupported(T, S) == ""


def sequences_unsupported(cu_seqlens: object, N: int, T: int) -> str:
    """Why `cu_seqlens` are not the offsets of sequences in one row of T tokens; "" if they are, or None."""
    if cu_seqlens is None:
        return ""
    text = f"cu_seqlens={shown(cu_seqlens)}: must"
    if not isinstance(cu_seqlens, tuple) or len(cu_seqlens) < 2 or not all(type(one) is int for one in cu_seqlens):
        return f"{text} be a tuple of ints, (0, ..., {T}); pass the cumulated lengths of the sequences"
    rises = all(one <= other for one, other in itertools.pairwise(cu_seqlens))
    if (cu_seqlens[0], cu_seqlens[-1]) != (0, T) or not rises:
        return (
            f"{text} begin with 0, never fall, and end with x's {T} tokens; pass the cumulated lengths of the sequences"
        )
    return "" if N == 1 else f"{text} be of one row, x has N={N}; put the sequences one after the other"


def positions_unsupported(state_positions: object, T: int) -> str:
    """Why states are not returned after these tokens; "" if they are, or if None."""
    if state_positions is None:
        return ""
    given = state_positions if isinstance(state_positions, tuple) else ()
    if given and all(type(one) is int and 1 <= one <= T for one in given):
        return ""
    return f"state_positions={shown(state_positions)}: must be a tuple of ints from 1 to x's {T} tokens; pass such"


@dataclass(frozen=True)
class TokenRow:
    """Tokens of an image that are convolved alone: zeros, or state `number`, precede the first."""

    number: int
    image: int
    first: int
    count: int


@dataclass(frozen=True)
class SplitGeometry:
    """One call. x_n, x_c and x_t: strides of x in HBM, in elements. C: channels of each chunk. first: channels of x
    before the first chunk."""

    N: int
    C: int
    T: int
    S: int
    splits: tuple[Split, ...]
    x_n: int
    x_c: int
    x_t: int
    itemsize: int
    rows: tuple[TokenRow, ...]
    chunks: str = "x"
    first: int = 0


def rows_of(N: int, T: int, cu_seqlens: tuple[int, ...] | None = None) -> tuple[TokenRow, ...]:
    """One row for each image, or for each sequence of one image: the k-th is tokens cu_seqlens[k] up to
    cu_seqlens[k + 1]."""
    if cu_seqlens is None:
        return tuple(TokenRow(number=n, image=n, first=0, count=T) for n in range(N))
    pairs = enumerate(itertools.pairwise(cu_seqlens))
    return tuple(TokenRow(number=k, image=0, first=first, count=end - first) for k, (first, end) in pairs)


def states_after(rows: tuple[TokenRow, ...], positions: tuple[int, ...]) -> Iterator[tuple[int, int, TokenRow]]:
    """(image, number of the position, its row up to there) for each image and position."""
    for row in rows:
        for number, position in enumerate(positions):
            if row.first < position <= row.first + row.count:
                yield row.image, number, dataclasses.replace(row, count=position - row.first)


@dataclass(frozen=True)
class TileRun:
    """Channel tiles of a group with equally many partitions: tile t, partition p has channel
    c0 + p * row_step + (t - tile0) * tile_step."""

    tile0: int
    tiles: int
    rows: int
    c0: int
    row_step: int
    tile_step: int


@dataclass(frozen=True)
class HeadGroup:
    """Up to 512 neighbouring channels of a part: `count` from channel `first` of the part on, which is channel c0 of x.

    heads: normalised heads, 0 if none. Partition p has the neighbours c0 + p * tiles .. of all tiles, one run in HBM,
    or tile t has channels c0 + 128 t .. c0 + 128 t + 127.
    """

    part: int
    first: int
    c0: int
    count: int
    heads: int
    tiles: int
    runs: tuple[TileRun, ...]

    def channels(self, run: TileRun, tile: int) -> slice:
        """Channels of a tile of a run among the group's."""
        first = run.c0 - self.c0 + (tile - run.tile0) * run.tile_step
        return slice(first, first + (run.rows - 1) * run.row_step + 1, run.row_step)


@dataclass(frozen=True)
class Span:
    """One load of a group's x: tokens first .. first+count-1 of a row, and the taps' tokens before them; or all tokens
    of so many rows, of which `row` is the first."""

    group: HeadGroup
    row: TokenRow
    first: int
    count: int
    images: int = 1


@dataclass(frozen=True)
class Step:
    """Sums of one bank: up to 128 tokens from `first` of a span on."""

    span: Span
    first: int
    count: int


def head_groups(geometry: SplitGeometry) -> Iterator[HeadGroup]:
    """The groups of all parts, in order of their channels."""
    c0 = 0
    for part, (heads, dim, normalised) in enumerate(geometry.splits):
        if normalised:
            cuts = [(head * dim, some * dim, some) for head, some in cut(heads, BANK_COLUMNS // dim)]
        else:
            cuts = [(first, count, 0) for first, count in cut_at(heads * dim, BANK_COLUMNS)]
        for first, count, some in cuts:
            yield _head_group(part, first, c0 + first, count, some, geometry.x_t == 1)
        c0 += heads * dim


def _head_group(part: int, first: int, c0: int, count: int, heads: int, by_rows: bool) -> HeadGroup:
    """The group of these channels. by_rows: whether tokens, not channels, are neighbours in HBM: then any channels can
    share a tile."""
    tiles = div_ceil(count, P_MAX)
    if by_rows and count % tiles == 0:
        runs = [TileRun(tile0=0, tiles=tiles, rows=count // tiles, c0=c0, row_step=tiles, tile_step=1)]
    else:
        full, rest = divmod(count, P_MAX)
        sizes = [(0, full, P_MAX), (full, 1 if rest else 0, rest)]
        runs = [TileRun(t, some, rows, c0 + t * P_MAX, 1, P_MAX) for t, some, rows in sizes if some]
    return HeadGroup(part, first, c0, count, heads, tiles, tuple(runs))


def shared_rows(geometry: SplitGeometry) -> list[tuple[TokenRow, int]]:
    """(row, rows) of all rows: short neighbours of equal length share steps, as many as a step and a load have."""
    found, columns = list[tuple[TokenRow, int]](), SPAN_BYTES * P_MAX // (BANK_COLUMNS * geometry.itemsize)
    for tokens, alike in itertools.groupby(geometry.rows, key=lambda row: row.count):
        rows = list(alike)
        most = max(1, min(P_MAX // max(1, tokens), columns // (tokens + geometry.S - 1)))
        found += [(rows[first], count) for first, count in cut_at(len(rows), most)]
    return found


def transposes_states(geometry: SplitGeometry, images: int) -> bool:
    """Whether states of images that share a load arrive in runs of all channels, to be transposed position by position.
    Else each channel of an image is an element of HBM, which takes less for few images, unless elements are tiny. Of
    121 calls of 1,024 channels this takes 1.0005 times as long as the faster way, 1.04 at worst, of 128 and 256
    channels up to 1.23 times, 1.2 us (`tests/blocks/test_causal_conv1d_split.py` times some)."""
    size = (geometry.S - 1) * geometry.itemsize
    return images * (TINY_TIMES if size <= TINY_BYTES else 1) >= size


def transposes_tokens(geometry: SplitGeometry, row: TokenRow, images: int) -> bool:
    """Whether x of whole images that share a load arrives so."""
    tiny = geometry.x_t == 1 and geometry.T * geometry.itemsize <= TINY_BYTES
    return images >= (2 if tiny else TRANSPOSED_IMAGES) and row.count == geometry.T and 1 in (geometry.x_t, geometry.T)


def tokens_unsupported(geometry: SplitGeometry) -> str:
    """Why the compiler does not take so many tokens; "" if it does."""
    tiles = sum(div_ceil(row.count, P_MAX) for row, _ in shared_rows(geometry)) * div_ceil(geometry.C, P_MAX)
    return too_many(f"N={geometry.N}, T={geometry.T}: causal_conv1d_split", tiles * geometry.S / PARTS)


@dataclass(frozen=True)
class RowTile:
    """Rows of a decode step on Vector: `rows` neighbouring ranges of `length` channels from channel `first` of a part
    on, which is channel c0 of x, of `images` sequences from `image` on. Partition (image, row) has one range, of a
    normalised part whole heads, `heads` of them, else 0."""

    part: int
    first: int
    c0: int
    rows: int
    length: int
    heads: int
    image: int
    images: int


@functools.lru_cache(maxsize=64)
def row_tiles(geometry: SplitGeometry, cores: int, core: int, by_index: bool) -> tuple[RowTile, ...]:
    """The tiles of one core, heads first: their norms take longest."""
    found, c0 = list[RowTile](), 0
    for part, (heads, dim, is_head) in enumerate(geometry.splits):
        length = dim if is_head else row_length(geometry.N, heads * dim)
        if by_index:
            length = numbered_length(geometry, heads * dim, c0, length)
        for size, alike in itertools.groupby(cut_at(heads * dim, length), key=lambda one: one[1]):
            some = list(alike)
            begin, own = share(len(some), cores, core)
            for row, rows in cut_at(own, P_MAX):
                at = some[begin + row][0]
                tile = RowTile(part, at, c0 + at, rows, size, size // dim * is_head, 0, 0)
                images = cut_at(geometry.N, P_MAX // rows)
                found += [dataclasses.replace(tile, image=n, images=count) for n, count in images]
        c0 += heads * dim
    return tuple(sorted(found, key=lambda tile: not tile.heads))


def row_length(N: int, channels: int) -> int:
    """Channels of a range of a part without heads: few, so that the ranges of N sequences fill the partitions."""
    return min(P_MAX, max(ROW_LEAST, 1 << max(0, wanted_length(N, channels) - 1).bit_length()))


def wanted_length(N: int, channels: int) -> int:
    """Channels of a range with which the ranges of N sequences of half of a part fill the partitions."""
    return N * div_ceil(channels, PARTS) // P_MAX


def numbered_length(geometry: SplitGeometry, channels: int, c0: int, length: int) -> int:
    """Channels of a range of states by index: several ranges, or heads, of `length` in one tile, up to 512 channels, as
    GpSimd makes the descriptors of a tile's states in 1 us; places of ranges stay multiples of their length."""
    wanted = wanted_length(geometry.N, channels)
    while (
        length < wanted
        and 2 * length <= BANK_COLUMNS
        and not any(place % (2 * length) for place in (c0, geometry.C, channels))
    ):
        length *= 2
    return length


def is_on_vector(geometry: SplitGeometry, T: int, slots: int) -> bool:
    """Whether Vector computes a decode step of so many tokens: the Tensor Engine's diagonals of all filters take longer
    than the sums of few tokens. slots: of states by index, whose ranges then have numbers; else 0."""
    if geometry.N > VECTOR_SEQUENCES or geometry.N * T > VECTOR_TOKENS:
        return False
    tiles = row_tiles(geometry, 1, 0, slots > 0)
    held = sum(tile.length for tile in tiles) * (T + 2 * geometry.S - 1) * geometry.itemsize
    numbered = all(geometry.C % one.length == one.c0 % one.length == 0 for one in tiles)
    least = min(tile.length for tile in tiles)
    return held <= VECTOR_BYTES and (slots == 0 or (numbered and slots * geometry.C // least <= EXACT_INTS))


@functools.lru_cache(maxsize=64)
def build(geometry: SplitGeometry, cores: int, core: int) -> tuple[Step, ...]:
    """The work of one core, in order. Steps, and so the bits of y, are the same on any number of cores."""
    groups, kinds = list(head_groups(geometry)), []
    for normalised in (True, False):
        every = [
            Span(group, row, first, count, images)
            for group in groups
            for row, images in shared_rows(geometry)
            for first, count in cut_at(row.count, P_MAX)
            if (group.heads > 0) == normalised
        ]
        kinds.append(_steps_of(geometry, some_of(every, share(len(every), cores, core))))
    return tuple(alternated(kinds))


def alternated(kinds: Sequence[Sequence[Thing]]) -> list[Thing]:
    """All elements of lists, those of each list in order and evenly spread."""
    places = ((place, kind) for kind, things in enumerate(kinds) for place in range(len(things)))
    order = sorted(((place + 1) / len(kinds[kind]), kind, place) for place, kind in places)
    return [kinds[kind][place] for _, kind, place in order]


def _steps_of(geometry: SplitGeometry, tiles: Sequence[Span]) -> list[Step]:
    """The steps of these tiles of 128 tokens: spans load neighbouring tiles together."""
    found: list[Step] = []
    firsts = list(FIRST_TILES)
    for _, alike in itertools.groupby(tiles, key=lambda tile: (tile.group, tile.row)):
        left = list(alike)
        most = max(1, SPAN_BYTES // (left[0].group.tiles * geometry.itemsize * P_MAX))
        while left:
            some = left[: min(most, firsts.pop(0) if firsts else most)]
            left = left[len(some) :]
            span = dataclasses.replace(some[0], count=sum(tile.count for tile in some))
            found += [Step(span, tile.first - span.first, tile.count) for tile in some]
    return found
