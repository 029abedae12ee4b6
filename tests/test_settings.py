"""Settings of algorithms: every declaration is whole."""

import importlib
import pkgutil

import pytest

import nkiconv.schedules
from nkiconv.schedules.settings import BY_SHAPE, Settings, declarations

for module in pkgutil.iter_modules(nkiconv.schedules.__path__):
    importlib.import_module(f"nkiconv.schedules.{module.name}")


@pytest.mark.parametrize("settings", Settings.__subclasses__(), ids=lambda one: one.__name__)
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
