"""Settings of algorithms: what follows from a declaration, and that every declaration is whole."""

import importlib
import pkgutil
from dataclasses import dataclass

import pytest

import nkiconv.schedules
from nkiconv.schedules.settings import (
    ALL,
    BY_SHAPE,
    Settings,
    choice,
    count,
    declarations,
    double,
    double_up_to,
    flag,
    half,
    less,
    more,
    unchecked,
)

for module in pkgutil.iter_modules(nkiconv.schedules.__path__):
    importlib.import_module(f"nkiconv.schedules.{module.name}")


@dataclass(frozen=True)
class Example(Settings):
    """One setting of each kind."""

    algorithm = "example"
    tried = ("buffers", "shard", "late", "rows")
    shard: str = choice("axis that the two cores share", ("channels", "images"), default="images", near=ALL)
    rows: int = count(
        "rows of an output tile", 1, 128, default=lambda geometry: geometry + 1, near=(half, double_up_to(128))
    )
    buffers: int = count("tiles of x", 2, 8, default=4, near=(less, more, double), unit="tiles")
    late: bool = flag("whether y is stored late", near=ALL)
    first: tuple = unchecked("columns of the first pieces")


OF_ALL = [one for one in Settings.__subclasses__() if one is not Example]
FORM = "must be None or a tuple of (name, value) pairs, as Plan.config is"
# config, what is wrong with it
WRONG = [
    ([("rows", 1)], f"config=[('rows', 1)]: {FORM}; write tuples in place of lists"),
    (((1,),), f"config=((1,),): {FORM}; entry 0 is (1,), pass a pair (name, value)"),
    ((("depth", 1),),
     "config=(('depth', 1),): example has no setting depth; it has ('shard', 'rows', 'buffers', 'late', 'first')"),
    ((("rows", 1), ("rows", 2)), "config=(('rows', 1), ('rows', 2)): rows stands there twice; give one value"),
    ((("rows", 129),), "config rows=129: must be an int from 1 to 128"),
    ((("late", 1),), "config late=1: must be True or False"),
    ((("shard", "rows"),), "config shard=rows: must be one of ('channels', 'images')"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "reason"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_wrong_configs_are_refused_by_name(config, reason):
    assert Example.unsupported_reason(config) == reason


def test_what_a_config_leaves_open_is_filled_in():
    read = Example.read((("late", True), ("buffers", 3)), 6, first=(1,), buffers=5)
    assert read == Example(shard="images", rows=7, buffers=3, late=True, first=(1,))
    assert read.pairs == (("shard", "images"), ("rows", 7), ("buffers", 3), ("late", True), ("first", (1,)))
    assert Example.read(read.pairs) == read


@pytest.mark.parametrize("settings", OF_ALL, ids=[one.__name__ for one in OF_ALL])
def test_every_declaration_is_whole(settings):
    declared = declarations(settings)
    assert settings.algorithm
    assert {name for name, one in declared.items() if one.near} == set(settings.tried)
    for name, one in declared.items():
        assert one.meaning, name
        assert one.meaning[-1] not in ".;", name
        if not callable(one.default) and one.default != BY_SHAPE:
            assert one.unsupported_reason(name, one.default) == "", name
        for value in () if one.near == BY_SHAPE else one.near:
            assert callable(value) or one.unsupported_reason(name, value) == "", name
