"""The conv2d algorithms as the planner sees them, a class each. Times are of whole problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...kernels.conv2d.bands.plan import BANDS_FOLDS
from ...kernels.conv2d.deep.plan import DEEP_FILTER_BYTES, DEEP_SHARDS, pieces_of
from ...kernels.conv2d.dispatch import plan_of
from ...kernels.conv2d.grouped.plan import BLOCKS, GROUPED_X_BYTES, TILE_ROWS
from ...kernels.conv2d.narrow.plan import NARROW_X_BYTES
from ...kernels.conv2d.pairs.plan import PAIRS_FILTER_BYTES, PAIRS_X_BYTES
from ...kernels.conv2d.split.cuts import SPLIT_FILTER_BYTES, SPLIT_X_BYTES
from ...kernels.conv2d.split.plan import split_ns
from ...kernels.conv2d.stacked.plan import BESIDE
from ...kernels.conv2d.swapped.plan import SWAPPED_FILTER_BYTES, SWAPPED_X_BYTES, sides_of
from ...kernels.conv2d.swapped.price import tiles_of
from ...kernels.conv2d.taps.fold import TAPS_FOLDS
from ...kernels.conv2d.taps.plan import ORDERS, TAPS_FILTER_BYTES, TAPS_X_BYTES, count_instructions
from ...kernels.conv2d.taps.work import array_ns
from ...simulator.hardware import PARTITIONS
from ..family import Family, Shape, changed, config_of, ints, with_settings
from ..request import Config

#: What the kernel's price of the array at its full rate is multiplied by to be a bound.
SURE = 0.95
#: Output channels of a stationary, and matmuls that warm the array up, that a search tries.
CHANNELS = (128, 96, 64, 32)
WARM_UPS = (0, 12, 20, 28, 40)
#: Instructions of a kernel from which on a quick search starts from one list of settings: each takes seconds.
LONG = 4_000


class Conv2dFamily(Family):
    """An algorithm whose own plan says what settings come to."""

    algorithm: str
    #: settings that count something there must be one of
    from_one: tuple[str, ...] = ()

    def unit(self, shape: Shape, config: Config) -> int:
        return 1

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        return {"tiles": self.tiles(shape, plan), **{name: one for name, one in ints(plan).items() if name != "tiles"}}

    def settled(self, shape: Shape, config: Config) -> Any:
        return self.plan(shape, config)

    def plan(self, shape: Shape, config: Config) -> Any:
        """The kernel's own plan of settings that it does not refuse."""
        key = self.algorithm, config
        if key not in shape.plans:
            shape.plans[key] = plan_of(self.algorithm, shape.geometry, shape.extras, config, shape.cores)[0]  # type: ignore[no-untyped-call]
        return shape.plans[key]

    def tiles(self, shape: Shape, plan: Any) -> int:
        """Pieces of work of all cores."""
        raise NotImplementedError

    def changed(self, config: Config, **values: Iterable[Any]) -> list[Config]:
        """The config with one setting at a time changed."""
        return changed(config, self.from_one, **{name: list(choices) for name, choices in values.items()})


class ByTap(Conv2dFamily):
    """One tap after the other: jobs of output channels, bands of outputs."""

    from_one = ("x_bytes", "filter_bytes", "channels")
    #: what the kernel takes of its own accord
    x_bytes: int
    filter_bytes: int

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(config or ())
        x_bytes, filter_bytes = now.get("x_bytes", self.x_bytes), now.get("filter_bytes", self.filter_bytes)
        warmup = self.plan(shape, config).warmup
        return self.changed(
            config,
            x_bytes=(x_bytes // 2, x_bytes * 2),
            shard=("images", "channels"),
            channels=CHANNELS,
            filter_bytes=(filter_bytes // 2, filter_bytes * 2),
            warmup=(one for one in WARM_UPS if one != warmup),
        )

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        jobs = [job for batch in plan.batches for job in batch]
        bands = [item.band for item in plan.items]
        return {
            "tiles": len(plan.items),
            "batches": len(plan.batches),
            "jobs": len(jobs),
            "k_tile": max(job.kn for job in jobs),
            "c_tile": max(chunk[1] for job in jobs for chunk in job.chunks),
            "c_tiles": max(len(job.chunks) for job in jobs),
            "groups_per_job": max(job.pack for job in jobs),
            "n_band": max(band.nn for band in bands),
            "p_band": max(band.pn for band in bands),
            "q_band": max(band.qn for band in bands),
            "warmup": plan.warmup,
        }


class Taps(ByTap):
    """One matmul a tap."""

    algorithm = "taps"
    x_bytes, filter_bytes = TAPS_X_BYTES, TAPS_FILTER_BYTES

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan = self.plan(shape, None)
        if plan is None or (not wide and self._instructions(shape, plan) > LONG):
            return [None]
        found: list[Config] = [None, config_of(x_bytes=TAPS_X_BYTES // 2), config_of(x_bytes=TAPS_X_BYTES // 4)]
        found += [config_of(shard="channels"), config_of(shard="images")]
        return found + ([config_of(x_bytes=TAPS_X_BYTES // 8), config_of(channels=64)] if wide else [])

    def _instructions(self, shape: Shape, plan: Any) -> int:
        """Of all cores, at most."""
        return shape.cores * int(count_instructions(shape.geometry, plan, shape.cores))  # type: ignore[no-untyped-call]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        own = self.changed(config, fold=TAPS_FOLDS, moved=(0, 1, 2, 4))
        return super().near(shape, config) + own + self.changed(config, order=ORDERS, banks=(1, 2, 8))

    def least_us(self, shape: Shape, config: Config) -> float:
        if shape.rates.overrides:  # the kernel's prices are trn2.toml's
            return 0.0
        jobs = [job for batch in self.plan(shape, config).batches for job in batch]
        return float(SURE * array_ns(shape.geometry, jobs) / shape.cores / 1e3)  # type: ignore[no-untyped-call]

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        loop = {"banks_per_store": plan.banks, "chunks_outside": int(any(plan.together))}
        return {**super().symbols(shape, config), **loop}


class Stacked(Conv2dFamily):
    """Rows, shifts and outputs stacked."""

    algorithm = "stacked"
    from_one = ("rows", "shifts", "outputs", "beside", "apart", "blocks", "images")

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        found = self.changed(
            config,
            blocks=(plan.blocks // 2, plan.blocks - 1),
            images=(plan.images // 2, plan.images * 2),
            warmup=WARM_UPS,
        )
        return found + [with_settings(config, **sizes) for sizes in self._sizes(shape, plan)]

    def _sizes(self, shape: Shape, plan: Any) -> list[dict[str, int]]:
        """Sizes that differ from a plan's in one or two of rows, shifts and outputs, or in how rows lie; which fit."""
        geometry = shape.geometry
        now = {"rows": plan.B, "shifts": plan.D, "outputs": plan.U, "beside": plan.V, "apart": plan.G}
        now["merge"] = int(plan.merged)
        ways = [{"beside": one} for one in BESIDE] + [{"merge": 1 - now["merge"]}, {"apart": plan.B}]
        for rows in {plan.B - 1, plan.B, plan.B + 1, plan.B // 2, 2 * plan.B}:
            for outputs in {plan.U - 1, plan.U, plan.U + 1, plan.U // 2, 2 * plan.U}:
                for shifts in {plan.D, plan.D - 1, plan.D + 1, geometry.columns.taps}:
                    apart = rows if plan.G == plan.B else min(rows, plan.G)
                    ways.append({"rows": rows, "outputs": outputs, "shifts": shifts, "apart": apart})
        found = []
        for way in ways:
            one = {**now, **way}
            fits = min(one[name] for name in self.from_one if name in one) >= 1
            fits = fits and one["rows"] * one["shifts"] * geometry.C <= PARTITIONS and one["outputs"] <= PARTITIONS
            fits = fits and one["outputs"] * one["beside"] * geometry.rows.stride % max(1, one["apart"]) == 0
            if fits and one["shifts"] <= geometry.columns.taps and one != now and one not in found:
                found.append(one)
        return sorted(found, key=lambda one: sum(one[name] != value for name, value in now.items()))

    def tiles(self, shape: Shape, plan: Any) -> int:
        geometry = shape.geometry
        blocks = -(-geometry.rows.out // (plan.U * plan.V))
        return int(-(-geometry.N // plan.images) * -(-blocks // plan.blocks))


class Bands(Conv2dFamily):
    """Band matrices over rows."""

    algorithm = "bands"
    from_one = ("channels", "together", "buffers")

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        return self.changed(
            config,
            together=(plan.together // 2, plan.together - 1, plan.together + 1),
            buffers=(2, 3, 4, 6),
            warmup=(0, 24, 48, 96),
            channels=(plan.A - 1, plan.A // 2),
            fold=(one for one in BANDS_FOLDS if one != plan.fold),
        )

    def tiles(self, shape: Shape, plan: Any) -> int:
        return int(plan.groups)


class Grouped(Conv2dFamily):
    """Small groups on tiles of the array's rows."""

    algorithm = "grouped"

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        x_bytes = dict(config or ()).get("x_bytes", GROUPED_X_BYTES)
        found = self.changed(config, x_bytes=(x_bytes // 2, x_bytes * 2), buffers=(2, 3, 4, 6, 8), warmup=WARM_UPS)
        now = plan.T, plan.Uh, plan.Uw
        sizes = [(rows, *block) for rows in TILE_ROWS for block in BLOCKS if (rows, *block) != now]
        return found + [with_settings(config, rows=T, height=Uh, width=Uw) for T, Uh, Uw in sizes]

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.units)


class Narrow(Conv2dFamily):
    """Rows of y and columns of taps beside each other in the columns of the array."""

    algorithm = "narrow"
    from_one = ("outputs", "taps", "blocks", "images")

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        x_bytes = dict(config or ()).get("x_bytes", NARROW_X_BYTES)
        found = self.changed(
            config,
            x_bytes=(x_bytes // 2, x_bytes * 2),
            buffers=(plan.buffers // 2, plan.buffers * 2),
            blocks=(plan.blocks // 2, plan.blocks - 1),
            images=(plan.images // 2, plan.images * 2),
            shared=(1 - int(plan.shared),),
            warmup=WARM_UPS,
        )
        sizes = [(plan.U + step, plan.T) for step in (-1, 1, 2)] + [(plan.U, plan.T - 1), (plan.U, plan.T + 1)]
        return found + [with_settings(config, outputs=U, taps=T) for U, T in sizes if min(U, T) >= 1]

    def tiles(self, shape: Shape, plan: Any) -> int:
        blocks = -(-shape.geometry.rows.out // plan.U)
        return int(-(-shape.geometry.N // plan.images) * -(-blocks // plan.blocks))


class Deep(Conv2dFamily):
    """Few outputs whose contraction, or whose channels, the cores share."""

    algorithm = "deep"
    from_one = ("taps", "filter_bytes")

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [None, *(config_of(shard=one) for one in DEEP_SHARDS)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        filter_bytes = dict(config or ()).get("filter_bytes", DEEP_FILTER_BYTES)
        return self.changed(
            config,
            shard=(one for one in DEEP_SHARDS if one != plan.shard),
            taps=(plan.T - 1, plan.T + 1),
            filter_bytes=(filter_bytes // 4, filter_bytes // 2, filter_bytes * 2),
            buffers=(2, 4, 6),
            warmup=(one for one in WARM_UPS if one != plan.warmup),
        )

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        job = plan.jobs[-1]
        return {
            "tiles": self.tiles(shape, plan),
            "k_tile": max(block[1] for block in job.blocks),
            "k_tiles": len(job.blocks),
            "c_tile": plan.depth,
            "c_tiles": len(job.chunks),
            "c_tiles_together": plan.together,
            "columns_of_taps": plan.T,
            "banks": len(plan.banks),
            "shares_contraction": int(plan.shard == "contraction"),
            "warmup": plan.warmup,
        }

    def tiles(self, shape: Shape, plan: Any) -> int:
        pieces: Callable[[Any, Any], list[Any]] = pieces_of
        return sum(len(pieces(plan, job)) for job in plan.jobs)


class Pairs(Conv2dFamily):
    """Two steps of fp8 a matmul."""

    algorithm = "pairs"
    from_one = ("x_bytes", "filter_bytes", "channels", "buffers")

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found: list[Config] = [None, config_of(shard="channels"), config_of(shard="images")]
        found += [config_of(x_bytes=PAIRS_X_BYTES // 2), config_of(halves=0), config_of(halves=1)]
        more = [config_of(staged=0), config_of(staged=1), config_of(fold=0), config_of(fold=1)]
        return found + (more if wide else [])

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now, plan = dict(config or ()), self.plan(shape, config)
        x_bytes = now.get("x_bytes", PAIRS_X_BYTES)
        filter_bytes = now.get("filter_bytes", PAIRS_FILTER_BYTES)
        return self.changed(
            config,
            x_bytes=(x_bytes // 2, x_bytes * 2),
            staged=(1 - plan.staged,),
            halves=(1 - plan.halves,),
            fold=(0, 1),
            shard=("images", "channels"),
            channels=CHANNELS,
            filter_bytes=(filter_bytes // 2, filter_bytes * 2),
            buffers=(2, 3, 4),
            warmup=(one for one in (0, 12, 16, 20, 28) if one != plan.warmup),
            banks=(1, 2, 8),
        )

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        jobs = [job for batch in plan.batches for job in batch]
        bands = [item.band for item in plan.items]
        return {
            "tiles": len(plan.items),
            "batches": len(plan.batches),
            "jobs": len(jobs),
            "k_tile": max(job.kn for job in jobs),
            "c_tile": plan.chunks[0].cn,
            "c_tiles": len(plan.chunks),
            "copies": plan.chunks[-1].depth,
            "images_per_bank": plan.together,
            "n_band": max(band.nn for band in bands),
            "p_band": max(band.pn for band in bands),
            "q_band": max(band.qn for band in bands),
            "buffers": plan.buffers,
            "halves": int(plan.halves),
            "staged": int(plan.staged),
            "banks_per_store": plan.banks,
            "warmup": plan.warmup,
        }


class Split(ByTap):
    """Products by fp16 pairs, one tap after the other."""

    algorithm = "split"
    x_bytes, filter_bytes = SPLIT_X_BYTES, SPLIT_FILTER_BYTES

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        more = [config_of(x_bytes=self.x_bytes // 2), config_of(shard="channels"), config_of(shard="images")]
        return [None, *(more if wide else [])]

    def least_us(self, shape: Shape, config: Config) -> float:
        if shape.rates.overrides:  # the kernel's prices are trn2.toml's
            return 0.0
        return float(SURE * 2 * split_ns(shape.geometry, config) / shape.cores / 1e3)  # type: ignore[no-untyped-call]


class Swapped(Conv2dFamily):
    """Pixels as stationaries, filters as moving operands."""

    algorithm = "swapped"
    from_one = ("side", "fold", "x_bytes", "filter_bytes")

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan, geometry = self.plan(shape, None), shape.geometry
        found: list[Config] = [None, config_of(shard="channels"), config_of(shard="images")]
        if plan is not None and (wide or self._matmuls(plan) <= LONG):
            sides = sides_of(geometry.columns.out, geometry.K * geometry.hbm_itemsize)  # type: ignore[no-untyped-call]
            found += [config_of(side=side) for side in sides]
        return found + ([config_of(x_bytes=SWAPPED_X_BYTES // 2)] if wide else [])

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        now = dict(config or ())
        x_bytes = now.get("x_bytes", SWAPPED_X_BYTES)
        filter_bytes = now.get("filter_bytes", SWAPPED_FILTER_BYTES)
        side = plan.sizes.side
        return self.changed(
            config,
            shard=("images", "channels"),
            side=(side // 2, side - 1, side + 1, side * 2),
            fold=(1, 2, 3, 4, 6, 8),
            x_bytes=(x_bytes // 2, x_bytes * 2),
            filter_bytes=(filter_bytes // 2, filter_bytes * 2),
            warmup=(one for one in WARM_UPS if one != plan.warmup),
            banks=(1, 3, 7),
        )

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items)

    def _matmuls(self, plan: Any) -> int:
        """Of all cores, at least."""
        taps = plan.source.rows.taps * plan.source.columns.taps
        tiles: list[int] = [tiles_of(plan, item.band) for item in plan.items]  # type: ignore[no-untyped-call]
        return sum(tiles) * int(taps) * len(plan.chunks)


_EVERY = (Taps(), Stacked(), Bands(), Grouped(), Narrow(), Deep(), Pairs(), Split(), Swapped())
#: What is known of each algorithm, by its name.
FAMILIES: dict[str, Family] = {one.algorithm: one for one in _EVERY}
