"""Fuse the sum with a residual and the activation after a convolution into its call, as in ResNet.

As for chains, torch.fx's graphs of all paths through a model prove that nothing else reads the intermediate tensors and
that no operator changes one in place before the call. Batch norms that are folded into filters do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn.modules.conv import _ConvNd

from . import videos
from .chains import activation_at
from .follows import Kinds, Region, module_of
from .fusing import ends_of, mark
from .producers import are_hooked, is_through, nothing_changes, only_user, other_term
from .report import Chain, Fold


class Epilogue(NamedTuple):
    """The sum and the activation that follow a convolution in every graph."""

    adds: bool
    activation: str | None  # nkiconv's name

    def __str__(self) -> str:
        """In the order of calls."""
        return ", ".join([*["sum"] * self.adds, *filter(None, [self.activation])])


_NOTHING = Epilogue(False, None)
Passes = Callable[[fx.Node], bool]


def find(
    model: torch.nn.Module,
    swapped: Sequence[str],
    folds: Sequence[Fold],
    chains: Sequence[Chain],
    regions: Sequence[Region],
) -> dict[str, Epilogue]:
    """The epilogue of each convolution; chains: the model's, which keep their sums; regions: with convolutions."""
    activated = {fold.convolution for fold in folds if fold.folded and not _is_affine(model, fold)}
    folded = {fold.batchnorm for fold in folds if fold.folded}
    divided = {chain.convolution for chain in chains if chain.fused and chain.over_one}
    adding = {chain.convolution for chain in chains if chain.fused and chain.adds}
    wanted = {name for name in swapped if _can_take(model.get_submodule(name))} - activated - divided
    ways: dict[str, set[Epilogue]] = {}
    for region in regions:
        for node in region.nodes:
            name = f"{region.prefix}{node.target}"
            if node.op == "call_module" and name in wanted:
                ways.setdefault(name, set()).add(_after(node, region, folded, adding))
    return {name: one for name, (one, *others) in ways.items() if not others and one != _NOTHING}


def _is_affine(model: torch.nn.Module, fold: Fold) -> bool:
    """Whether a norm that goes into filters leaves nothing in its place: torch's have no activation."""
    return type(model.get_submodule(fold.batchnorm)).__module__.startswith("torch.nn.modules.")


def _can_take(convolution: Any) -> bool:
    return not (convolution.transposed or videos.forward_of(type(convolution)) is not None)


def _after(node: fx.Node, region: Region, folded: Container[str], adding: Container[str | None]) -> Epilogue:
    """The epilogue of one call of a convolution; adding: convolutions whose chain takes their sum."""
    kinds, after = region.kinds, node
    total: fx.Node | None = None

    def passes(one: fx.Node) -> bool:
        return one is total or f"{region.prefix}{one.target}" in folded or is_through(one, kinds)

    def term_of(one: Any) -> str | None:
        found = _convolution_of(one, kinds, passes)
        return None if found is None else region.prefix + found

    while (user := only_user(after)) is not None and nothing_changes(node, user, kinds, passes):
        if are_hooked(node, user, kinds):
            break
        if not passes(user):
            if total is not None or not _takes_sum(user, after, term_of, adding):
                return Epilogue(total is not None, activation_at(user, after, kinds))
            total = user
        after = user
    return Epilogue(total is not None, None)


def _takes_sum(
    total: fx.Node, term: fx.Node, term_of: Callable[[Any], str | None], adding: Container[str | None]
) -> bool:
    """Whether a node is the sum of a term and something else, which the term's convolution takes: one of a chain before
    others, then the first's."""
    other = other_term(total, term)
    if other is None:
        return False
    own, others = term_of(term), term_of(other)
    if own in adding or others in adding:
        return own in adding
    return total.args[0] is term or others is None


def _convolution_of(node: Any, kinds: Kinds, passes: Passes) -> str | None:
    """The convolution whose result, which nothing else sees, a node is."""
    while isinstance(node, fx.Node) and only_user(node) is not None:
        if isinstance(module_of(node, kinds), _ConvNd):
            return str(node.target)
        if not passes(node):
            return None
        node = node.args[0]
    return None


def take(model: torch.nn.Module, epilogues: Mapping[str, Epilogue]) -> None:
    """Let convolutions take them in."""
    for name, one in epilogues.items():
        convolution = model.get_submodule(name)
        own = ends_of(convolution)
        mark(convolution, own._replace(adds=own.adds or one.adds, activates=one.activation is not None))
