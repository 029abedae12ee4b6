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


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        id: "NKL101"; stable for ever.
        message: what is wrong, with "{}" for what was found.
        remedy: what to write instead.
        versions: the versions that refuse it.
        strict: the versions for which only `--strict` reports it: it is deprecated there; or refused on paper, but
            AWS's own kernels have it and compile; or doubtful, for neither documents nor those kernels have it.
        source: the document, or why the rule is there without one.
    """

    id: str
    message: str
    remedy: str
    source: str
    versions: tuple[str, ...] = ("0.6",)
    strict: tuple[str, ...] = ()

    def holds(self, nki: str, *, strict: bool) -> bool:
        """Whether a run for this version of NKI reports it."""
        return nki in self.versions or (strict and nki in self.strict)


_ALL = [
    Rule(
        id="NKL101",
        message="`{}` compares identity, which is not compiled",
        remedy="write == or !=",
        source=_TO_03,
    ),
    Rule(
        id="NKL102",
        message="`{}`: identity is refused by NKI's documents from 0.3 on, though nki-library's kernels ask it of None",
        remedy="write == None or != None",
        source=_TO_03,
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL103",
        message="`try` is not compiled",
        remedy="check before with an if, or assert",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL104",
        message="`with {}` is not compiled",
        remedy="only nl.no_reorder() makes a block; call what sets up and cleans up",
        source="release notes of NKI 0.2: no_reorder is the one block there is",
    ),
    Rule(
        id="NKL105",
        message="`{}` makes a generator, which needs Python's tracing (NKI 0.7)",
        remedy="append to a list and return it",
        source="release notes of NKI 0.7: generators came with it",
    ),
    Rule(
        id="NKL106",
        message="`{}` is not compiled",
        remedy="write an ordinary function",
        source=_UNSEEN,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL107",
        message="`lambda` is not compiled",
        remedy="write a def, and pass what it needs as arguments",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL108",
        message="a {} is not compiled",
        remedy="write a for loop that appends",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL109",
        message="`{}`: a kernel must depend on its arguments only, for it is cached by them",
        remedy="pass the value as an argument and return the new one",
        source=_GUIDE + ", Kernel Caching",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL110",
        message="`{}` is a global that changes; a kernel is cached by its arguments and would keep the old one",
        remedy="pass it as an argument, or make a new one inside",
        source=_GUIDE + ", Kernel Caching",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL111",
        message="`:=` is not compiled",
        remedy="assign in a statement of its own",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL112",
        message="`{}` is not compiled",
        remedy="write out the arguments or elements",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL113",
        message="`match` is not compiled",
        remedy="write if and elif",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL114",
        message="`raise` is not compiled",
        remedy="assert the condition, with a message",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL115",
        message="a set is no value of NKI",
        remedy="use a tuple or a list",
        source=_GUIDE + ", NKI Values",
    ),
    Rule(
        id="NKL116",
        message="`del` is not compiled",
        remedy="let the name be, or pop from the list or dict",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL117",
        message="`for {}` unpacks each element, which no kernel of AWS's does",
        remedy="take one name, and unpack it or index it in the loop",
        source=_UNSEEN,
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL118",
        message="class {}: a class of a kernel inherits from nl.NKIObject, or from Enum, and from nothing else",
        remedy="write class {0}(nl.NKIObject), and hold what it inherited",
        source=_GUIDE + ", Class Support",
    ),
    Rule(
        id="NKL119",
        message="{} as a key: a dict's keys are strings",
        remedy="use str(key), or a list of pairs",
        source=_GUIDE + ", NKI Values",
    ),
    Rule(
        id="NKL120",
        message="{} is no value of NKI: there are None, bool, 32-bit int, fp32, str and tensors",
        remedy="use one of these",
        source=_GUIDE + ", NKI Values",
    ),
    Rule(
        id="NKL121",
        message="{}() of other than two values, which no kernel of AWS's has",
        remedy="nest the calls, or write a loop",
        source=_UNSEEN,
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL122",
        message="`{}` inside a function is not compiled",
        remedy="import at the top of the file",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL123",
        message="`{}` on a member of an enumeration: only == and != are there",
        remedy="compare with each member",
        source=_GUIDE + ", Enumerations",
    ),
    Rule(
        id="NKL124",
        message="{}() is in no document of NKI and in no kernel of AWS's",
        remedy="use len, range, min, max, int, float, str, list, tuple, dict, divmod, isinstance; write out the rest",
        source=_UNSEEN,
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL125",
        message="a loop with `else`, which no kernel of AWS's has",
        remedy="set a flag before break, and ask for it after the loop",
        source=_UNSEEN,
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL126",
        message="@{} on a function that kernels call: only its body is compiled",
        remedy="leave it out; staticmethod is all that AWS's kernels have",
        source=_UNSEEN,
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL127",
        message="`{}` is not compiled",
        remedy="return the value, or take a list and change that",
        source=_UNSEEN,
    ),
    Rule(
        id="NKL128",
        message="`{}` in the header of {}: what it is an attribute of is bound inside the block, too late",
        remedy="bind that to a name before the block; for a while, again at its end",
        source=f"{_SIMPLIFY}, letBind and stmt",
    ),
    Rule(
        id="NKL129",
        message="`{}`: what it is an attribute of is evaluated before the statement, whatever guards it here",
        remedy="write an if, or nested ones, and bind it to a name there",
        source=f"{_SIMPLIFY}, letBind and booleanOp; one kernel of nki-library has it",
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL130",
        message="`{}` as one of several targets: only names are unpacked to, or assigned to together",
        remedy="assign to names, or in one statement each",
        source=f"{_SIMPLIFY}, letSet and pattern",
    ),
    Rule(
        id="NKL131",
        message="`{}` is assigned to: an attribute of an attribute is immutable",
        remedy="bind {1} to a name, and assign to .{2} of that",
        source=f"{_TRACE}/NKI.lean, mutate",
    ),
    Rule(
        id="NKL132",
        message="`{}` is refused if it ends past the end",
        remedy="write min({1}, len({2})) for the end",
        source=f"{_TRACE}/Term.lean, listAccess",
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL133",
        message="`{}` compares an int with a float, which are never equal",
        remedy="write both as ints, or both as floats",
        source=f"{_TRACE}/Term.lean, binop'",
    ),
    Rule(
        id="NKL134",
        message="{} has another value in {}, which the same kernel reaches: the parser may keep that one for both",
        remedy="give them different names",
        source="leanprover/KLR, interop/klr/gather.c, add_global; some kernels of nki-library have it",
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL135",
        message="{} names something else in {}, which the same kernel reaches: the parser may take one for both",
        remedy="give them different names",
        source="leanprover/KLR, interop/klr/gather.c, add_work and reference; kernels of nki-library have it",
        versions=(),
        strict=("0.6",),
    ),
    Rule(
        id="NKL201",
        message="{} in the signature of {}: NKI 0.3 to 0.6 take parameters by name and place alike, a fixed number",
        remedy="name every parameter, those with defaults last",
        source=_TO_03,
    ),
    Rule(
        id="NKL202",
        message="parameter {} of a kernel is a {}: kernels are cached by their arguments, which must be hashable",
        remedy="use a tuple",
        source=_TO_03,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL203",
        message="a {} is passed to kernel {}, which is cached by its arguments: they must be hashable",
        remedy="pass a tuple",
        source=_TO_03,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL204",
        message="parameter {} has a default that can change between calls",
        remedy="use a tuple, or None and make it inside",
        source=_GUIDE + ", Kernel Caching",
    ),
    Rule(
        id="NKL205",
        message='buffer="{}": names of buffers are not strings',
        remedy="write nl.{}",
        source=_TO_03,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL206",
        message="{}={}: a bare integer is no member of the enumeration",
        remedy="name the member, as in nisa.{0}.<member>",
        source=_TO_03,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL207",
        message="the kernel returns {}, which is in {}: outputs live in nl.shared_hbm",
        remedy="make it with buffer=nl.shared_hbm, or copy it to such a tensor",
        source=_TO_03,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL208",
        message="nki.jit(platform_target=...) raises from NKI 0.3 on",
        remedy="set NEURON_PLATFORM_TARGET_OVERRIDE",
        source=_TO_03,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL209",
        message="nki.jit(mode=...) is deprecated and ignored from NKI 0.3 on",
        remedy="leave it out",
        source=_TO_03,
        versions=(),
        strict=VERSIONS,
    ),
    Rule(
        id="NKL210",
        message="{}: the namespace neuronxcc.nki is refused inside kernels from NKI 0.4 on",
        remedy="import nki, nki.isa, nki.language",
        source=_TO_04,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL211",
        message="nl.matmul without transpose_x=True fails, a known issue of NKI 0.4 that 0.5 and 0.6 carry forward",
        remedy="transpose x first, and pass transpose_x=True",
        source="release notes, known issues of NKI 0.4.0",
    ),
    Rule(
        id="NKL212",
        message="{} is a name of NKI 0.1, gone since 0.2",
        remedy="follow NKI's migration guide: {1}",
        source="nki/migration/nki-beta2-migration-guide.rst; of entry points aws-neuron/nki-samples#134",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL301",
        message="nl.dynamic_range is deprecated in NKI 0.6 and gone in 0.7",
        remedy="write the body as a function and call nl.fori_loop(start, stop, body)",
        source=f"{_TO_06}; {_TO_07}",
        versions=("0.7",),
        strict=("0.6",),
    ),
    Rule(
        id="NKL302",
        message="`while {}` on a register is deprecated in NKI 0.6 and gone in 0.7",
        remedy="write the body as a function that returns the condition and call nl.while_loop(register, body)",
        source=f"{_TO_06}; {_TO_07}",
        versions=("0.7",),
        strict=("0.6",),
    ),
    Rule(
        id="NKL303",
        message="`{}` lets a register steer Python: its value is known on the device only",
        remedy="use nl.fori_loop or nl.while_loop, or compute on tensors",
        source="nki/deep-dives/nki-dynamic-loops.rst, Hardware Lowering",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL304",
        message="{}",
        remedy="a fori_loop's body returns nothing, a while_loop's body the next condition",
        source=_TO_06,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL305",
        message="{} inside nl.no_reorder() is not supported",
        remedy="put the no_reorder block inside the loop's body",
        source=f"{_TO_06}; nki/deep-dives/nki-dynamic-loops.rst",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL306",
        message="step {}: a loop on the device counts up by a positive step known at compile time",
        remedy="count up, and subtract inside",
        source=_TO_06,
        versions=VERSIONS,
    ),
    Rule(
        id="NKL307",
        message="`{}` compares fields up to NKI 0.6 and identity from 0.7 on: {} defines no equality",
        remedy="make the class a @dataclass, or compare the fields",
        source=f"{_GUIDE}, Enumerations (structural ==); {_TO_07}",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL308",
        message="`{}` changes what Python holds in a loop on the device, whose body is compiled once",
        remedy="use range, or count in a register or a tensor",
        source="nki/deep-dives/nki-dynamic-loops.rst, Hardware Lowering",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL309",
        message="`{}` leaves a loop on the device, which runs to its bounds",
        remedy="compute the bound first, or use nl.while_loop",
        source="nki/deep-dives/nki-dynamic-loops.rst, Hardware Lowering",
        versions=VERSIONS,
    ),
    Rule(
        id="NKL310",
        message="{}: scalars came with NKI 0.7, whose Python tracing they need",
        remedy="use nisa.register_alloc, register_load and register_store",
        source=f"{_SCALARS}, isa scalar_load",
    ),
    Rule(
        id="NKL311",
        message="`{}`: the device computes + - * of an NkiScalar, and nothing of a register",
        remedy="compute it on the host, or on a tensor",
        source=f"{_SCALARS}, isa NkiScalar",
        versions=("0.7",),
    ),
    Rule(
        id="NKL312",
        message="scalar_store of {}: it takes an NkiScalar, no Python number",
        remedy="write a number with nisa.memset",
        source=f"{_SCALARS}, isa scalar_store",
        versions=("0.7",),
    ),
    Rule(
        id="NKL313",
        message="nl.{} is deprecated in NKI 0.7, where it is Python's range",
        remedy="write range",
        source="nki/deep-dives/nki-loops.rst, Choosing a Loop",
        versions=(),
        strict=("0.7",),
    ),
]

#: Rules by id, in order.
RULES: dict[str, Rule] = {rule.id: rule for rule in _ALL}
