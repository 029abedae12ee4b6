"""What a model of the zoo is: built from its config alone, with random weights or none, and run once."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

#: Where a model is built: without numbers, or with them where its ways depend on them.
META, CPU = "meta", "cpu"


class Ids(tuple[int, ...]):
    """The shape of a tensor of integers."""


@dataclass(frozen=True)
class Model:
    """One model.

    package: that has it. build: makes it, under the device's own context. inputs: of forward, by name; a shape stands
    for a float32 tensor of it, `Ids` for integers, and what is neither for itself. reduced: what is smaller than in its
    default config.
    """

    name: str
    package: str
    build: Callable[[], torch.nn.Module]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    device: str = META
    reduced: str = ""

    def made(self) -> torch.nn.Module:
        """The model in eval mode, the same each time."""
        torch.manual_seed(0)
        with torch.device(self.device):
            return self.build().to(self.device).eval()

    def given(self) -> dict[str, Any]:
        """The inputs, the same each time."""
        generator = torch.Generator().manual_seed(0)
        return {name: self._value(one, generator) for name, one in self.inputs.items()}

    def _value(self, one: Any, generator: torch.Generator) -> Any:
        if isinstance(one, Mapping):
            return {name: self._value(inner, generator) for name, inner in one.items()}
        if isinstance(one, Ids):
            return torch.ones(one, dtype=torch.long, device=self.device)
        if not isinstance(one, tuple):
            return one
        return torch.empty(one, device=META) if self.device == META else torch.rand(one, generator=generator)


def made_by(path: str, *args: Any, **settings: Any) -> Callable[[], torch.nn.Module]:
    """What calls the class or function that a path names."""
    return lambda: attribute(path)(*args, **settings)


def attribute(path: str) -> Any:
    """What "package.module:name" names."""
    module, _colon, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
