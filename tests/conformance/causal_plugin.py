"""A pytest plugin for causal-conv1d's own tests: nkiconv's functions under that package's name, their references.

The package's references come from the checkout, whatever the package that is tested has under their names: a function
is never compared with itself.
"""

import ast
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nkiconv import pytorch

#: The package, and the folder of a checkout that it is in; and what the name of a reference ends with.
PACKAGE, REFERENCE = "causal_conv1d", "_ref"


def references(folder: Path) -> dict[str, Any]:
    """The functions that tests compare with, without the rest of their modules, which needs CUDA."""
    found: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    names = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith(REFERENCE):
                node.decorator_list = []
                module = ast.Module([*ast.parse("from __future__ import annotations").body, node], [])
                exec(compile(module, str(path), "exec"), found)
                names.append(node.name)
    return {name: found[name] for name in names}


def sample(functions: Sequence[str], count: int, seed: int) -> set[int]:
    """Which of the tests of these functions to run: so many, of each function as many as of any other or all of it."""
    order = list(range(len(functions)))
    random.Random(seed).shuffle(order)
    turns: dict[str, int] = {}
    ranked = []
    for index in order:
        turn = turns[functions[index]] = turns.get(functions[index], 0) + 1
        ranked.append((turn, len(ranked), index))
    return {index for _turn, _place, index in sorted(ranked)[:count]}


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the command passes on."""
    parser.addoption("--checkout", type=Path, help="of causal-conv1d")
    parser.addoption("--sample", type=int, default=0, help="how many of the tests; 0: all")
    parser.addoption("--seed", type=int, default=0, help="of the sample")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported."""
    pytorch.install_causal_conv1d()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Their references, and the sample."""
    theirs = references(config.getoption("checkout") / PACKAGE)
    modules: Iterable[Any] = {item.module for item in items}
    for module in modules:
        wanted = {name for name in vars(module) if name.endswith(REFERENCE)}
        if not wanted <= theirs.keys():
            raise pytest.UsageError(
                f"{sorted(wanted - theirs.keys())}: not in {config.getoption('checkout') / PACKAGE}"
            )
        vars(module).update({name: theirs[name] for name in wanted})
    if config.getoption("sample"):
        chosen = sample([item.originalname for item in items], config.getoption("sample"), config.getoption("seed"))
        items[:] = [item for index, item in enumerate(items) if index in chosen]
