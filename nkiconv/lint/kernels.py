"""What goes into kernels and comes out: signatures, arguments, buffers, enumerations, outputs, the decorator."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, argument, short
from .names import values_of
from .project import Definition, Project
from .reach import Reached, jit_calls, own_code
from .source import FUNCTIONS, Function, Import, Source
from .syntax import functions_of

#: Displays of what can change, and what they make.
MUTABLE: dict[type[ast.AST] | None, str] = {
    ast.List: "list",
    ast.Dict: "dict",
    ast.Set: "set",
    ast.ListComp: "list",
    ast.DictComp: "dict",
    ast.SetComp: "set",
}
_BUFFERS = ("sbuf", "psum", "hbm", "private_hbm", "shared_hbm")
#: Calls that make a tensor, with the place of `buffer` among their arguments.
_CREATORS = {"ndarray": 2, "zeros": 2, "ones": 2, "full": 3, "empty_like": 2, "zeros_like": 2, "rand": 2}
#: Parameters that are members of an enumeration; `engine` of an instruction, `dge_mode`, and so on.
_ENUMERATIONS = ("engine", "dge_mode", "oob_mode", "reduce_cmd", "dma_engine")


def check(context: Context) -> Iterator[Problem]:
    """Problems of signatures, of calls that make tensors or name engines, and of what kernels return."""
    for function in functions_of(context):
        yield from _signature(context, function)
        for node in (node for decorator in function.decorator_list for node in ast.walk(decorator)):
            if isinstance(node, ast.Name):
                yield from _old_namespace(context, node)
    for node in context.unit.code:
        if isinstance(node, ast.Call):
            yield from _buffer(context, node)
            yield from _members(context, node)
            yield from _matmul(context, node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield from _old_namespace(context, node)
    if context.unit.is_kernel and not context.unit.is_called:
        yield from _outputs(context)


def _signature(context: Context, function: Function) -> Iterator[Problem]:
    args = function.args
    if args.posonlyargs:
        yield context.problem("NKL201", args.posonlyargs[0], "/", function.name)
    if args.vararg:
        yield context.problem("NKL201", args.vararg, f"*{args.vararg.arg}", function.name)
    elif args.kwonlyargs:
        yield context.problem("NKL201", args.kwonlyargs[0], "*", function.name)
    if args.kwarg:
        yield context.problem("NKL201", args.kwarg, f"**{args.kwarg.arg}", function.name)
    is_kernel = context.unit.is_kernel and function is context.unit.node
    positional = [*args.posonlyargs, *args.args]
    named = [*positional[len(positional) - len(args.defaults) :], *args.kwonlyargs]
    for parameter, default in zip(named, [*args.defaults, *args.kw_defaults], strict=True):
        if type(default) in MUTABLE:
            assert default is not None
            if is_kernel:
                yield context.problem("NKL202", default, parameter.arg, MUTABLE[type(default)])
            else:
                yield context.problem("NKL204", default, parameter.arg)


def _buffer(context: Context, node: ast.Call) -> Iterator[Problem]:
    name = context.external(node.func)
    if not name.startswith("nki.language."):
        return
    value = argument(node, "buffer", _CREATORS.get(name.rpartition(".")[2]))
    if isinstance(value, ast.Constant) and value.value in _BUFFERS:
        yield context.problem("NKL205", value, str(value.value), str(value.value))


def _members(context: Context, node: ast.Call) -> Iterator[Problem]:
    if not context.external(node.func).startswith("nki."):
        return
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg in _ENUMERATIONS and isinstance(value, ast.Constant) and type(value.value) is int:
            yield context.problem("NKL206", value, keyword.arg, str(value.value))


def _matmul(context: Context, node: ast.Call) -> Iterator[Problem]:
    if context.external(node.func) != "nki.language.matmul":
        return
    given = argument(node, "transpose_x", 2)
    if given is None or (isinstance(given, ast.Constant) and not given.value):
        yield context.problem("NKL211", node)


def _old_namespace(context: Context, node: ast.Name) -> Iterator[Problem]:
    """At the import, once for all the kernels that use it."""
    bound = context.unit.source.bindings.get(node.id)
    if not isinstance(bound, Import) or bound.node is None:
        return
    names = [f"{bound.module}.{bound.name or ''}"]
    if isinstance(bound.node, ast.Import) and bound.module == node.id:  # `import a.b` binds a
        names = [alias.name for alias in bound.node.names if not alias.asname]
    if any(f"{name}.".startswith("neuronxcc.nki.") for name in names):
        yield context.problem("NKL210", bound.node, node.id)


def _outputs(context: Context) -> Iterator[Problem]:
    """Returned names that are only ever bound to tensors in other memories than shared HBM."""
    function = context.unit.node
    if not isinstance(function, FUNCTIONS):
        return
    memories = {name: {_memory(context, one) for one in given} for name, given in values_of(context).items()}
    for node in own_code(function):
        if isinstance(node, ast.Return) and node.value is not None:
            returned = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
            for one in returned:
                held = memories.get(one.id, set()) if isinstance(one, ast.Name) else {_memory(context, one)}
                if held and not held & {"?", "shared_hbm"}:
                    yield context.problem("NKL207", one, short(one), " or ".join(f"nl.{m}" for m in sorted(held)))


def _memory(context: Context, node: ast.expr | None) -> str:
    """The memory that a call makes a tensor in; "?" for anything else."""
    if not isinstance(node, ast.Call):
        return "?"
    module, _, name = context.external(node.func).rpartition(".")
    if module != "nki.language" or name not in ("ndarray", "zeros", "ones", "full"):
        return "?"
    buffer = argument(node, "buffer", _CREATORS[name])
    if buffer is None:
        return "sbuf"
    memory = context.external(buffer).rpartition(".")
    return memory[2] if memory[0] == "nki.language" and memory[2] in _BUFFERS else "?"


def check_decorators(project: Project, source: Source) -> Iterator[Problem]:
    """Arguments of `nki.jit` that are gone."""
    for node, kernel in jit_calls(project, source):
        name = kernel.node.name
        for keyword in node.keywords if isinstance(node, ast.Call) else []:
            if keyword.arg == "platform_target":
                yield Problem(source, "NKL208", keyword, (), name)
            elif keyword.arg == "mode":
                yield Problem(source, "NKL209", keyword, (), name)


def check_launches(project: Project, reached: Reached, source: Source) -> Iterator[Problem]:
    """Lists that code outside kernels passes to one."""
    inside = {node for unit in reached.units if unit.source is source for node in unit.code}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or node in inside:
            continue
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func  # kernel[2](...)
        found = project.meaning(source, called, node)
        if not isinstance(found, Definition) or found.node not in reached.kernels:
            continue
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            if type(value) in MUTABLE:
                yield Problem(source, "NKL203", value, (MUTABLE[type(value)], found.node.name))
