"""The conv2d algorithms as the planner sees them, a class each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...kernels.conv2d.dispatch import plan_of
from ...kernels.conv2d.taps.plan import FILTER_BYTES, X_BYTES, taps_ns
from ...simulator.hardware import PARTITIONS
from ..family import Family, Shape, changed, config_of, ints
from ..request import Config

#: What the kernel's price of an array at its full rate is multiplied by to be a bound for any settings.
SURE = 0.95
#: Output channels of a stationary that a wide search tries.
CHANNELS = (128, 96, 64, 32)


class Conv2dFamily(Family):
    """An algorithm whose own plan says what settings come to. Times are of the whole problem."""

    algorithm: str
    #: settings that count something there must be one of
    from_one: tuple[str, ...] = ()

    def unit(self, shape: Shape, config: Config) -> int:
        return 1

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self.plan(shape, config))

    def settled(self, shape: Shape, config: Config) -> Any:
        return self.plan(shape, config)

    def plan(self, shape: Shape, config: Config) -> Any:
        """The kernel's own plan of settings that it does not refuse."""
        return plan_of(self.algorithm, shape.geometry, shape.extras, config, shape.cores)[0]  # type: ignore[no-untyped-call]

    def changed(self, config: Config, **values: Any) -> list[Config]:
        """The config with one setting at a time changed."""
        return changed(config, self.from_one, **values)


class Taps(Conv2dFamily):
    """One matmul a tap."""

    algorithm = "taps"
    from_one = ("x_bytes", "filter_bytes", "channels")

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found: list[Config] = [None]
        if wide:
            found += [config_of(shard="channels"), config_of(shard="images"), config_of(x_bytes=X_BYTES // 2)]
        return found

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(config or ())
        x_bytes, filter_bytes = now.get("x_bytes", X_BYTES), now.get("filter_bytes", FILTER_BYTES)
        warmup = self.plan(shape, config).warmup
        return self.changed(
            config,
            x_bytes=(x_bytes // 2, x_bytes * 2),
            shard=("images", "channels"),
            channels=CHANNELS,
            filter_bytes=(filter_bytes // 2, filter_bytes * 2),
            warmup=[one for one in (0, 12, 20, 28, 40) if one != warmup],
        )

    def least_us(self, shape: Shape, config: Config) -> float:
        if shape.rates.overrides:  # the kernel's prices are trn2.toml's
            return 0.0
        return float(SURE * 2 * taps_ns(shape.geometry) / shape.cores / 1e3)  # type: ignore[no-untyped-call]

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        jobs = [job for batch in plan.batches for job in batch]
        bands = [item.band for item in plan.items]
        return {
            "tiles": len(plan.items),
            "batches": len(plan.batches),
            "jobs": len(jobs),
            "k_tile": max(job.kn for job in jobs),
            "c_tile": max(count for job in jobs for _, count in job.chunks),
            "c_tiles": max(len(job.chunks) for job in jobs),
            "groups_per_job": max(job.pack for job in jobs),
            "n_band": max(band.nn for band in bands),
            "p_band": max(band.pn for band in bands),
            "q_band": max(band.qn for band in bands),
            "warmup": plan.warmup,
        }


class Stacked(Conv2dFamily):
    """Rows, shifts and outputs stacked."""

    algorithm = "stacked"
    from_one = ("rows", "shifts", "outputs", "blocks", "images")

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        found = self.changed(
            config,
            blocks=(plan.blocks // 2, plan.blocks - 1),
            images=(plan.images // 2, plan.images * 2),
            warmup=(0, 12, 24, 48),
        )
        return found + [self._sized(config, *sizes) for sizes in self._sizes(shape, plan)]

    def _sizes(self, shape: Shape, plan: Any) -> list[tuple[int, int, int]]:
        """(rows, shifts, outputs) near those of a plan that fit the array."""
        stride, C, S = shape.geometry.rows.stride, shape.geometry.C, shape.geometry.columns.taps
        found = []
        for rows in {plan.B - 1, plan.B, plan.B + 1, plan.B // 2, 2 * plan.B}:
            for shifts in {plan.D - 1, plan.D, plan.D + 1, S}:
                for outputs in {plan.U - 1, plan.U, plan.U + 1, plan.U // 2, 2 * plan.U}:
                    fits = min(rows, shifts, outputs) >= 1 and rows * shifts * C <= PARTITIONS
                    fits = fits and shifts <= S and outputs <= PARTITIONS and outputs * stride % max(1, rows) == 0
                    if fits and (rows, shifts, outputs) != (plan.B, plan.D, plan.U):
                        found.append((rows, shifts, outputs))
        return sorted(found, key=lambda one: (-one[0] * one[1], -one[2]))

    def _sized(self, config: Config, rows: int, shifts: int, outputs: int) -> Config:
        now = {**dict(config or ()), "rows": rows, "shifts": shifts, "outputs": outputs}
        return tuple(now.items())

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        geometry = shape.geometry
        blocks = -(-geometry.rows.out // plan.U)
        tiles = -(-geometry.N // plan.images) * -(-blocks // plan.blocks)
        return {"tiles": tiles, **ints(plan), "jobs": len(plan.jobs)}


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
        )

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        return {"tiles": plan.groups, **{name: value for name, value in ints(plan).items() if name != "groups"}}


#: What is known of each algorithm, by its name.
FAMILIES: dict[str, Family] = {one.algorithm: one for one in (Taps(), Stacked(), Bands())}
