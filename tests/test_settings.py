"""Settings of algorithms: every declaration is whole. Of warm-ups, a compiler that drops what nobody reads must find a
reader of each, and the sums stay what they are.
"""

import dataclasses
import importlib
import pkgutil

import pytest

import nkiconv
import nkiconv.schedules
from nkiconv import cases
from nkiconv.schedules.settings import BY_SHAPE, Settings, declarations, descended
from nkiconv.simulator.timeline import unread_matmuls
from nkiconv.tools.suites.profiles import profile_case

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
        if one.default != BY_SHAPE:
            assert one.unsupported_reason(name, one.default) == "", name
        for value in () if one.near == BY_SHAPE else one.near:
            assert callable(value) or one.unsupported_reason(name, value) == "", name


@pytest.mark.parametrize("settings", Settings.__subclasses__(), ids=lambda one: one.__name__)
def test_an_open_config_has_neighbours_of_what_it_need_not_say(settings):
    declared = declarations(settings)
    for ((name, value),) in settings.near(None):
        assert declared[name].unsupported_reason(name, value) == ""


def test_a_descent_ends_after_two_rounds_though_each_finds_better():
    start = dataclasses.make_dataclass("Own", ["block"], frozen=True)(0)
    found = descended(start, lambda own: 0.5**own.block, lambda own: [(("block", own.block + 1),)], frozenset())
    assert [own.block for own in found] == [0, 1, 2]


@pytest.mark.parametrize("settings", Settings.__subclasses__(), ids=lambda one: one.__name__)
def test_what_is_not_declared_is_refused_by_name(settings):
    for name, one in declarations(settings).items():
        least, most = (one.accepted or ("", ""))[:: max(1, len(one.accepted) - 1)][:2]
        of_ints = type(least) is int
        for value in (least - 1, most + 1, True, 1.5) if of_ints else ("nothing", 2) if one.accepted else ():
            assert f"config {name}={value}: must be " in settings.unsupported_reason(((name, value),))
    assert "has no setting nonsense; it has" in settings.unsupported_reason((("nonsense", 1),))


#: A case of each algorithm whose time a dropped warm-up would move by more than 2 %.
CASES = {
    "mixed": "kda_bf16", "update": "decode_step", "banded": "nkl_n1_c256_w512_s64", "implicit_gemm": "rn50_c4",
    "stacked": "vit_patch16", "weight_stationary": "mobilenet_dw", "weight_stationary, transposed": "encodec_up8",
}  # fmt: skip


@pytest.mark.cover(1)
@pytest.mark.parametrize(("algorithm", "name"), CASES.items())
@pytest.mark.parametrize("lnc", [1, 2])
def test_every_matmul_of_a_warm_up_has_a_reader(algorithm, name, lnc):
    found, timed = profile_case(cases.get(name), lnc=lnc)
    assert found.algorithm == algorithm.split(",")[0]
    assert dict(found.config)["warmup"] > 0
    for program in timed.execution.programs:
        assert not unread_matmuls(program.instructions)
