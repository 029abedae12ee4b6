"""The rules of the linter: ids, messages, remedies, which versions of NKI they hold for, and who says so.

Ids are stable: 1xx is Python that NKI's parser (0.3 to 0.6) does not compile, 2xx is what kernels take, hold and
return, 3xx is registers and loops on the device. NKI 0.7 traces kernels as Python, so most of 1xx ends with 0.6.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The versions that a run can be for. 0.6 stands for 0.3 to 0.6, which parse kernels.
VERSIONS = ("0.6", "0.7")
#: The version of a run that names none.
DEFAULT_VERSION = "0.7"

#: Documents that rules come from, of the Neuron SDK's documentation.
_GUIDE = "nki/get-started/nki-language-guide.rst"
_TO_03 = "nki/migration/index.rst, 0.2 to 0.3"
_TO_04 = "nki/migration/index.rst, 0.3 to 0.4"
_TO_06 = "nki/migration/index.rst, 0.5 to 0.6"
_TO_07 = "nki/migration/index.rst, 0.6 to 0.7"
_SCALARS = "nki/deep-dives/nki-scalar.rst"
#: AWS's front-end up to NKI 0.6, open source up to March 2026: what it does with the code, for want of documents.
_SIMPLIFY = "leanprover/KLR, KLR/NKI/Simplify.lean"
_TRACE = "leanprover/KLR, KLR/Trace"
_UNSEEN = "no document allows it, and no kernel of nki-library has it"


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: "NKL101"; stable for ever.
        versions: the versions that refuse it.
        strict: the versions for which only `--strict` reports it: it is deprecated there; or refused on paper, but
            AWS's own kernels have it and compile; or doubtful, for neither documents nor those kernels have it.
        message: what is wrong, with "{}" for what was found.
        remedy: what to write instead.
        source: the document, or why the rule is there without one.
    """

    id: str
    versions: tuple[str, ...]
    strict: tuple[str, ...]
    message: str
    remedy: str
    source: str

    def holds(self, nki: str, *, strict: bool) -> bool:
        """Whether a run for this version of NKI reports it."""
        return nki in self.versions or (strict and nki in self.strict)


_OLD, _NEW = ("0.6",), ("0.7",)

# fmt: off
_TABLE: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str, str, str], ...] = (
    ("NKL101", _OLD, (), "`{}` compares identity, which is not compiled", "write == or !=", _TO_03),
    ("NKL102", (), _OLD,
     "`{}`: identity is refused by NKI's documents from 0.3 on, though nki-library's kernels ask it of None",
     "write == None or != None", _TO_03),
    ("NKL103", _OLD, (), "`try` is not compiled", "check before with an if, or assert", _UNSEEN),
    ("NKL104", _OLD, (), "`with {}` is not compiled",
     "only nl.no_reorder() makes a block; call what sets up and cleans up",
     "release notes of NKI 0.2: no_reorder is the one block there is"),
    ("NKL105", _OLD, (), "`{}` makes a generator, which needs Python's tracing (NKI 0.7)",
     "append to a list and return it", "release notes of NKI 0.7: generators came with it"),
    ("NKL106", VERSIONS, (), "`{}` is not compiled", "write an ordinary function", _UNSEEN),
    ("NKL107", _OLD, (), "`lambda` is not compiled", "write a def, and pass what it needs as arguments", _UNSEEN),
    ("NKL108", _OLD, (), "a {} is not compiled", "write a for loop that appends", _UNSEEN),
    ("NKL109", VERSIONS, (), "`{}`: a kernel must depend on its arguments only, for it is cached by them",
     "pass the value as an argument and return the new one", _GUIDE + ", Kernel Caching"),
    ("NKL110", VERSIONS, (),
     "`{}` is a global that changes; a kernel is cached by its arguments and would keep the old one",
     "pass it as an argument, or make a new one inside", _GUIDE + ", Kernel Caching"),
    ("NKL111", _OLD, (), "`:=` is not compiled", "assign in a statement of its own", _UNSEEN),
    ("NKL112", _OLD, (), "`{}` is not compiled", "write out the arguments or elements", _UNSEEN),
    ("NKL113", _OLD, (), "`match` is not compiled", "write if and elif", _UNSEEN),
    ("NKL114", _OLD, (), "`raise` is not compiled", "assert the condition, with a message", _UNSEEN),
    ("NKL115", _OLD, (), "a set is no value of NKI", "use a tuple or a list", _GUIDE + ", NKI Values"),
    ("NKL116", _OLD, (), "`del` is not compiled", "let the name be, or pop from the list or dict", _UNSEEN),
    ("NKL117", (), _OLD, "`for {}` unpacks each element, which no kernel of AWS's does",
     "take one name, and unpack it or index it in the loop", _UNSEEN),
    ("NKL118", _OLD, (),
     "class {}: a class of a kernel inherits from nl.NKIObject, or from Enum, and from nothing else",
     "write class {0}(nl.NKIObject), and hold what it inherited", _GUIDE + ", Class Support"),
    ("NKL119", _OLD, (), "{} as a key: a dict's keys are strings",
     "use str(key), or a list of pairs", _GUIDE + ", NKI Values"),
    ("NKL120", _OLD, (), "{} is no value of NKI: there are None, bool, 32-bit int, fp32, str and tensors",
     "use one of these", _GUIDE + ", NKI Values"),
    ("NKL121", (), _OLD, "{}() of other than two values, which no kernel of AWS's has",
     "nest the calls, or write a loop", _UNSEEN),
    ("NKL122", _OLD, (), "`{}` inside a function is not compiled", "import at the top of the file", _UNSEEN),
    ("NKL123", _OLD, (), "`{}` on a member of an enumeration: only == and != are there",
     "compare with each member", _GUIDE + ", Enumerations"),
    ("NKL124", (), _OLD, "{}() is in no document of NKI and in no kernel of AWS's",
     "use len, range, min, max, int, float, str, list, tuple, dict, divmod, isinstance; write out the rest", _UNSEEN),
    ("NKL125", (), _OLD, "a loop with `else`, which no kernel of AWS's has",
     "set a flag before break, and ask for it after the loop", _UNSEEN),
    ("NKL126", (), _OLD, "@{} on a function that kernels call: only its body is compiled",
     "leave it out; staticmethod is all that AWS's kernels have", _UNSEEN),
    ("NKL127", _OLD, (), "`{}` is not compiled", "return the value, or take a list and change that", _UNSEEN),
    ("NKL128", _OLD, (), "`{}` in the header of {}: what it is an attribute of is bound inside the block, too late",
     "bind that to a name before the block; for a while, again at its end", f"{_SIMPLIFY}, letBind and stmt"),
    ("NKL129", (), _OLD, "`{}`: what it is an attribute of is evaluated before the statement, whatever guards it here",
     "write an if, or nested ones, and bind it to a name there",
     f"{_SIMPLIFY}, letBind and booleanOp; one kernel of nki-library has it"),
    ("NKL130", _OLD, (), "`{}` as one of several targets: only names are unpacked to, or assigned to together",
     "assign to names, or in one statement each", f"{_SIMPLIFY}, letSet and pattern"),
    ("NKL131", _OLD, (), "`{}` is assigned to: an attribute of an attribute is immutable",
     "bind {1} to a name, and assign to .{2} of that", f"{_TRACE}/NKI.lean, mutate"),
    ("NKL132", (), _OLD, "`{}` is refused if it ends past the end",
     "write min({1}, len({2})) for the end", f"{_TRACE}/Term.lean, listAccess"),
    ("NKL133", _OLD, (), "`{}` compares an int with a float, which are never equal",
     "write both as ints, or both as floats", f"{_TRACE}/Term.lean, binop'"),
    ("NKL134", (), _OLD,
     "{} has another value in {}, which the same kernel reaches: the parser may keep that one for both",
     "give them different names",
     "leanprover/KLR, interop/klr/gather.c, add_global; some kernels of nki-library have it"),
    ("NKL135", (), _OLD,
     "{} names something else in {}, which the same kernel reaches: the parser may take one for both",
     "give them different names",
     "leanprover/KLR, interop/klr/gather.c, add_work and reference; kernels of nki-library have it"),
    ("NKL201", _OLD, (),
     "{} in the signature of {}: NKI 0.3 to 0.6 take parameters by name and place alike, a fixed number",
     "name every parameter, those with defaults last", _TO_03),
    ("NKL202", VERSIONS, (),
     "parameter {} of a kernel is a {}: kernels are cached by their arguments, which must be hashable",
     "use a tuple", _TO_03),
    ("NKL203", VERSIONS, (), "a {} is passed to kernel {}, which is cached by its arguments: they must be hashable",
     "pass a tuple", _TO_03),
    ("NKL204", _OLD, (), "parameter {} has a default that can change between calls",
     "use a tuple, or None and make it inside", _GUIDE + ", Kernel Caching"),
    ("NKL205", VERSIONS, (), 'buffer="{}": names of buffers are not strings', "write nl.{}", _TO_03),
    ("NKL206", VERSIONS, (), "{}={}: a bare integer is no member of the enumeration",
     "name the member, as in nisa.{0}.<member>", _TO_03),
    ("NKL207", VERSIONS, (), "the kernel returns {}, which is in {}: outputs live in nl.shared_hbm",
     "make it with buffer=nl.shared_hbm, or copy it to such a tensor", _TO_03),
    ("NKL208", VERSIONS, (), "nki.jit(platform_target=...) raises from NKI 0.3 on",
     "set NEURON_PLATFORM_TARGET_OVERRIDE", _TO_03),
    ("NKL209", (), VERSIONS, "nki.jit(mode=...) is deprecated and ignored from NKI 0.3 on", "leave it out", _TO_03),
    ("NKL210", VERSIONS, (), "{}: the namespace neuronxcc.nki is refused inside kernels from NKI 0.4 on",
     "import nki, nki.isa, nki.language", _TO_04),
    ("NKL211", _OLD, (),
     "nl.matmul without transpose_x=True fails, a known issue of NKI 0.4 that 0.5 and 0.6 carry forward",
     "transpose x first, and pass transpose_x=True", "release notes, known issues of NKI 0.4.0"),
    ("NKL212", VERSIONS, (), "{} is a name of NKI 0.1, gone since 0.2",
     "follow NKI's migration guide: {1}",
     "nki/migration/nki-beta2-migration-guide.rst; of entry points aws-neuron/nki-samples#134"),
    ("NKL301", _NEW, _OLD, "nl.dynamic_range is deprecated in NKI 0.6 and gone in 0.7",
     "write the body as a function and call nl.fori_loop(start, stop, body)", f"{_TO_06}; {_TO_07}"),
    ("NKL302", _NEW, _OLD, "`while {}` on a register is deprecated in NKI 0.6 and gone in 0.7",
     "write the body as a function that returns the condition and call nl.while_loop(register, body)",
     f"{_TO_06}; {_TO_07}"),
    ("NKL303", VERSIONS, (), "`{}` lets a register steer Python: its value is known on the device only",
     "use nl.fori_loop or nl.while_loop, or compute on tensors",
     "nki/deep-dives/nki-dynamic-loops.rst, Hardware Lowering"),
    ("NKL304", VERSIONS, (), "{}",
     "a fori_loop's body returns nothing, a while_loop's body the next condition", _TO_06),
    ("NKL305", VERSIONS, (), "{} inside nl.no_reorder() is not supported",
     "put the no_reorder block inside the loop's body", f"{_TO_06}; nki/deep-dives/nki-dynamic-loops.rst"),
    ("NKL306", VERSIONS, (), "step {}: a loop on the device counts up by a positive step known at compile time",
     "count up, and subtract inside", _TO_06),
    ("NKL307", VERSIONS, (), "`{}` compares fields up to NKI 0.6 and identity from 0.7 on: {} defines no equality",
     "make the class a @dataclass, or compare the fields", f"{_GUIDE}, Enumerations (structural ==); {_TO_07}"),
    ("NKL308", VERSIONS, (), "`{}` changes what Python holds in a loop on the device, whose body is compiled once",
     "use range, or count in a register or a tensor", "nki/deep-dives/nki-dynamic-loops.rst, Hardware Lowering"),
    ("NKL309", VERSIONS, (), "`{}` leaves a loop on the device, which runs to its bounds",
     "compute the bound first, or use nl.while_loop", "nki/deep-dives/nki-dynamic-loops.rst, Hardware Lowering"),
    ("NKL310", _OLD, (), "{}: scalars came with NKI 0.7, whose Python tracing they need",
     "use nisa.register_alloc, register_load and register_store", f"{_SCALARS}, isa scalar_load"),
    ("NKL311", _NEW, (), "`{}`: the device computes + - * of an NkiScalar, and nothing of a register",
     "compute it on the host, or on a tensor", f"{_SCALARS}, isa NkiScalar"),
    ("NKL312", _NEW, (), "scalar_store of {}: it takes an NkiScalar, no Python number",
     "write a number with nisa.memset", f"{_SCALARS}, isa scalar_store"),
    ("NKL313", (), _NEW, "nl.{} is deprecated in NKI 0.7, where it is Python's range",
     "write range", "nki/deep-dives/nki-loops.rst, Choosing a Loop"),
)
# fmt: on

#: Rules by id, in order.
RULES: dict[str, Rule] = {row[0]: Rule(*row) for row in _TABLE}
