"""The depthwise conv1d algorithms as the planner sees them, a class each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...kernels.depthwise_conv1d.banded.choose import best_settings as best_blocks
from ...kernels.depthwise_conv1d.banded.choose import choose_blocks
from ...kernels.depthwise_conv1d.banded.choose import settings_of as settings_of_blocks
from ...kernels.depthwise_conv1d.dot.kernel import VECTOR_SHARE, plan_of
from ...kernels.depthwise_conv1d.geometry import Geometry
from ...kernels.depthwise_conv1d.rows import recipes as kernel_rule
from ...kernels.depthwise_conv1d.rows.plan import read_plan
from ...kernels.depthwise_conv1d.rows.search import best_settings
from ...kernels.depthwise_conv1d.taps_on_partition import choose_tiling
from ...kernels.depthwise_conv1d.update.kernel import settings_of
from ...kernels.depthwise_conv1d.update.plan import plan_update
from ...simulator.hardware import PARTITIONS
from ...simulator.timeline import ENGINES
from ..family import Family, Shape, changed, config_of, ints, with_settings
from ..request import Config
from .recipes import PIECE, column_prices, recipe_lists

SHARDS = ("channels", "columns", "batch")
#: Columns of an image below which two cores do not share them.
COLUMNS_TO_SHARE = 64
#: Taps above which recipes are all alike: the engines beside Tensor take a small part of them.
MANY_TAPS = 64


class TapsOnPartition(Family):
    """x is read once for each tap."""

    def unit(self, shape: Shape, config: Config) -> int:
        return self.symbols(shape, config)["c_tile"]

    def least_us(self, shape: Shape, config: Config) -> float:
        return _rows_loaded_us(shape)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        tiling = choose_tiling(shape.geometry, shape.extras.strict_nonfinite)  # type: ignore[no-untyped-call]
        fields = ("s_tile", "num_s_tiles", "channels_per_group", "c_tile", "q_tile", "q_load")
        return {field: getattr(tiling, field) for field in fields}


class Rows(Family):
    """`mixed` and `vector`: channels on partitions, taps shared out by recipes."""

    #: lists of recipes that a search starts from, and that it tries beside others
    START, NEAR = 2, 8
    #: pieces of a core's work up to which each of the first and last ones matters, and widths for those
    SHORT = 12
    FIRST = ((256, 384, 512), (256, 256), (128, 256), (256, 512), (256, 96, 512), (256,))
    LAST = ((192, 192), (192, 192, 192), (256, 128, 128), (256,), (128,))
    #: taps at an end that are not on the array, at most, unless all are
    EDGE_TAPS = 3

    def __init__(self, on_tensor: bool) -> None:
        self.on_tensor = on_tensor

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.S > MANY_TAPS:
            return [config_of(shard=self._plan(shape, config_of(piece=PIECE)).rows.shard)]
        own = self._own(shape)
        more = wide or bool(shape.rates.overrides)  # the kernel's own settings are for trn2.toml's constants
        lists = self._recipes(shape, 3 * self.START if more else self.START, self._plan(shape, own).piece)
        if not lists:  # too few taps for the array to have any
            return []
        shards = _shards(geometry, first=dict(own or ())["shard"])
        found = [own, *[with_settings(own, recipes=one) for one in lists]]
        return list(dict.fromkeys([*found, *[with_settings(own, shard=shard) for shard in shards[1:]]]))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        geometry, plan = shape.geometry, self._plan(shape, config)
        few_taps = geometry.S <= MANY_TAPS
        is_short = _columns(shape) <= self.SHORT * plan.piece
        edges = self._edges(shape) if few_taps else []
        choices: dict[str, Sequence[Any]] = {
            "recipes": self._recipes(shape, self.NEAR, plan.piece) if few_taps else (),
            "piece": (512, 448, 384) if is_short else (2048, 1024, 512),
            "start": _first_changed(plan.start, edges, at_end=True) if is_short else [(), *[(one,) for one in edges]],
            "end": _first_changed(plan.end, edges, at_end=False) if is_short else [(), *[(one,) for one in edges]],
            "last": self.LAST if is_short else ((), (256,), (512, 256)),
            "first": self.FIRST if is_short else ((), (256,), (512,), (256, 512)),
            "warmup": (4, 6, 0) if self.on_tensor else (),
            "join": ("gpsimd", "vector"),
            "shard": _shards(geometry),
            "columns": (plan.rows.columns // 2, 2 * plan.rows.columns),
            "prefetch": (2, 4, 6),
        }
        now = {**{name: getattr(plan, name, None) for name in choices}, "shard": plan.rows.shard}
        others = {name: [one for one in values if one != now[name]] for name, values in choices.items()}
        found = self._ends(config, geometry.S, edges) if is_short and self.on_tensor else []
        return [one for one in found if one != config] + _changed(config, **others)

    def _ends(self, config: Config, S: int, edges: Sequence[Any]) -> list[Config]:
        """Other first pieces with another recipe, and other last ones: what fits one width may not fit another."""
        begins, ends = [one for one in edges if one[0] <= S - 2][:3], [one for one in edges if one[0] >= S - 1][:2]
        return [
            *[with_settings(config, first=widths, start=(one,)) for widths in self.FIRST[:4] for one in begins],
            *[with_settings(config, last=widths, end=(one,)) for widths in self.LAST[:3] for one in ends],
        ]

    def _edges(self, shape: Shape) -> list[Any]:
        """Recipes for pieces at an end of the work, where the engines are not equally late or early."""
        S = shape.geometry.S
        known = kernel_rule.candidates(S, self.on_tensor)  # type: ignore[no-untyped-call]
        near_array = [one for one in known if one[0] >= S - self.EDGE_TAPS and max(one[1:]) <= 1]
        free = [kernel_rule.free_recipe(S)] if S >= 2 else []  # type: ignore[no-untyped-call]
        return list(dict.fromkeys([*free, *near_array])) if self.on_tensor else known

    def unit(self, shape: Shape, config: Config) -> int:
        return int(-(-shape.geometry.C // self._plan(shape, config).rows.T))

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        prices = column_prices(geometry, shape.extras, shape.cores, shape.rates)
        speed = 1 / prices.vector + 1 / prices.scalar + (1 / prices.tensor if self.on_tensor else 0.0)
        columns = _columns(shape)
        rows = self._plan(shape, config).rows
        tiles = geometry.N * rows.T * -(-geometry.Q // rows.columns) / rows.G / shape.cores
        taps_us = columns * geometry.S * _share_met(geometry) / speed / 1e3
        return float(max(taps_us, _issue_us(shape, tiles * geometry.S), _row_elements_us(shape)))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self._plan(shape, config)
        return {**ints(plan.rows), "piece": plan.piece, "prefetch": plan.prefetch, "num_recipes": len(plan.recipes)}

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, config)

    def _plan(self, shape: Shape, config: Config) -> Any:
        return read_plan(shape.geometry, shape.extras, config or self._own(shape), self.on_tensor)  # type: ignore[no-untyped-call]

    def _own(self, shape: Shape) -> Config:
        """The kernel's own settings, all of them."""
        return best_settings(shape.geometry, shape.extras, self.on_tensor, shape.cores)[0]  # type: ignore[no-any-return,no-untyped-call]

    def _recipes(self, shape: Shape, most: int, piece: int) -> Sequence[Any]:
        prices = shape.geometry, shape.extras, shape.cores, shape.rates
        return recipe_lists(*prices, on_tensor=self.on_tensor, most=most, piece=piece)


class Banded(Family):
    """Band matrices over blocks of positions."""

    #: how many times the kernel's own block, up and down, a quick search starts from
    FACTORS = 2

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.stride > PARTITIONS:
            return [None]  # there is no block: the kernel says so
        own = self._own(shape)
        block = dict(own or ())["block"]
        sizes = _block_sizes(geometry.stride, block)
        more = wide or bool(shape.rates.overrides)  # the kernel's own sizes are for trn2.toml's constants
        if not more:
            sizes = [size for size in sizes if block <= size * self.FACTORS and size <= block * self.FACTORS]
        of_sizes = [self._blocks(shape, config_of(block=size)) for size in sizes]
        found = [own, *[settings_of_blocks(one) for one in of_sizes]]  # type: ignore[no-untyped-call]
        if more:  # small tiles at the ends have short runs, which other constants may punish
            found += [with_settings(one, edge=0) for one in found if dict(one or ())["edge"] > 0]
        return list(dict.fromkeys(found))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        blocks = self._blocks(shape, config)
        sizes = _block_sizes(shape.geometry.stride, int(blocks.block))
        place = sizes.index(int(blocks.block))
        return _changed(
            config,
            scratch=(not blocks.scratch,),
            rewarm=(0, 12),
            edge=[one for one in (0, 2, blocks.groups // 4, blocks.groups // 2) if one != blocks.edge],
            buffers=(blocks.buffers + 1, blocks.buffers + 2, blocks.buffers - 1),
            warmup=(0, 12),
            block=[one for one in sizes[max(0, place - 1) : place + 2] if one != blocks.block],
            groups=(blocks.groups // 2, blocks.groups * 2),
            buffer_groups=(blocks.buffer_groups * 2, blocks.buffer_groups // 2),
            shard=[one for one in _shards(shape.geometry) if one != blocks.shard],
            images=(blocks.images // 2, blocks.images * 2) if shape.geometry.N > 1 else (),
            streamed=(blocks.streamed // 2, blocks.streamed * 2),
        )

    def unit(self, shape: Shape, config: Config) -> int:
        blocks = self._blocks(shape, config)
        return int(blocks.per_group * blocks.groups)

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry, blocks = shape.geometry, self._blocks(shape, config)
        prices = column_prices(geometry, shape.extras, shape.cores, shape.rates)
        images, cycle_ns = max(1, min(geometry.N, blocks.images)), shape.rates.cycle_ns("pe")
        least_columns = shape.rates("pe.min_interval_rows") * cycle_ns / prices.tensor
        columns = max(blocks.num_columns, least_columns / images)
        columns *= geometry.N * blocks.num_groups * blocks.num_taps
        turned = 0.95 * geometry.N * geometry.C * (geometry.W + geometry.Q) / PARTITIONS  # columns of transposes
        turn_cycles = shape.rates("pe.cyc_per_row_fp32_pass" if geometry.itemsize == 4 else "pe.cyc_per_row_16bit")
        busy_ns = columns * _share_met(geometry) * prices.tensor + turned * turn_cycles * cycle_ns
        on_array_us = busy_ns / shape.cores / 1e3
        return max(float(on_array_us), _row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._blocks(shape, config))

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._blocks(shape, config)

    def _own(self, shape: Shape) -> Config:
        """The kernel's own settings, all of them."""
        return best_blocks(shape.geometry, shape.extras)[0]  # type: ignore[no-any-return,no-untyped-call]

    def _blocks(self, shape: Shape, config: Config) -> Any:
        return choose_blocks(shape.geometry, shape.extras, config)  # type: ignore[no-untyped-call]


class Dot(Family):
    """Dot products of whole rows."""

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [config_of(block=size) for size in ((8, 16, 4, 2) if wide else (8, 16))]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        slots = int(self._plan(shape, config).slots)
        return _changed(
            config,
            block=(4, 8, 16),
            vector_share=(0, 2, 3, 4, 6),
            batch=(1, 2, 4, 8),
            buffers=(3, 4, 6),
            slots=(slots // 2, slots * 2),
        )

    def unit(self, shape: Shape, config: Config) -> int:
        return PARTITIONS * int(self._plan(shape, config).tiles)

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        moved = 2 * int(self._plan(shape, config).slots)  # transposed, and copied to SBUF: slots of x and of w
        tiles = geometry.N * geometry.C / PARTITIONS / shape.cores
        return max(_issue_us(shape, tiles * moved), _row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, config))

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, config), dict(config or ()).get("vector_share", VECTOR_SHARE)

    def _plan(self, shape: Shape, config: Config) -> Any:
        return plan_of(shape.geometry, config)  # type: ignore[no-untyped-call]


class Update(Family):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [config_of(engine="tensor"), config_of(engine="vector")]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        if dict(config or ()).get("engine") == "vector":
            return []
        return _changed(
            config, leave=(1, 2, 4, 8), ahead=(4, 8, 16), vector_reads=(0, 1, 2, 3), vector_moves=(0, 2, 3, 4)
        )

    def unit(self, shape: Shape, config: Config) -> int:
        if dict(config or ()).get("engine") == "vector":
            return PARTITIONS
        plan = self._plan(shape, config)
        return max(1, int(plan.pieces * plan.channels * plan.groups * plan.leave))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, config))

    def _plan(self, shape: Shape, config: Config) -> Any:
        leave, ahead = settings_of(config)[:2]  # type: ignore[no-untyped-call]
        return plan_update(shape.geometry, shape.extras.state, leave, ahead)  # type: ignore[no-untyped-call]


#: What is known of each algorithm, by its name.
FAMILIES: dict[str, Family] = {
    "taps_on_partition": TapsOnPartition(),
    "banded": Banded(),
    "mixed": Rows(on_tensor=True),
    "vector": Rows(on_tensor=False),
    "dot": Dot(),
    "update": Update(),
}


def _changed(config: Config, **values: Sequence[Any]) -> list[Config]:
    """The config with one setting at a time changed."""
    return changed(config, _FROM_ONE, **values)


def _first_changed(recipes: tuple[Any, ...], known: Sequence[Any], *, at_end: bool) -> list[tuple[Any, ...]]:
    """Recipes with one of `known` more, with one fewer, and with another; at their end, or at their begin."""
    rest = recipes[:-1] if at_end else recipes[1:]
    found = [((*recipes, one) if at_end else (one, *recipes)) for one in known] + [rest]
    found += [((*rest, one) if at_end else (one, *rest)) for one in known] if recipes else []
    return list(dict.fromkeys(found))


def _columns(shape: Shape) -> float:
    """Columns of 128 channels that a core works on."""
    geometry = shape.geometry
    return float(geometry.N * geometry.Q * geometry.C / PARTITIONS / shape.cores)


#: Settings that count something there must be one of.
_FROM_ONE = (
    "block",
    "groups",
    "images",
    "columns",
    "piece",
    "slots",
    "batch",
    "buffers",
    "buffer_groups",
    "streamed",
    "leave",
    "ahead",
)


def _shards(geometry: Geometry, first: str | None = None) -> list[str]:
    """Ways to share the work that leave neither core idle, `first` before the others."""
    works = {
        "channels": geometry.C >= 2,
        "columns": geometry.Q >= COLUMNS_TO_SHARE,
        "batch": geometry.N >= 2,
    }
    return sorted((name for name in SHARDS if works[name] or name == first), key=lambda name: name != first)


def _block_sizes(stride: int, own: int) -> list[int]:
    """Blocks that are multiples of the stride, in powers of 2, and the kernel's own."""
    sizes = {own}
    size = stride
    while size <= PARTITIONS:
        sizes.add(size)
        size *= 2
    return sorted(size for size in sizes if 1 <= size <= PARTITIONS)


def _share_met(geometry: Geometry) -> float:
    """Share of all pairs of a tap and a column that meet an element of x rather than padding; at least."""
    span = (geometry.W - 1) * geometry.lhs_dilation + 1
    met = 0
    step = max(1, geometry.S // 256)
    taps = range(0, geometry.S, step)
    for s in taps:
        first = s * geometry.dilation - geometry.pad_left
        begin = max(0, -(first // geometry.stride))
        end = min(geometry.Q, -(-(span - first) // geometry.stride))
        met += max(0, end - begin)
    return 0.95 * met / (len(taps) * geometry.Q) / geometry.lhs_dilation


def _issue_us(shape: Shape, count: float) -> float:
    """Issuing so many instructions of one core, were all engines equally busy with them."""
    rates = shape.rates
    on_array = rates("pe.min_interval_rows") * rates.cycle_ns("pe")
    fixed = rates("vector.issue_fixed_sbuf_ns"), rates("scalar.copy_issue_ns"), rates("dma.static_issue_ns")
    return count * min(on_array, *fixed) / len(ENGINES) / 1e3


def _row_elements_us(shape: Shape) -> float:
    """The descriptor elements of one load of every row, where each lies on a partition of its own."""
    geometry, rates = shape.geometry, shape.rates
    elements = geometry.N * geometry.C / rates("dma.engines") / shape.cores
    return float(elements * rates("dma.element_overhead_ns") / 1e3)


def _rows_loaded_us(shape: Shape) -> float:
    """Moving a row of x for each tap, by all DMA engines."""
    geometry, rates = shape.geometry, shape.rates
    num_bytes = geometry.N * geometry.C * geometry.Q * geometry.S * geometry.itemsize * _share_met(geometry)
    return float(num_bytes / (rates("dma.engines") * rates("dma.engine_bytes_per_ns") * shape.cores) / 1e3)
