"""Write the type stubs of what gradmgr makes or binds at import, for type checkers and editors.

Tensor's operators and methods are bound when gradmgr is imported, and most public functions are made by templates or
wrapped; no type checker can follow that. This script imports gradmgr, reads the signatures of the real objects, adds
the types of their results from the tables below, and writes one stub per namespace:

    python tools/make_stubs.py

It runs with NumPy 2.4, the last for the oldest Python that is supported: before, not all signatures of NumPy's
functions can be read, and 2.5 has further arguments, as `argsort(descending=)`.

A test fails where a stub is not what this script would write.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np

import gradmgr
import gradmgr.nn.functional
import gradmgr.numpy
from gradmgr.numpy._refused import PASSED_ON

PACKAGE = Path(gradmgr.__file__).parent
WIDTH = 120
EMPTY = inspect.Parameter.empty
NAMED = inspect.Parameter.KEYWORD_ONLY
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
HEAD = '"""{title} Written by tools/make_stubs.py; do not edit."""\n\n'

# ---------------------------------------------------------------- types of parameters and results

# Types of parameters for which the sources say nothing, or Any.
PARAMETERS = MappingProxyType(
    {
        "axis": "Axis",
        "assume_unique": "bool",
        "dtype": "DTypeLike | None",
        "equal_nan": "bool",
        "keepdims": "bool",
        "offset": "int",
        "returned": "bool",
        "return_counts": "bool",
        "return_index": "bool",
        "return_indices": "bool",
        "return_inverse": "bool",
    }
)

# Required parameters that are no arrays: a Tensor given for one of these does not decide what the result is.
NO_ARRAYS = frozenset(
    (
        *("axes", "axis", "axis1", "axis2", "axisa", "bins", "condlist", "d", "deg", "destination", "dims", "dtype"),
        *("func", "func1d", "funclist", "function", "groups", "ind", "indices", "indices_or_sections", "k"),
        *("kernel_size", "kth", "N", "n", "new_shape", "normalized_shape", "num_groups", "obj", "output_size"),
        *("pad_width", "q", "repeats", "reps", "shape", "shift", "source", "ord", "mask_func", "m_"),
    )
)
SEQUENCES = frozenset(("arrays", "tup", "keys", "multi_index"))  # parameters that take a sequence of arrays

# Results that are the same whatever the arguments are.
FACTS = MappingProxyType(
    {
        **dict.fromkeys(("allclose", "array_equal", "array_equiv", "can_cast", "iscomplexobj", "isfortran"), "bool"),
        **dict.fromkeys(("isrealobj", "may_share_memory", "shares_memory"), "bool"),
        **dict.fromkeys(("array2string", "array_repr", "array_str", "base_repr", "binary_repr"), "str"),
        **dict.fromkeys(("format_float_positional", "format_float_scientific", "mintypecode"), "str"),
        **dict.fromkeys(("result_type", "min_scalar_type"), "np.dtype[Any]"),
        **dict.fromkeys(("save", "savetxt", "savez", "savez_compressed"), "None"),
        **dict.fromkeys(("bartlett", "blackman", "hamming", "hanning", "kaiser"), "Tensor"),
        **dict.fromkeys(("frombuffer", "fromfile", "fromiter", "fromfunction", "fromregex", "fromstring"), "Tensor"),
        **dict.fromkeys(("genfromtxt", "loadtxt", "ascontiguousarray", "asfortranarray"), "Tensor"),
        **dict.fromkeys(("diag_indices", "mask_indices", "tril_indices", "triu_indices"), "tuple[Tensor, ...]"),
        **dict.fromkeys(("busday_count", "busday_offset", "datetime_as_string", "is_busday", "load"), "Any"),
        "broadcast": "Broadcast",
        "broadcast_shapes": "tuple[int, ...]",
        "common_type": "type[Any]",
        "einsum_path": "tuple[list[Any], str]",
    }
)

# Results for Tensors that are not one Tensor.
RESULTS = MappingProxyType(
    {
        **dict.fromkeys(("array_split", "split", "dsplit", "hsplit", "vsplit"), "list[Tensor]"),
        **dict.fromkeys(
            ("nonzero", "diag_indices_from", "tril_indices_from", "triu_indices_from"), "tuple[Tensor, ...]"
        ),
        **dict.fromkeys(("broadcast_arrays", "ix_", "meshgrid", "unstack", "unravel_index"), "tuple[Tensor, ...]"),
        **dict.fromkeys(("divmod", "frexp", "modf", "histogram", "polydiv"), "tuple[Tensor, Tensor]"),
        **dict.fromkeys(("apply_along_axis", "gradient", "piecewise"), "Any"),  # as the function or the axes say
        "histogram2d": "tuple[Tensor, Tensor, Tensor]",
        "histogramdd": "tuple[Tensor, list[Tensor]]",
        "linalg.eig": "EigResult",
        "linalg.eigh": "EighResult",
        "linalg.lstsq": "tuple[Tensor, Tensor, Tensor, Tensor]",
        "linalg.qr": "QRResult",
        "linalg.slogdet": "SlogdetResult",
        "linalg.svd": "SVDResult",
        "ndenumerate": "Iterator[tuple[tuple[int, ...], Tensor]]",
        "nn.lstm_cell": "tuple[Tensor, Tensor]",
        "unique_all": "UniqueAllResult",
        "unique_counts": "UniqueCountsResult",
        "unique_inverse": "UniqueInverseResult",
    }
)

ALWAYS = frozenset(("indices", "linspace"))  # make Tensors of plain arguments too; a flag decides how many

# Parameters that choose the kind of result: by name their types for the usual result, then a type of each that gives
# another, and that result.
FLAGS: Mapping[str, tuple[dict[str, str], list[tuple[str, str, str]]]] = MappingProxyType(
    {
        "average": ({"returned": "Literal[False]"}, [("returned", "Literal[True]", "tuple[Tensor, Tensor]")]),
        "indices": ({"sparse": "Literal[False]"}, [("sparse", "Literal[True]", "tuple[Tensor, ...]")]),
        "intersect1d": (
            {"return_indices": "Literal[False]"},
            [("return_indices", "Literal[True]", "tuple[Tensor, Tensor, Tensor]")],
        ),
        "linalg.qr": ({"mode": 'Literal["reduced", "complete"]'}, [("mode", 'Literal["r"]', "Tensor")]),
        "linalg.svd": ({"compute_uv": "Literal[True]"}, [("compute_uv", "Literal[False]", "Tensor")]),
        "linspace": ({"retstep": "Literal[False]"}, [("retstep", "Literal[True]", "tuple[Tensor, Tensor]")]),
        "nn.max_pool1d": (
            {"return_indices": "Literal[False]"},
            [("return_indices", "Literal[True]", "tuple[Tensor, Tensor]")],
        ),
        "nn.max_pool2d": (
            {"return_indices": "Literal[False]"},
            [("return_indices", "Literal[True]", "tuple[Tensor, Tensor]")],
        ),
        "polyfit": (
            {"full": "Literal[False]", "cov": "Literal[False]"},
            [
                ("full", "Literal[True]", "tuple[Tensor, ...]"),
                ("cov", 'Literal[True, "unscaled"]', "tuple[Tensor, ...]"),
            ],
        ),
        "special.logsumexp": (
            {"return_sign": "Literal[False]"},
            [("return_sign", "Literal[True]", "tuple[Tensor, Tensor]")],
        ),
        "unique": (
            dict.fromkeys(("return_index", "return_inverse", "return_counts"), "Literal[False]"),
            [
                (flag, "Literal[True]", "tuple[Tensor, ...]")
                for flag in ("return_index", "return_inverse", "return_counts")
            ],
        ),
    }
)

# Written by hand, as (parameters, result): functions of any number of arrays, and results that depend on the count.
BY_HAND: Mapping[str, list[tuple[str, str]]] = MappingProxyType(
    {
        **{
            name: [("a0: Tensor, /", "Tensor"), ("*arys: Tensor", "tuple[Tensor, ...]"), ("*arys: Any", "Any")]
            for name in ("atleast_1d", "atleast_2d", "atleast_3d")
        },
        **{
            name: [
                ("x: Tensor, /, *, out: Any = None, where: Any = True, dtype: Any = None", "tuple[Tensor, Tensor]"),
                ("*args: Any, out: Any = None, where: Any = True, dtype: Any = None", "tuple[Any, Any]"),
            ]
            for name in ("frexp", "modf")
        },
        "divmod": [
            ("x: Tensor, y: Any, /, *, out: Any = None, where: Any = True, dtype: Any = None", "tuple[Tensor, Tensor]"),
            ("x: Any, y: Tensor, /, *, out: Any = None, where: Any = True, dtype: Any = None", "tuple[Tensor, Tensor]"),
            ("*args: Any, out: Any = None, where: Any = True, dtype: Any = None", "tuple[Any, Any]"),
        ],
        "where": [
            ("condition: Tensor, /", "tuple[Tensor, ...]"),
            ("condition: Any, /", "tuple[Any, ...]"),
            ("condition: Tensor, x: Any, y: Any, /", "Tensor"),
            ("condition: Any, x: Tensor, y: Any, /", "Tensor"),
            ("condition: Any, x: Any, y: Tensor, /", "Tensor"),
            ("condition: Any, x: Any = None, y: Any = None, /", "Any"),
        ],
        "einsum": [
            (f"subscripts: str, {operands}, /, *operands: Any, {keywords}", "Tensor")
            for keywords in (
                "out: Any = None, optimize: Any = False, dtype: DTypeLike | None = None, "
                'order: str = "K", casting: Any = "safe"',
            )
            for operands in ("x: Tensor", "x: Any, y: Tensor")
        ]
        + [
            (
                "*operands: Any, out: Any = None, optimize: Any = False, dtype: DTypeLike | None = None, "
                'order: str = "K", casting: Any = "safe"',
                "Any",
            )
        ],
    }
)

# Results of Tensor's members that are no Tensor and for which the sources say Any; None for members left out: what
# only raises, what Tensor's own module declares.
MEMBERS = MappingProxyType(
    {
        "__array__": "np.ndarray[Any, np.dtype[np.generic]]",
        "__array_function__": "Any",
        "__array_ufunc__": "Any",
        "__cupy_override_elementwise_kernel__": "Any",
        "__divmod__": "tuple[Tensor, Tensor]",
        "__dlpack__": "Any",
        "__dlpack_device__": "tuple[int, int]",
        "__iter__": "Iterator[Tensor]",
        "__rdivmod__": "tuple[Tensor, Tensor]",
        "flat": "Flat",
        "nonzero": "tuple[Tensor, ...]",
    }
)


# Where the names come from that stubs use; NumPy's and the standard library's modules are always imported.
IMPORTS = MappingProxyType(
    {
        "Axis": "gradmgr._engine.function_types",
        "Broadcast": "gradmgr.ops.apply",
        "Callable": "collections.abc",
        "Constant1": "gradmgr._engine.function_types",
        "Constant2": "gradmgr._engine.function_types",
        "DTypeLike": "numpy.typing",
        "EigResult": "gradmgr.ops.decompose",
        "EighResult": "gradmgr.ops.decompose",
        "Flat": "gradmgr.ops.array_methods",
        "Function1": "gradmgr._engine.function_types",
        "Function2": "gradmgr._engine.function_types",
        "Hook": "gradmgr._engine.hooks",
        "Iterable": "collections.abc",
        "Iterator": "collections.abc",
        "Literal": "typing",
        "ModuleType": "types",
        "Node": "gradmgr._engine.history.node",
        "NoReturn": "typing",
        "QRResult": "gradmgr.ops.decompose",
        "RemovableHandle": "gradmgr._engine.hooks",
        "SVDResult": "gradmgr.ops.decompose",
        "Self": "typing",
        "Sequence": "collections.abc",
        "SlogdetResult": "gradmgr.ops.determinant",
        "Tensor": "gradmgr._engine.tensor",
        "Ufunc1": "gradmgr._engine.function_types",
        "Ufunc2": "gradmgr._engine.function_types",
        "UniqueAllResult": "gradmgr.ops.order",
        "UniqueCountsResult": "gradmgr.ops.order",
        "UniqueInverseResult": "gradmgr.ops.order",
        "Any": "typing",
        "overload": "typing",
    }
)

# ---------------------------------------------------------------- parameters


class Parameter(NamedTuple):
    """One parameter of a stub: its name, kind, type, and default as text or None."""

    name: str
    kind: Any
    type: str
    default: str | None


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a function as `inspect` sees them, with the best types known."""
    return [
        Parameter(p.name, p.kind, type_of(p), None if p.default is EMPTY else default_of(p.default))
        for p in inspect.signature(function).parameters.values()
        if p.annotation != "Never"  # of keywords that a function takes only to refuse them
    ]


def type_of(p: inspect.Parameter) -> str:
    """Return the type of a parameter: what its source says, else what the table does."""
    said = "Any" if p.annotation is EMPTY else str(p.annotation).replace("_Any", "Any").replace("Index", "Any")
    said = said if isinstance(p.annotation, str) or p.annotation is EMPTY else "Any"
    return PARAMETERS.get(p.name, "Any") if said == "Any" else said


def default_of(value: Any) -> str:
    """Return how a stub writes a default: constants as they are, anything else as an ellipsis."""
    if value is None or (type(value) in (bool, int, float) and np.isfinite(value)):
        return repr(value)
    return repr(value) if type(value) is str and "\n" not in value else "..."


def signature_text(params: list[Parameter]) -> str:
    """Write parameters with the marks for positional-only and keyword-only ones."""
    texts, named = [], False
    for k, p in enumerate(params):
        if p.kind in STARRED:
            named = named or p.kind is inspect.Parameter.VAR_POSITIONAL
            texts.append(f"{'*' if p.kind is inspect.Parameter.VAR_POSITIONAL else '**'}{p.name}: {p.type}")
            continue
        if p.kind is NAMED and not named:
            named = True
            texts.append("*")
        texts.append(f"{p.name}: {p.type}" + ("" if p.default is None else f" = {p.default}"))
        after = params[k + 1].kind if k + 1 < len(params) else None
        if p.kind is inspect.Parameter.POSITIONAL_ONLY and after is not p.kind:
            texts.append("/")
    return ", ".join(texts)


# ---------------------------------------------------------------- functions of a namespace


def variants(function: Callable[..., Any], name: str) -> list[tuple[str, str]]:
    """Return the (parameters, result) of each overload of a function; one for a function of one kind of result."""
    short = name.rpartition(".")[2]
    if short in BY_HAND:
        return BY_HAND[short]
    params = parameters(function)
    said = str(inspect.signature(function).return_annotation).replace("_Any", "Any")
    fact = FACTS.get(short)
    if fact is not None or not is_open(said):
        return [(signature_text(params), fact or said)]
    result = RESULTS.get(name, "Tensor")
    if name in ALWAYS:
        return [*flagged(name, result, [params])]
    given = [with_tensor(params, place) for place in array_places(params)]
    return [*flagged(name, result, given), (signature_text(params), plain_result(result))]


def is_open(said: str) -> bool:
    """Tell whether an annotation leaves the result open, so that the tables have to say what it is."""
    return said == str(EMPTY) or "Any" in said


def plain_result(result: str) -> str:
    """Return what a function returns for plain arrays alone: as many results, whose types nobody knows."""
    if result.startswith(("list[", "tuple[", "Iterator[")):
        return result.replace("Tensor", "Any")
    return "Any"


def flagged(name: str, result: str, given: list[list[Parameter]]) -> Iterator[tuple[str, str]]:
    """Yield the overloads for parameters as given: the usual result, those that a flag asks for, an unknown flag."""
    usual, others = FLAGS.get(name, ({}, []))
    for params in given:
        yield signature_text([p._replace(type=usual.get(p.name, p.type)) for p in params]), result
    for flag, kind, other in others:
        yield signature_text(with_flag(given[0], flag, kind, usual)), other
    if others:
        yield signature_text(given[0]), "Any"


def array_places(params: list[Parameter]) -> list[int]:
    """Return the positions of the parameters of which one Tensor makes the result a Tensor."""
    required = [
        k
        for k, p in enumerate(params)
        if p.default is None and p.kind not in STARRED and p.type == "Any" and p.name not in NO_ARRAYS
    ]
    return required or [0]


def with_tensor(params: list[Parameter], place: int) -> list[Parameter]:
    """Return the parameters with a Tensor, or a sequence of Tensors, at one position."""
    made = list(params)
    p = params[place]
    kind = "Sequence[Tensor]" if p.name in SEQUENCES else "Tensor"
    made[place] = p._replace(type=kind, default=None if p.kind not in STARRED else p.default)
    return with_out(made)


def with_out(params: list[Parameter]) -> list[Parameter]:
    """Return the parameters with `out` a Tensor, if they have it: what is written to is what is returned."""
    return [p._replace(type="Tensor | None") if p.name == "out" and p.type == "Any" else p for p in params]


def with_flag(params: list[Parameter], flag: str, kind: str, usual: Mapping[str, str]) -> list[Parameter]:
    """Return the parameters with a flag of one type, given by name; flags before it are as usual."""
    made, named = [], False
    for p in params:
        named = named or p.name == flag
        p = p._replace(kind=NAMED) if named and p.kind not in STARRED else p
        if p.name == flag:
            p = p._replace(type=kind, default=None)
        elif not named:
            p = p._replace(type=usual.get(p.name, p.type))
        made.append(p)
    return made


def elementwise_type(function: Callable[..., Any]) -> str | None:
    """Return the type of a function that a template makes or that serves for a ufunc; None for any other."""
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:  # written in C: nobody says what it takes
        return None
    for count in (1, 2):
        if names[count:] == ["out", "where", "dtype"] and "args" not in names:
            return f"{'Ufunc' if hasattr(function, 'reduce') else 'Function'}{count}"
        if names[count : count + 2] == ["out", "where"] and names[-1] == "signature":
            return f"Constant{count}"
    return None


def function_text(function: Callable[..., Any], name: str, full_name: str) -> str:
    """Write the stub of one public function."""
    elementwise = elementwise_type(function)
    if elementwise is not None:
        said = (inspect.getdoc(function) or "").partition("\n\n")[0]
        return f"{name}: {elementwise}\n" + (f'"""{said}"""\n' if said else "")  # which editors show of a variable
    try:
        found = variants(function, full_name)
    except ValueError:  # written in C: nobody says what it takes
        return f"def {name}(*args: Any, **kwargs: Any) -> {FACTS.get(name, 'Any')}: ...\n"
    return definitions(name, found)


def definitions(name: str, found: list[tuple[str, str]], doc: str | None = None, remark: str = "") -> str:
    """Write a function, with overloads if it has several variants."""
    mark = "@overload\n" if len(found) > 1 else ""
    body = "..." if doc is None else f"\n    {doc}"
    bodies = [body, *["..."] * (len(found) - 1)]
    return "".join(
        f"{mark}def {name}({params}) -> {result}: {remark}{body}\n"
        for (params, result), body in zip(found, bodies, strict=True)
    )


# ---------------------------------------------------------------- stubs


def namespace_stub(module: ModuleType, library: ModuleType | None, prefix: str, title: str) -> str:
    """Write the stub of a namespace; what it shares with NumPy's is imported from there."""
    lines, body, taken = [], [], set()
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if library is not None and getattr(library, name, None) is value:
            lines.append(f"from {library.__name__} import {name} as {name}")
        elif isinstance(value, ModuleType):
            lines.append(f"from {value.__name__.rpartition('.')[0]} import {name} as {name}")
        elif isinstance(value, type):
            lines.append(f"from {value.__module__} import {value.__name__} as {name}")
        elif not inspect.isfunction(value):
            lines.append(f"from {type(value).__module__} import {name} as {name}")
        elif name in taken:
            continue
        else:
            body.append(function_text(value, name, prefix + name))
    if library is np:
        passed = [name for name in sorted(PASSED_ON) if isinstance(getattr(np, name, None), ModuleType)]
        lines += [f"from numpy import {name} as {name}" for name in passed]
    names = "".join(f'    "{name}",\n' for name in module.__all__)
    return file_text(title, lines, [f"__all__ = [\n{names}]\n", *body])


# What Python itself puts into a class; the last two from 3.13 on.
NO_MEMBERS = {
    *("__doc__", "__module__", "__slots__", "__annotations__", "__weakref__", "__dict__"),
    *("__firstlineno__", "__static_attributes__"),
}


def member_stub() -> str:
    """Write the base class that tells type checkers of Tensor's bound members."""
    own = declared_in_class()
    body = []
    for name, member in sorted(vars(gradmgr.Tensor).items()):
        if name in own or name in NO_MEMBERS:
            continue
        if name.startswith("_") and not name.startswith("__"):
            continue
        body.append(member_text(name, member))
    text = "".join("".join(f"    {line}\n" if line else "\n" for line in part.split("\n")) for part in body)
    head = 'class TensorMembers:\n    """What is bound onto Tensor at import."""\n\n'
    return file_text("The members of Tensor that are bound at import, for type checkers.", [], [head + text])


def declared_in_class() -> set[str]:
    """Return the names that the source of Tensor defines itself."""
    tree = ast.parse((PACKAGE / "_engine" / "tensor.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Tensor"]
    functions = {node.name for node in classes[0].body if isinstance(node, ast.FunctionDef)}
    assigned = [node.targets[0] for node in classes[0].body if isinstance(node, ast.Assign)]
    return functions | {target.id for target in assigned if isinstance(target, ast.Name)}


def member_text(name: str, member: Any) -> str:
    """Write the stub of one member; nothing for one that only says what to use instead."""
    doc = first_sentence(member)
    if isinstance(member, property):
        result = result_of(name, member.fget)
        if result == "NoReturn" or name == "data":
            return ""
        text = f"@property\n{definitions(name, [('self', result)], doc)}"
        settable = member.fset is not None and inspect.signature(member.fset).return_annotation != "NoReturn"
        return text + (f"@{name}.setter\n" + definitions(name, [("self, value: Any", "None")]) if settable else "")
    params = parameters(member)
    params[0] = params[0]._replace(name="self", type="Self")
    result = result_of(name, member)
    found = [(params, result)]
    if with_out(params) != params:
        found = [(with_out(params), result), (params, "Any")]
    texts = [(signature_text(given).replace("self: Self", "self", 1), kind) for given, kind in found]
    remark = "# type: ignore[override]\n    " if name in ("__eq__", "__ne__") else ""
    return definitions(name, texts, None if remark else doc, remark)


def result_of(name: str, function: Callable[..., Any]) -> str:
    """Return the type of what a member returns."""
    said = str(inspect.signature(function).return_annotation)
    if name in MEMBERS:
        return MEMBERS[name]
    if not is_open(said):
        return said
    in_place = re.fullmatch(r"__i\w+__", name) and f"__{name[3:]}" in vars(gradmgr.Tensor)
    return "Self" if in_place or (name.endswith("_") and not name.startswith("__")) else "Tensor"


def first_sentence(member: Any) -> str | None:
    """Return the first sentence of a docstring as a docstring; None where there is none."""
    text = inspect.getdoc(member)
    if not text:
        return None
    sentence = re.match(r".*?\.(?= |$)|.*", " ".join(text.partition("\n\n")[0].split()))
    return f'"""{sentence[0]}"""' if sentence else None


def file_text(title: str, lines: list[str], body: list[str]) -> str:
    """Join a stub out of its title, its imports and its body."""
    text = "".join(body)
    if " import bool as bool" in "".join(lines):  # a namespace with a type of this name
        lines = [*lines, "from builtins import bool as _bool"]
        text = re.sub(r'(?<!")\bbool\b', "_bool", text)
    words = set(re.findall(r"\w+", re.sub(r'(?s)""".*?"""', "", text)))
    needed = [f"from {IMPORTS[word]} import {word}" for word in sorted(words & IMPORTS.keys())]
    numpys = ["import numpy as np"] if "np" in words else []
    return HEAD.format(title=title) + "\n".join([*lines, *numpys, *needed]) + "\n\n" + text


def stubs() -> dict[Path, str]:
    """Return the text of each stub by its path, not yet laid out."""
    namespaces = (
        ("numpy/__init__.pyi", gradmgr.numpy, np, "", "Types of NumPy's namespace on Tensors."),
        ("numpy/linalg.pyi", gradmgr.numpy.linalg, np.linalg, "linalg.", "Types of linear algebra on Tensors."),
        ("numpy/fft.pyi", gradmgr.numpy.fft, np.fft, "fft.", "Types of Fourier transforms on Tensors."),
        ("special.pyi", gradmgr.special, None, "special.", "Types of special functions on Tensors."),
        ("nn/functional.pyi", gradmgr.nn.functional, None, "nn.", "Types of functions of neural networks."),
    )
    made = {PACKAGE / path: namespace_stub(*rest) for path, *rest in namespaces}
    made[PACKAGE / "_engine" / "tensor_members.pyi"] = member_stub()
    return made


def main() -> None:
    """Write the stubs and let ruff lay them out."""
    if not np.__version__.startswith("2.4."):
        raise SystemExit(
            f"make_stubs.py writes the signatures of NumPy 2.4 (pip install 'numpy==2.4.*'); found {np.__version__}"
        )
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
    paths = list(map(str, stubs()))
    for command in (("check", "--select", "I", "--fix"), ("format",)):
        subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", *paths], check=True)  # noqa: S603  # our own program


if __name__ == "__main__":
    main()
