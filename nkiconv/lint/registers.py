"""Registers and loops on the device: their values are known there only, so Python may not be steered by them.

A name holds a register if every value that its function gives it is one: what `nisa.register_alloc` or
`nisa.scalar_load` returns, the variable of a `dynamic_range` loop, what the body of a `fori_loop` or `while_loop`
takes, arithmetic on these. A name that is sometimes something else is let be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, argument, short
from .names import DYNAMIC_RANGE, values_of
from .project import Definition, Project
from .reach import Reached, compiled, own_code, parameters
from .source import FUNCTIONS, Function
from .syntax import functions_of

_MAKERS = ("nki.isa.register_alloc", "nki.isa.scalar_load")
_LOOPS = {"nki.language.fori_loop": 2, "nki.language.while_loop": 1}  # the place of the body among the arguments
#: Iterators that are unrolled, and Python's range from 0.7 on.
_UNROLLED = ("nki.language.affine_range", "nki.language.sequential_range", "nki.language.static_range")
_RANGES = ("range", *_UNROLLED)
#: Of NKI 0.7.
_SCALARS = ("nki.isa.scalar_load", "nki.isa.scalar_store", "nki.isa.NkiScalar")
_CONVERSIONS = ("bool", "float", "int")

Names = set[str]


def check(context: Context) -> Iterator[Problem]:
    """Problems of registers and of loops on the device in one unit."""
    registers = _registers(context)
    for node in context.unit.code:
        if isinstance(node, ast.Call):
            yield from _loop_call(context, node, registers)
            yield from _steered_call(context, node, registers)
            yield from _scalar_call(context, node)
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            if _mentions(node, registers):
                yield context.problem("NKL311", node, short(node))
        elif isinstance(node, ast.While) and isinstance(node.test, ast.Name) and node.test.id in registers:
            yield context.problem("NKL302", node, node.test.id)
        elif isinstance(node, ast.With) and _is_no_reorder(context, node):
            yield from _loops_inside(context, node)
        for asked in _asked(node):
            if _is_steering(asked, registers):
                yield context.problem("NKL303", asked, short(asked))


def _full_name(context: Context, node: ast.expr) -> str:
    """The name of what is called: in full, or a builtin's."""
    name = context.external(node)
    if not name and isinstance(node, ast.Name) and node.id not in context.unit.source.bindings:
        return node.id
    return name


def loop_bodies(project: Project, reached: Reached) -> dict[Function, str]:
    """The functions that reached code passes to loops on the device, and the loop's name."""
    found: dict[Function, str] = {}
    for unit in reached.units:
        inner = Context(project, unit, {})
        for node in unit.code:
            loop = inner.external(node.func) if isinstance(node, ast.Call) else ""
            if loop in _LOOPS and isinstance(node, ast.Call):
                function = _body(inner, node, loop)
                if function is not None:
                    found[function] = loop.rpartition(".")[2]
    return found


def _body(context: Context, call: ast.Call, loop: str) -> Function | None:
    """The function that is passed to a loop on the device."""
    node = argument(call, "body_fun", _LOOPS[loop])
    if node is None:
        return None
    for one in functions_of(context):
        if isinstance(node, ast.Name) and one.name == node.id:
            return one
    found = context.project.meaning(context.unit.source, node, context.unit.node)
    return found.node if isinstance(found, Definition) and isinstance(found.node, FUNCTIONS) else None


def _registers(context: Context) -> Names:
    found: Names = set()
    for function in functions_of(context):
        if function in context.bodies:
            found.update(one.arg for one in parameters(function)[:1])
    given = values_of(context)
    while True:
        grown = found | {name for name, values in given.items() if _all_registers(context, values, found)}
        if grown == found:
            return found
        found = grown


def _all_registers(context: Context, values: list[ast.expr | None], known: Names) -> bool:
    return all(value is not None and _is_register(context, value, known) for value in values)


def _is_register(context: Context, node: ast.expr, known: Names) -> bool:
    if isinstance(node, ast.Call):
        return context.external(node.func) in (*_MAKERS, DYNAMIC_RANGE)
    if isinstance(node, ast.BinOp):
        return _is_register(context, node.left, known) or _is_register(context, node.right, known)
    if isinstance(node, ast.UnaryOp):
        return _is_register(context, node.operand, known)
    return isinstance(node, ast.Name) and node.id in known


def _asked(node: ast.AST) -> list[ast.expr]:
    """Expressions whose truth decides what Python does next."""
    if isinstance(node, ast.While):
        return [] if isinstance(node.test, ast.Name) else [node.test]
    if isinstance(node, (ast.If, ast.IfExp, ast.Assert)):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return []


def _is_steering(node: ast.expr, registers: Names) -> bool:
    """Whether the truth of the expression hangs on a register; whether one is None is known."""
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node]
    if any(isinstance(side, ast.Constant) and side.value is None for side in sides):
        return False
    return any(_mentions(side, registers) for side in sides)


def _mentions(node: ast.expr, registers: Names) -> bool:
    if isinstance(node, ast.BinOp):
        return _mentions(node.left, registers) or _mentions(node.right, registers)
    return isinstance(node, ast.Name) and node.id in registers


def _steered_call(context: Context, node: ast.Call, registers: Names) -> Iterator[Problem]:
    name = _full_name(context, node.func)
    if name in (*_RANGES, *_CONVERSIONS) and any(_mentions(value, registers) for value in node.args):
        yield context.problem("NKL303", node, short(node))


def _scalar_call(context: Context, node: ast.Call) -> Iterator[Problem]:
    """Calls of NKI 0.7's scalars, and of iterators that it deprecates."""
    name = context.external(node.func)
    if name in _SCALARS:
        yield context.problem("NKL310", node, name.replace("nki.isa", "nisa"))
    if name == "nki.isa.scalar_store":
        value = argument(node, "value", 1)
        if isinstance(value, ast.Constant):
            yield context.problem("NKL312", value, short(value))
    if name in _UNROLLED:
        yield context.problem("NKL313", node, name.rpartition(".")[2])


def _loop_call(context: Context, node: ast.Call, registers: Names) -> Iterator[Problem]:
    name = context.external(node.func)
    if name == DYNAMIC_RANGE:
        yield context.problem("NKL301", node)
        yield from _step(context, argument(node, "step", 2), registers)
    elif name in _LOOPS:
        if name.endswith("fori_loop"):
            yield from _step(context, argument(node, "step", 3), registers)
        function = _body(context, node, name)
        if function is not None:
            yield from _results(context, node, function, context.bodies[function])


def _step(context: Context, node: ast.expr | None, registers: Names) -> Iterator[Problem]:
    if node is None:
        return
    try:
        step = ast.literal_eval(node)
        wrong = not isinstance(step, int) or step < 1
    except ValueError:  # not a literal
        wrong = _mentions(node, registers)
    if wrong:
        yield context.problem("NKL306", node, short(node))


def _results(context: Context, call: ast.Call, function: Function, loop: str) -> Iterator[Problem]:
    """What the body returns, looked at where the loop is called."""
    returned = [node for node in own_code(function) if isinstance(node, ast.Return) and _returns_value(node)]
    if loop == "fori_loop" and returned:
        yield context.problem("NKL304", call, f"{function.name}, the body of this fori_loop, returns a value")
    elif loop == "while_loop" and not returned:
        yield context.problem("NKL304", call, f"{function.name}, the body of this while_loop, returns no condition")


def _returns_value(node: ast.Return) -> bool:
    return node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None)


def _is_no_reorder(context: Context, node: ast.With) -> bool:
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    return any(context.external(call.func) == "nki.language.no_reorder" for call in calls)


def _loops_inside(context: Context, block: ast.With) -> Iterator[Problem]:
    for statement in block.body:
        for node in compiled(statement):
            name = context.external(node.func) if isinstance(node, ast.Call) else ""
            if name == DYNAMIC_RANGE or name in _LOOPS:
                yield context.problem("NKL305", node, "nl." + name.rpartition(".")[2])
