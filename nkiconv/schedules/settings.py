"""Settings of algorithms, each declared once: meaning, unit, range, default, and the values that a search tries next.

    @dataclass(frozen=True)
    class ExampleSettings(Settings):
        algorithm, tried = "example", ("buffers", "shard")
        shard: str = choice("axis that the two cores share", ("channels", "images"), default="images", near=ALL)
        buffers: int = count("tiles of x that loads rotate through", 2, 16, default=4, near=(less, more))

The declarations define the valid configs (`unsupported_reason`), the settings of a config (`read`), the configs next to
it (`near`) and the valid values in documents (`Setting.range_text`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

from ..errors import shown
from .tiles import SBUF_BYTES

#: None, or (name, value) pairs, as `Plan.config` is.
Config = tuple[tuple[str, Any], ...] | None
Own = TypeVar("Own", bound="Settings")
Made = TypeVar("Made")
P = ParamSpec("P")

#: A default, or neighbours, that the algorithm derives from the shape and passes to `read` or `near`.
BY_SHAPE = "by shape"
#: As neighbours: every value of a choice or a flag.
ALL = "all"
#: The most warm-up matmuls on zeros in a config.
WARM_UP_MAX = 256
#: Numbers of warm-up matmuls that a search tries.
WARM_UPS = (0, 12, 20, 28, 40)
#: Results that `once_a_config` caches: a search asks for thousands, a call for a few.
KEPT = 1024
#: Ratios of time below which settings are better than the best so far, and a round is worth another; most rounds.
BETTER, WORTHWHILE, ROUNDS = 0.999, 0.99, 2


#: Results of `declarations`.
_KNOWN: dict[type, dict[str, Setting]] = {}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        meaning: one sentence, for documents and help.
        unit: of a count; "" if the meaning names it.
        accepted: (least, most) of an int, the words of a choice, FLAG; () if the algorithm checks the value itself.
        default: a value, or BY_SHAPE.
        near: values that a search tries, and functions of the present value; BY_SHAPE if they depend on the shape.
    """

    meaning: str
    unit: str
    accepted: tuple[Any, ...]
    default: Any
    near: Any

    def unsupported_reason(self, name: str, value: Any) -> str:
        """The error of a value; "" if it is valid."""
        accepted, text = self.accepted, f"config {name}={value}: must be"
        if not accepted:
            return ""
        if isinstance(accepted[0], bool):
            return "" if isinstance(value, bool) else f"{text} True or False"
        if isinstance(accepted[0], str):
            return "" if value in accepted else f"{text} one of {accepted}"
        fits = isinstance(value, int) and not isinstance(value, bool) and accepted[0] <= value <= accepted[1]
        return "" if fits else f"{text} an int from {accepted[0]} to {accepted[1]}"

    @property
    def open_value(self) -> Any:
        """Its value if neither a config nor a candidate gives one: its default; by shape, the least."""
        return self.accepted[0] if self.default == BY_SHAPE and self.accepted else self.default

    def range_text(self) -> str:
        """Its valid values as text: "1 to 128 channels"."""
        if not self.accepted:
            return "tuples"
        if isinstance(self.accepted[0], int) and not isinstance(self.accepted[0], bool):
            return f"{self.accepted[0]} to {self.accepted[1]} {self.unit}".rstrip()
        return ", ".join(map(str, self.accepted))


#: Axes of depthwise rows that the two cores can share: channels, columns of y, images.
SHARDS = ("channels", "columns", "batch")
#: The values of a flag.
FLAG = (False, True)


def count(meaning: str, least: int, most: int, *, default: Any = BY_SHAPE, near: Any = (), unit: str = "") -> Any:
    """Declare an int from `least` to `most`."""
    return _declared(Setting(meaning, unit, (least, most), default, near))


def choice(meaning: str, words: tuple[str, ...], *, default: Any = BY_SHAPE, near: Any = ()) -> Any:
    """Declare one of some words."""
    return _declared(Setting(meaning, "", words, default, words if near == ALL else near))


def flag(meaning: str, *, default: Any = False, near: Any = ()) -> Any:
    """Declare True or False."""
    return _declared(Setting(meaning, "", FLAG, default, FLAG if near == ALL else near))


def unchecked(meaning: str, *, default: Any = BY_SHAPE, near: Any = ()) -> Any:
    """Declare a setting whose values the algorithm checks itself."""
    return _declared(Setting(meaning, "", (), default, near))


def warm_up(default: Any, *, most: int = WARM_UP_MAX, near: tuple[Any, ...] = WARM_UPS, columns: int = 128) -> Any:
    """Declare the setting `warmup`."""
    meaning = f"matmuls of {columns} columns on zeros while the first loads are on their way"
    return count(meaning, 0, most, default=default, near=near)


def less(now: int) -> int:
    """A count less one."""
    return now - 1


def more(now: int) -> int:
    """A count plus one."""
    return now + 1


def half(now: int) -> int:
    """Half of a count."""
    return now // 2


def double(now: int) -> int:
    """Twice a count."""
    return 2 * now


@dataclass(frozen=True)
class Settings:
    """All settings of an algorithm: the base of dataclasses whose fields are declared as above."""

    algorithm: ClassVar[str]
    #: the settings that a search changes, in its order
    tried: ClassVar[tuple[str, ...]] = ()
    #: what SBUF must hold, and the remedy if it does not
    keeps: ClassVar[str] = ""
    instead: ClassVar[str] = "implicit_gemm"

    @classmethod
    def unsupported_reason(cls, config: Config, algorithm: str = "") -> str:
        """The error of a config's form, names or values; "" if it is valid."""
        if reason := form_unsupported(config):
            return reason
        declared, names = declarations(cls), [name for name, _ in _pairs(config)]
        for index, (name, value) in enumerate(_pairs(config)):
            if name not in declared:
                return f"config={config}: {algorithm or cls.algorithm} has no setting {name}; it has {tuple(declared)}"
            if name in names[:index]:
                return f"config={config}: {name} stands there twice; give one value"
            if reason := declared[name].unsupported_reason(name, value):
                return reason
        return ""

    @classmethod
    def memory_unsupported(cls, geometry: Any) -> str:
        """Why a problem with some settings does not fit SBUF."""
        planes, rows, columns = geometry.planes, geometry.rows, geometry.columns
        return (
            f"C={geometry.C}, K={geometry.K}, H={rows.size}, W={columns.size}, R={rows.taps}, S={columns.taps}, "
            f"{planes.out} planes: {cls.algorithm} keeps {cls.keeps} in SBUF, {SBUF_BYTES} bytes per partition; use "
            f"{cls.instead}"
        )

    @classmethod
    def read(cls: type[Own], config: Config, **filled: Any) -> Own:
        """All settings of a valid config; open ones are those of `filled`, else their `open_value`."""
        return cls(**{name: one.open_value for name, one in declarations(cls).items()} | filled | dict(_pairs(config)))

    @classmethod
    def whole(cls: type[Own], config: Config) -> Own | None:
        """The settings of a config that names all of them; None of another."""
        given = dict(_pairs(config))
        return cls(**given) if given.keys() == declarations(cls).keys() else None

    @property
    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """A config with all settings."""
        return tuple((name, getattr(self, name)) for name in declarations(type(self)))

    @classmethod
    def near(
        cls, config: Config, now: Mapping[str, Any] | None = None, **values: Iterable[Any]
    ) -> list[tuple[tuple[str, Any], ...]]:
        """The config with one setting at a time changed.

        now: values in effect of settings that a config leaves open or a kernel lowers; values: candidates of settings
        whose neighbours depend on the shape.
        """
        given, now, found = dict(_pairs(config)), now or {}, []
        for name in cls.tried:
            one = declarations(cls)[name]
            at = now.get(name, given.get(name, one.default))
            for tried in values.get(name, () if one.near == BY_SHAPE else one.near):
                if callable(tried) and at == BY_SHAPE:  # it changes a present value
                    continue
                value = tried(at) if callable(tried) else tried
                if value != given.get(name) and value != now.get(name) and one.unsupported_reason(name, value) == "":
                    found.append(tuple({**given, name: value}.items()))
        return found


def descended(
    start: Own, ns_of: Callable[[Own], float], near_of: Callable[[Own], Iterable[Config]], kept: frozenset[str]
) -> dict[Own, float]:
    """ns of tried settings: coordinate descent that changes one setting at a time, except those in `kept`."""
    found, best = {start: ns_of(start)}, start
    for _ in range(ROUNDS):
        before = best
        for config in near_of(before):
            changed = {name: value for name, value in _pairs(config) if value != getattr(before, name)}
            if not kept.isdisjoint(changed):
                continue
            one = dataclasses.replace(best, **changed)
            if one not in found:
                found[one] = ns_of(one)
            if found[one] < BETTER * found[best]:
                best = one
        if found[best] >= WORTHWHILE * found[before]:
            break
    return found


def is_hashable(config: object) -> bool:
    """Whether a config can be a cache key; one that cannot is refused."""
    try:
        hash(config)
    except TypeError:
        return False
    return True


def once_a_config(made: Callable[P, Made]) -> Callable[P, Made]:
    """A function with an argument `config` that caches its results; it runs again for an unhashable config.

    Host, search and kernel share a result, which nobody may change.
    """
    at, once = list(inspect.signature(made).parameters).index("config"), cast(Callable[..., Made], made)

    @functools.lru_cache(maxsize=KEPT)
    def kept(written: str, *arguments: Any) -> Made:
        return once(*arguments)

    @functools.wraps(made)
    def found(*arguments: P.args, **named: P.kwargs) -> Made:
        if named or not is_hashable(arguments[at]):
            return made(*arguments, **named)
        return kept(repr(arguments[at]), *arguments)  # 1 and True are equal, but not the same value

    found.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return found


def declarations(settings: type[Settings]) -> Mapping[str, Setting]:
    """The settings of a class by name, in the order of a config."""
    if settings not in _KNOWN:
        _KNOWN[settings] = {field.name: field.metadata["setting"] for field in dataclasses.fields(settings)}
    return _KNOWN[settings]


def setting(config: Config, name: str, default: Any) -> Any:
    """A config's value of a setting, or the default."""
    return dict(_pairs(config)).get(name, default)


def values_of(given: Mapping[str, Any], name: str, values: Iterable[Any]) -> list[Any]:
    """Candidate values of a setting: the given one alone, or these, each once."""
    return [given[name]] if name in given else list(dict.fromkeys(values))


def form_unsupported(config: Any) -> str:
    """The error of a config's form; "" if it is valid. Its algorithm checks names and values."""
    rule = "must be None or a tuple of (name, value) pairs, as Plan.config is"
    if config is None:
        return ""
    if not isinstance(config, tuple):
        remedy = {"dict": "write tuple(config.items())", "list": "write tuples in place of lists"}
        return f"config={shown(config)}: {rule}; {remedy.get(type(config).__name__, 'pass one')}"
    for index, entry in enumerate(config):
        if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[0], str):
            return f"config={shown(config)}: {rule}; entry {index} is {shown(entry)}, pass a pair (name, value)"
        if not is_hashable(entry[1]):
            text = "a kernel is specialised for its settings, which must be hashable; write tuples in place of lists"
            return f"config {entry[0]}={shown(entry[1])}: {text}"
    return ""


def _declared(one: Setting) -> Any:
    return dataclasses.field(metadata={"setting": one})


def _pairs(config: Config) -> tuple[tuple[str, Any], ...]:
    return () if config is None else config
