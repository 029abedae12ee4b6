"""`narrow` on the host."""

from __future__ import annotations

import dataclasses
from typing import Any

from ....kernels.conv.narrow.cuts import is_legal, lanes_of, loads_of_bank, make_narrow, meets_all, narrow_bytes
from ....kernels.conv.narrow.defaults import sized_narrow
from ....kernels.conv.narrow.plan import narrow_instructions, narrow_refusal
from ....schedules.cuts import num_plane_parts
from ....schedules.narrow import BUFFERS_MAX, X_BYTES, NarrowSettings
from ....schedules.planes import with_windows
from ....schedules.tiles import QUADRANT
from ....simulator.hardware import PARTITIONS, SBUF_USABLE_BYTES_PER_PARTITION
from ...request import Config
from ..algorithm import MOST_INSTRUCTIONS, Shape, config_of, with_settings
from .common import SURE, Settled, planes_seen
from .narrow_price import NarrowPrice

#: Bytes a partition of all buffers: what they may always have, and most for the rows of two banks of sums.
RING_BYTES = 65_536
RING_MOST = 131_072
#: Planes of y beside each other, at most.
DEPTH_MOST = 8
#: Times as many bytes of a load of x that may pay as a kernel without settings has.
LONGER = (4, 8)


class Narrow(Settled):
    """Rows of y and columns of taps beside each other in the columns of the array."""

    algorithm, settings, refusal = "narrow", NarrowSettings, staticmethod(narrow_refusal)
    order = ("outputs", "depth", "taps", "lanes")
    from_one = ("outputs", "depth", "taps", "lanes", "blocks", "images")

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        found = ((sizes, lanes) for sizes in _sizes(geometry, given) for lanes in _lanes(geometry, given, sizes[0]))
        made = [one for sizes, lanes in found if (one := _made(shape, geometry, given, *sizes, lanes))]
        best = self._least(shape, geometry, made)
        if best and "x_bytes" not in given:
            sizes, now = {name: getattr(best[0], name) for name in self.order}, best[0]
            longer = [{**given, **sizes, "x_bytes": times * X_BYTES} for times in LONGER]
            more = [_made(shape, geometry, one, now.depth, now.outputs, now.taps, now.lanes) for one in longer]
            best = self._least(shape, geometry, [best, *(one for one in more if one)])
        return best and best[0]

    def _least(self, shape: Shape, geometry: Any, made: list[tuple[NarrowSettings, NarrowPrice]]) -> Any:
        """The (settings, price) of least time of those that fit, else the first, None of none."""
        room = SBUF_USABLE_BYTES_PER_PARTITION
        fitting = [one for one in made if narrow_bytes(one[1].geometry, one[1].narrow, shape.extras.residual) <= room]
        fitting.sort(key=lambda one: (self._is_long(shape, *one), one[1].total_ns()))
        return next((one for one in fitting if meets_all(geometry, one[1].narrow)), made[0] if made else None)

    @staticmethod
    def _is_long(shape: Shape, settings: NarrowSettings, price: NarrowPrice) -> bool:
        """Whether a core has more than MOST_INSTRUCTIONS, at most."""
        count = narrow_instructions(price.geometry, price.narrow, shape.extras, shape.cores)
        return bool(count * shape.geometry.times > MOST_INSTRUCTIONS)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return NarrowPrice(shape.target, with_windows(geometry, plan.V), plan).total_ns()

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        now = {"buffers": plan.buffers, "blocks": plan.blocks, "images": plan.images, "depth": plan.V, "lanes": plan.L}
        found: list[Config] = [*NarrowSettings.near(config, {**now, "shared": int(plan.shared)})]
        sizes = [(plan.U + step, plan.T) for step in (-1, 1, 2)] + [(plan.U, plan.T - 1), (plan.U, plan.T + 1)]
        return found + [with_settings(config, outputs=U, taps=T) for U, T in sizes if min(U, T) >= 1]

    def least_us(self, shape: Shape, config: Config) -> float:
        plan = self.plan(shape, config)
        price = NarrowPrice(shape.target, with_windows(shape.geometry, plan.V), plan)
        return float(SURE * price.steps * price.work_ns / 1e3)

    def tiles(self, shape: Shape, plan: Any) -> int:
        blocks = -(-shape.geometry.rows.out // plan.U)
        return int(num_plane_parts(plan.lane, plan.images) * -(-blocks // plan.blocks))


def _sizes(geometry: Any, given: dict[str, Any]) -> list[tuple[int, int, int]]:
    """(planes, rows of y, columns of taps) that can share the array, as a config has them or all."""
    planes, most = geometry.planes, 1
    if planes.taps > 1 and planes.lhs_dilation == 1 and geometry.packed == 0:
        most = min(PARTITIONS // geometry.K, planes.out // planes.images, DEPTH_MOST)
    depths = [given["depth"]] if "depth" in given else range(1, most + 1)
    if "taps" in given:
        return [(V, given["outputs"], given["taps"]) for V in depths]
    rows = min(PARTITIONS // geometry.K, geometry.rows.out + geometry.rows.lhs_dilation - 1)
    taps = min(geometry.columns.taps, PARTITIONS // QUADRANT)
    found = [(V, U, T) for V in depths for T in range(1, taps + 1) for U in range(1, rows + 1)]
    return [(V, U, T) for V, U, T in found if is_legal(with_windows(geometry, V), U, T)]


def _lanes(geometry: Any, given: dict[str, Any], V: int) -> list[int]:
    """Images that can be beside each other, as a config has them or all."""
    if "lanes" in given:
        return [given["lanes"]]
    return [L for L in (1, 2, 4) if L == 1 or (V == 1 and lanes_of(geometry, L) is not None)]


def _made(
    shape: Shape, geometry: Any, given: dict[str, Any], V: int, U: int, T: int, L: int
) -> tuple[NarrowSettings, NarrowPrice] | None:
    """(all settings, what they take) with these sizes, or None where there is no such kernel."""
    settings = sized_narrow(geometry, config_of(**given), U, T, 0, V, L)
    narrow = make_narrow(geometry, settings, shape.extras.residual)
    if narrow is None:
        return None
    geometry = with_windows(geometry, V)
    price = NarrowPrice(shape.target, geometry, narrow)
    found = {"blocks": narrow.blocks, "images": narrow.images, "buffers": _buffers(geometry, narrow)}
    found |= {"shared": int(price.reads_bound()), "warmup": price.warm_count()}
    settings = dataclasses.replace(settings, **{**found, **given})
    narrow.buffers, narrow.warmup = max(narrow.buffers, settings.buffers), settings.warmup
    narrow.shared = settings.shared == 1
    return settings, price


def _buffers(geometry: Any, narrow: Any) -> int:
    """Buffers of x: for the loads of a bank and of the next, as far as there is room."""
    row_bytes = planes_seen(geometry, narrow.images) * narrow.wn * geometry.itemsize
    load_bytes = len(narrow.chunks) * narrow.height * row_bytes
    wanted = loads_of_bank(narrow.blocks, narrow.step, narrow.window, narrow.height)
    wanted += -(-narrow.blocks * narrow.step // narrow.height) + 1
    found = max(min(wanted, RING_MOST // load_bytes), RING_BYTES // load_bytes)
    return max(2, min(BUFFERS_MAX, int(found)))


ALGORITHM = Narrow()
