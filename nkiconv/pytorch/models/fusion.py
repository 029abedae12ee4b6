"""All that convert(fuse=True) fuses, kind by kind, in the order in which they take modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.conv import _ConvNd

from . import callers, chains, doublings, epilogues, first_planes, pixel_chains, pixel_layers, row_blocks
from .epilogues import Epilogue
from .follows import regions_of
from .fusing import is_channel_norm, read_pending, waits
from .pixel_layers import is_linear
from .report import Chain, Doubling, Fold, PixelLayer, RowBlock
from .ways import Copy


class Fusion(NamedTuple):
    """The chains, layers and blocks found in a model."""

    chains: tuple[Chain, ...] = ()
    pixel_chains: tuple[Chain, ...] = ()
    layers: tuple[PixelLayer, ...] = ()
    blocks: tuple[RowBlock, ...] = ()
    epilogues: Mapping[str, Epilogue] = {}
    doublings: tuple[Doubling, ...] = ()
    first_planes: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()  # prefixes of names in the modules whose graphs prove them


def find(
    model: torch.nn.Module,
    swapped: Sequence[str],
    plain: Sequence[str],
    folds: Sequence[Fold],
    causal_conv1d: bool,
    strict_nonfinite: bool | None,
    copied: Copy,
    polyphase: bool,
) -> Fusion:
    """Find all chains, layers and blocks of a model, fused or with the reason against it.

    swapped: names of convolutions that become nkiconv's; plain: names of those with torch's forward; folds: norms
    that go into filters; the others as in `convert`.
    """
    blocks = row_blocks.find(model, plain, causal_conv1d, strict_nonfinite, copied)
    within = {block.name for block in blocks if block.fused}
    folded = [fold.batchnorm for fold in folds if fold.folded]
    noted = [*folded, *(norm for block in blocks for norm in block.norms)]
    regions, unproved = regions_of(model, copied, _is_read, every_call=False)
    before = chains.find(model, regions, unproved, plain, noted, copied)
    after = pixel_chains.find(model, swapped)
    chained = {chain.convolution for chain in before + after if chain.fused}
    layers = pixel_layers.find(model, regions, [name for name in plain if name not in chained])
    taken = {layer.name for layer in layers if layer.fused} | {chain.convolution for chain in after if chain.fused}
    others = [name for name in plain if name not in taken and name.rpartition(".")[0] not in within]
    grown = doublings.find(model, regions, unproved, others, copied, polyphase)
    ends = epilogues.find(model, others, folds, before, regions)
    planes, proving = first_planes.find(model, plain), tuple(region.prefix for region in regions)
    return Fusion(before, after, layers, blocks, ends, grown, planes, proving)


def _is_read(module: torch.nn.Module) -> bool:
    """Whether fusing depends on a module's place in the graphs."""
    return isinstance(module, _ConvNd) or is_channel_norm(module) or is_linear(module)


def take(model: torch.nn.Module, found: Fusion, swapped: Sequence[str], strict_nonfinite: bool | None) -> None:
    """Fuse it, in the model in which those convolutions are nkiconv's and the norms folded."""
    before, after, layers, blocks, grown = map(_fused, (*found[:4], found.doublings))
    if before or after or layers or grown or found.epilogues or found.first_planes:
        read_pending(model, swapped)
    chains.take(model, before)
    epilogues.take(model, found.epilogues)
    doublings.take(model, grown)
    first_planes.take(model, found.first_planes)
    pixel_chains.take(model, after)
    pixel_layers.take(model, layers, strict_nonfinite)
    callers.take(model, _handing(model, found), found.regions)
    row_blocks.take(model, blocks, swapped)


def _handing(model: torch.nn.Module, found: Fusion) -> dict[str, str]:
    """The module that holds a chain by the name of each module that hands on a pending result of it."""
    handing = {one.name: one.name for one in found.layers + found.doublings if one.fused}
    handing |= {one.norm: one.norm for one in found.layers if one.fused and one.norm is not None}
    handing |= {one.norm: one.norm for one in found.chains if one.fused}
    handing |= {name: name for name, one in model.named_modules() if isinstance(one, _ConvNd) and waits(one)}
    for one in found.pixel_chains:
        if one.fused and one.convolution is not None:
            block = one.norm.rpartition(".")[0]
            handing |= {one.norm: block, one.convolution: block}
    return handing


def _fused(found: Sequence[Any]) -> list[Any]:
    return [one for one in found if one.fused]
