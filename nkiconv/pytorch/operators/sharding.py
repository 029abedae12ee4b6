"""DTensor's strategies for the operators: all devices of a mesh compute the same, or each computes its images or rows.

DTensor first redistributes tensors that are sharded along other axes. Importing DTensor takes over a second, so the
operators' fake kernels register the strategies: DTensor runs a fake kernel before it looks for a strategy.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError

#: The placement of a result if inputs are sharded by images: sharded by its first or second axis, a partial sum, or
#: replicated.
SHARDED, SECOND, SUMMAND, SAME = "sharded", "second", "summand", "same"
#: (positions of tensors whose first axis is images, the placement of each result), or None if images cannot be split.
Split = tuple[Sequence[int], Sequence[str]] | None
#: That from an operator's arguments.
ByImages = Callable[..., Split]

_by_images: dict[str, ByImages] = {}
_registered: set[str] = set()


def declare(name: str, by_images: ByImages) -> None:
    """Say how operator `nkiconv::name` may be sharded."""
    _by_images[name] = by_images


def announce() -> None:
    """Tell DTensor, once it is imported, the strategies of all operators."""
    if "torch.distributed.tensor" in sys.modules and len(_registered) < len(_by_images):
        _register()


#: Meshes on whose devices a filter that modules own was found to be the same.
_same_on: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


def replicated(owner: Any, tensors: tuple[Tensor, ...], x: Any) -> tuple[Tensor, ...]:
    """The tensors of a filter that each process made for itself, as DTensors on x's mesh where x is a DTensor.

    The first of them is compared with the first device's, once for each owner and mesh: a DTensor that is replicated
    says that all devices have the same. Raises UnsupportedError where they do not.
    """
    if type(x) in (torch.Tensor, torch.nn.Parameter) or "torch.distributed.tensor" not in sys.modules:
        return tensors
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    if not isinstance(x, DTensor):
        return tensors
    mesh, placements = x.device_mesh, [Replicate()] * x.device_mesh.ndim
    if not torch.compiler.is_compiling() and mesh not in _same_on.setdefault(owner, set()):
        if not torch.equal(distribute_tensor(tensors[0], mesh, placements).to_local(), tensors[0]):
            raise UnsupportedError(
                f"weight={owner!r}: the filter is frozen, and it is not the same as that of the mesh's first device; "
                f"call unpack_filter() of each frozen module and distribute the model again, or load the same weights"
            )
        _same_on[owner].add(mesh)
    return tuple(DTensor.from_local(one, mesh, placements, run_check=False) for one in tensors)


def _register() -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    placements: dict[str, Any] = {SHARDED: Shard(0), SECOND: Shard(1), SUMMAND: Partial(), SAME: Replicate()}

    def acceptable(name: str, *args: Any) -> list[tuple[list[Any], list[Any]]]:
        given = [isinstance(one, DTensorSpec) for one in args]
        split = _by_images[name](*args)
        results = len(getattr(torch.ops.nkiconv, name).default._schema.returns)
        found: list[tuple[list[Any], list[Any]]] = [
            ([Replicate()] * results, [Replicate() if is_tensor else None for is_tensor in given])
        ]
        if split is not None:
            inputs = [(Shard(0) if i in split[0] else Replicate()) if given[i] else None for i in range(len(args))]
            found.append(([placements[kind] for kind in split[1]], inputs))
        return found

    for name in _by_images:
        if name not in _registered:
            operator = getattr(torch.ops.nkiconv, name).default
            register_sharding(operator)(functools.partial(acceptable, name))
            # of a call all numbers are read, not those after the first int alone
            propagator = DTensor._op_dispatcher.sharding_propagator
            propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(1, needs_pytree=True)
            _registered.add(name)
