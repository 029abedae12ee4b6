"""The loop of a core: by pixels, by rows of volumes, or by blocks of depthwise problems."""

from ....schedules.depthwise_blocks import BlockSchedule
from ....schedules.pixel_tiles import PixelSchedule
from ....schedules.volume_rows import RowSchedule
from ..call import part_of_core
from .depthwise import run_depthwise
from .pixels import run_pixels
from .rows import run_rows
from .sums import start_work


def run_activation_stationary(operands, geometry, options, plan):
    """This core's part of the items."""
    _, items = part_of_core(plan.items)
    if len(items) > 0:
        run = {PixelSchedule: run_pixels, RowSchedule: run_rows, BlockSchedule: run_depthwise}[type(plan)]
        run(start_work(operands, geometry, options, plan), items)
