"""Write the reference: a page for each public module, or chapter of one, from its names and their docstrings.

A page begins with a table of its names, and goes on with what Sphinx's autodoc makes of each. Signatures are those of
the type stubs where a module has one: of the first overload, the one for Tensors. The pages are written anew at each
build, and only where they changed.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

import gradmgr

DOCS = Path(__file__).parents[1]
PACKAGE = Path(gradmgr.__file__).parent
GENERATED = DOCS / "reference" / "generated"
NUMPYS_PAGE = "https://numpy.org/doc/stable/reference/generated/{}.html"


class Page(NamedTuple):
    """A page of the reference.

    Attributes:
        name: of its file.
        title: its heading.
        module: the module whose names it has.
        names: those of its names that stand here.
        intro: what stands before them, in reStructuredText.
    """

    name: str
    title: str
    module: str
    names: tuple[str, ...]
    intro: str = ""


# Modules with a page of their own. Those without `__all__` name what is public.
MODULES = (
    *("gradmgr.special", "gradmgr.sparse", "gradmgr.nn", "gradmgr.nn.functional", "gradmgr.nn.init", "gradmgr.optim"),
    *("gradmgr.nn.utils.rnn", "gradmgr.optim.lr_scheduler", "gradmgr.distributions"),
    *("gradmgr.distributions.transforms", "gradmgr.distributions.constraints"),
    *("gradmgr.distributed", "gradmgr.functional", "gradmgr.forward_ad", "gradmgr.function", "gradmgr.graph"),
    *("gradmgr.anomaly", "gradmgr.interop", "gradmgr.profiler", "gradmgr.serialization", "gradmgr.errors"),
    *("gradmgr.compat.autograd", "gradmgr.compat.autograd.extend", "gradmgr.compat.autograd.differential_operators"),
    *("gradmgr.compat.autograd.misc", "gradmgr.compat.autograd.misc.flatten"),
    *("gradmgr.compat.autograd.misc.fixed_points", "gradmgr.compat.autograd.misc.optimizers"),
    *("gradmgr.compat.autograd.misc.tracers", "gradmgr.compat.autograd.test_util"),
    *("gradmgr.compat.autograd.builtins", "gradmgr.compat.autograd.core", "gradmgr.compat.autograd.tracer"),
    *("gradmgr.compat.autograd.util", "gradmgr.compat.autograd.wrap_util"),
)
WITHOUT_ALL = {
    "gradmgr.serialization": ("save", "load"),
    "gradmgr.compat.autograd.misc": ("const_graph",),  # its other names are those of modules
}
MANAGERS = ("GradManager", "GradManagerGroup", "AttachSpec", "BackwardRun", "get_backwarding_grad_manager")

# Chapters of gradmgr.numpy: the modules of gradmgr.ops that make their functions, and aliases that no module imports.
CHAPTERS = {
    "creation": ("Making arrays", ("create", "layout", "convert", "grids", "tensor"), ()),
    "elementwise": (
        "Elementwise functions",
        ("arithmetic", "elementwise", "extrema", "floating_point", "bessel"),
        ("angle", "around", "imag", "real", "round"),
    ),
    "shapes": ("Shapes, joining and padding", ("shape", "join", "edit", "pad"), ("concat", "permute_dims")),
    "indexing": ("Picking and putting", ("pick", "put"), ()),
    "reductions": (
        "Sums, means and other reductions",
        ("reduce", "running", "nan_functions", "statistics"),
        ("amax", "amin"),
    ),
    "order": ("Sorting, sets and quantiles", ("order", "quantiles", "histograms", "_array_api"), ()),
    "products": ("Products", ("products", "ufuncs"), ()),
    "calculus": ("Differences, integrals and polynomials", ("calculus", "polynomial"), ()),
    "apply": ("Functions of functions", ("apply",), ()),
    "constant": ("Results without a derivative", ("constant",), ("can_cast", "finfo", "iinfo")),
}


# ---------------------------------------------------------------- which names stand on which page


def public_names(module: str) -> tuple[str, ...]:
    """Return the names that a module offers, without the modules among them."""
    found = import_module(module)
    if module in WITHOUT_ALL:
        names: Iterable[str] = WITHOUT_ALL[module]
    elif module == "gradmgr.errors":
        names = [name for name, value in vars(found).items() if isinstance(value, type) and value.__module__ == module]
    else:
        names = sorted(found.__all__, key=str.lower)
    return tuple([name for name in names if not isinstance(getattr(found, name), ModuleType)])


@cache
def pages() -> tuple[Page, ...]:
    """Return all pages, in the order of the table of contents."""
    rest = tuple([name for name in public_names("gradmgr") if name not in (*MANAGERS, "Tensor")])
    return (
        Page("gradmgr", "gradmgr: the package's own functions", "gradmgr", rest),
        Page("manager", "GradManager and groups of managers", "gradmgr", MANAGERS),
        Page("tensor", "Tensor", "gradmgr", ("Tensor",)),
        Page("gradmgr.numpy", "gradmgr.numpy", "gradmgr.numpy", ()),
        *numpy_chapters(),
        Page("gradmgr.numpy.linalg", "Linear algebra", "gradmgr.numpy.linalg", public_names("gradmgr.numpy.linalg")),
        Page("gradmgr.numpy.fft", "Fourier transforms", "gradmgr.numpy.fft", public_names("gradmgr.numpy.fft")),
        *(Page(name, name, name, public_names(name)) for name in MODULES),
    )


def numpy_chapters() -> Iterator[Page]:
    """Yield the chapters of gradmgr.numpy."""
    left = dict.fromkeys(public_names("gradmgr.numpy"))
    made_by = _modules_of_names()
    for name in [name for _, _, more in CHAPTERS.values() for name in more]:
        made_by.pop(name, None)
    for chapter, (title, modules, more) in CHAPTERS.items():
        names = [name for name in left if name in more or made_by.get(name) in modules]
        for name in names:
            del left[name]
        intro = (
            "Functions of ``gradmgr.numpy``, by the names and with the arguments of NumPy's. Shapes, dtypes and the "
            "types of errors are NumPy's, too; an error begins with the name of the function that was called, and a "
            "call that raises has changed nothing."
        )
        yield Page(f"numpy.{chapter}", title, "gradmgr.numpy", tuple(sorted(names)), intro)
    intro = "Types, constants and functions of ``gradmgr.numpy`` that are NumPy's own."
    yield Page("numpy.types", "Types and constants", "gradmgr.numpy", tuple(left), intro)


def _modules_of_names() -> dict[str, str]:
    """Map the names that gradmgr.numpy imports to the last part of the module that makes them."""
    tree = ast.parse((PACKAGE / "numpy" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    return {a.asname or a.name: str(node.module).rpartition(".")[2] for node in imports for a in node.names}


def documented_names() -> dict[str, str]:
    """Map every public name, written in full, to the name of its page."""
    return {f"{page.module}.{name}": page.name for page in pages() for name in page.names}


# ---------------------------------------------------------------- what a page says


def write_pages() -> None:
    """Write all pages; those that are as before are not touched, so that Sphinx need not read them again."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    first = first_names()
    wanted = {f"{page.name}.rst": text_of(page, first) for page in pages()}
    for old in GENERATED.glob("*.rst"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        path = GENERATED / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


@cache
def first_names() -> dict[int, str]:
    """Map the identity of each function and class to the name under which it is described: the first, in full."""
    found: dict[int, str] = {}
    for full in documented_names():
        value = value_of(full)
        if is_described(value):
            found.setdefault(id(value), full)
    return found


def value_of(full: str) -> Any:
    """Return what a full name names."""
    module, _, name = full.rpartition(".")
    return getattr(import_module(module), name)


def is_described(value: Any) -> bool:
    """Tell whether a value is a function or class of gradmgr, with a docstring of its own."""
    module = getattr(value, "__module__", None) or ""
    return (inspect.isroutine(value) or inspect.isclass(value)) and not module.startswith(("numpy", "builtins"))


def text_of(page: Page, first: dict[int, str]) -> str:
    """Return the reStructuredText of a page."""
    bar = "=" * len(page.title)
    parts = [page.title, bar, "", page.intro, ""]
    if not page.intro and page.name == page.module:
        parts += [f".. automodule:: {page.module}", "", ".. currentmodule:: None", ""]
    if page.name == "gradmgr.numpy":
        parts += [".. toctree::", "", *(f"   {each.name}" for each in numpy_chapters()), ""]
    full = [f"{page.module}.{name}" for name in page.names]
    described = [name for name in full if first.get(id(value_of(name))) == name]
    if len(described) > 1:
        parts += [".. autosummary::", "   :nosignatures:", ""]
        parts += [*(f"   ~{name}" for name in described if not _is_opaque(name)), ""]
    for name in described:
        parts += _entry(name)
    others = [name for name in full if name not in described]
    for name in others:
        value = value_of(name)
        same = first.get(id(value)) if is_described(value) else None
        if same is not None:
            parts += [*_names("data", [name]), f"   The same as :py:obj:`{same}`.", ""]
    passed = [name for name in others if not is_described(value_of(name))]
    if page.module.startswith("gradmgr.numpy") and passed:
        parts += [*_names("data", passed), "   The same as NumPy's name.", ""]
    else:
        for name in passed:
            parts += [*_names("data", [name]), f"   {_described(value_of(name))}", ""]
    return "\n".join(parts) + "\n"


def _names(kind: str, full: list[str], signature: str = "") -> list[str]:
    """Return the head of an entry for names of one module, which are shown without it, as autodoc shows its own."""
    module = full[0].rpartition(".")[0]
    shown = [name.rpartition(".")[2] + signature for name in full]
    before = f".. py:{kind}:: "
    more = [" " * len(before) + name for name in shown[1:]]
    return [before + shown[0], *more, f"   :module: {module}", ""]


def _described(value: Any) -> str:
    """Return a sentence on a value that has no docstring of its own."""
    if isinstance(value, type):
        return f"Python's ``{value.__name__}``."
    if isinstance(value, Mapping):
        return f"A read-only table, by these names: {', '.join(f'``{key}``' for key in value)}."
    made = f"of the class ``{type(value).__name__.lstrip('_')}``"
    if type(value).__repr__ is object.__repr__:  # an address
        return as_rst([f"{inspect.getdoc(value)} It is {made}."])[0]
    return f"``{value!r}``, {made}."


def _is_opaque(name: str) -> bool:
    """Tell whether Python cannot read the signature of a function: one of NumPy's in C, handed on."""
    value = value_of(name)
    try:
        return inspect.isroutine(value) and inspect.signature(value) is None
    except ValueError:
        return True


def _entry(name: str) -> list[str]:
    value = value_of(name)
    if _is_opaque(name):
        signature, result = stub_signatures()[name]
        head = _names("function", [name], f"{signature} -> {result}")
        return [*head, *(f"   {line}" for line in _status(name)), ""]
    if not inspect.isclass(value):
        return [f".. autofunction:: {name}", ""]
    if issubclass(value, BaseException):
        return [f".. autoexception:: {name}", "   :show-inheritance:", ""]
    left_out = [*refused_members(value), "run"]  # `run` of modes is what the functions call that they decorate
    if name != "gradmgr.nn.Module":  # what every layer shows of itself
        left_out.append("extra_repr")
    options = ["   :members:", f"   :exclude-members: {', '.join(left_out)}"]
    bases = [base for base in value.__bases__ if base is not object]
    if not all(is_public_class(base) for base in bases):  # what it has from there is its own, to a reader
        public = [each.__name__ for each in value.__mro__[1:] if is_public_class(each)]
        options.append(f"   :inherited-members: {', '.join(public)}")
    if any(is_public_class(base) for base in value.__mro__[1:-1]):
        options.append("   :show-inheritance:")
    return [f".. autoclass:: {name}", *options, "", *_table_of_refused(value)]


def is_public_class(value: type) -> bool:
    """Tell whether a reader may know a class: it is in the reference, or not of gradmgr."""
    return id(value) in first_names() or not value.__module__.startswith("gradmgr")


def refused_members(value: type) -> dict[str, str]:
    """Map the properties of a class that only raise to what they say in their docstrings."""
    found = {name: member for name, member in vars(value).items() if isinstance(member, property)}
    return {
        name: member.__doc__ or ""
        for name, member in sorted(found.items())
        if getattr(member.fget, "__annotations__", {}).get("return") == "NoReturn"
    }


def _table_of_refused(value: type) -> list[str]:
    """Return a table of the names that a class has only to say what to write instead."""
    instead = {name: text.partition(": write ")[2] for name, text in refused_members(value).items()}
    rows = [f"   * - ``{name}``\n     - ``{text}``" for name, text in instead.items() if text]
    if not rows:
        return []
    title = "Names of PyTorch's methods that raise an AttributeError, which says what to write"
    return [f".. rubric:: {title}", "", ".. list-table::", "", *rows, ""]


# ---------------------------------------------------------------- signatures of the type stubs


STUBS = {
    "gradmgr.numpy": "numpy/__init__.pyi",
    "gradmgr.numpy.linalg": "numpy/linalg.pyi",
    "gradmgr.numpy.fft": "numpy/fft.pyi",
    "gradmgr.nn.functional": "nn/functional.pyi",
    "gradmgr.special": "special.pyi",
}
MEMBERS_OF_TENSOR = "_engine/tensor_members.pyi"


@cache
def stub_signatures() -> dict[str, tuple[str, str]]:
    """Map full names to signature and type of the result, by the first overload of the stub."""
    protocols = _protocols()
    found: dict[str, tuple[str, str]] = {}
    for module, file in STUBS.items():
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(f"{module}.{node.name}", _signature(node))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                made = protocols.get(ast.unparse(node.annotation))
                if made is not None:
                    found.setdefault(f"{module}.{node.target.id}", made)
    tree = ast.parse((PACKAGE / MEMBERS_OF_TENSOR).read_text(encoding="utf-8"))
    (members,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in members.body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(f"gradmgr.Tensor.{node.name}", _signature(node))
    return found


def _protocols() -> dict[str, tuple[str, str]]:
    """Map the names of classes of functions, such as `Ufunc1`, to the signature of a call."""
    tree = ast.parse((PACKAGE / "_engine" / "function_types.pyi").read_text(encoding="utf-8"))
    found: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            calls = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__call__"]
            inherited = [found[base] for base in map(ast.unparse, node.bases) if base in found]
            if calls:
                found[node.name] = _signature(calls[0])
            elif inherited:
                found[node.name] = inherited[0]
    return found


def _signature(node: ast.FunctionDef) -> tuple[str, str]:
    arguments = node.args
    for group in arguments.posonlyargs, arguments.args:
        if group and group[0].arg == "self":
            del group[0]
            break
    result = "" if node.returns is None else ast.unparse(node.returns)
    # The stubs name Python's bool so where `bool` is NumPy's.
    return re.sub(r"\b_bool\b", "bool", f"({ast.unparse(arguments)})"), re.sub(r"\b_bool\b", "bool", result)


def _signature_of(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    if what == "property":
        return signature, result
    # A default that is a function is written as in a stub: Sphinx cannot read what Python prints of it.
    readable = signature and re.sub(r"<function [^>]*>", "...", signature)
    return stub_signatures().get(name, (readable, result))


def _bases_of(app: Sphinx, name: str, obj: Any, options: Any, bases: list[type]) -> None:
    """Show for a base that the reference does not have those of its own that it does."""
    shown: dict[type, None] = {}
    for base in bases:
        known = [each for each in base.__mro__ if is_public_class(each)] if isinstance(base, type) else [base]
        shown[known[0]] = None
    bases[:] = [base for base in shown if base is not object]


# ---------------------------------------------------------------- docstrings


SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)")
SPECIAL = re.compile(r"([\\*|]|(?<=\w)_(?!\w))")
FIELD = re.compile(r"Alias for field number \d+")
ITEM = re.compile(r"^\s*(?:[*-] |\*{0,2}\w+(?:, \*{0,2}\w+)*: )")


def as_rst(lines: list[str]) -> list[str]:
    r"""Return a docstring in reStructuredText: code between single backquotes, everything else as it is.

    >>> as_rst(["Add `y` to |x|, as x_ of *args."])
    ['Add ``y`` to \\|x\\|, as x\\_ of \\*args.']
    """
    found: list[str] = []
    paragraph: list[str] = []
    in_example = False
    for line in [*lines, ""]:
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if in_example or not line.strip():
            if paragraph:
                found += _escaped("\n".join(paragraph)).split("\n")
                paragraph = []
            found.append(line)
        else:
            paragraph.append(line)
    return found[:-1]


def _escaped(text: str) -> str:
    parts: list[str] = []
    end = 0
    for match in SPAN.finditer(text):
        parts += [_plain(text[end : match.start()]), f"``{match[1]}``", "\\ " if match[2] else "", match[2]]
        end = match.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    lines = []
    for line in text.split("\n"):
        item = ITEM.match(line)
        start = item.end() if item else 0
        lines.append(line[:start] + SPECIAL.sub(r"\\\1", line[start:]))
    return "\n".join(lines)


@cache
def coverage() -> dict[str, list[str]]:
    """Map the full names of NumPy's functions to their rows of the coverage page."""
    found: dict[str, list[str]] = {}
    module = ""
    for line in (DOCS / "coverage.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            module = line.removeprefix("## ")
        elif line.startswith("| `"):
            name, *cells = [cell.strip() for cell in line.strip("|").split(" |")]
            found[f"gradmgr.{module}.{name.strip('`')}"] = cells
    return found


def _status(name: str) -> list[str]:
    """Return what the coverage page says of a function of NumPy's."""
    cells = coverage().get(name)
    if cells is None:
        return []
    status, orders, forward, cupy, vmap, _ = cells
    facts = [status + (f" to {orders} order" if orders else "")]
    facts += ["forward mode: " + forward] if forward else []
    facts += ["on CuPy's arrays: " + cupy.replace("`", "``")] if cupy else []
    facts += ["in vmap: " + vmap] if vmap else []
    numpys = name.removeprefix("gradmgr.")
    facts.append(f"`NumPy's own page <{NUMPYS_PAGE.format(numpys)}>`__")
    return ["", "; ".join(facts)[0].upper() + "; ".join(facts)[1:] + "."]


def _docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if lines and FIELD.fullmatch(lines[0]):  # Python's own text
        lines[:] = []
    lines[:] = as_rst(lines)
    if what == "property":
        lines[:0] = ["..", ""]  # or napoleon would read "where it is: a device" as a type and its description
    if what == "function":
        lines += _status(name)


def _unlink_builtins(app: Sphinx, doctree: nodes.document) -> None:
    """Take the links from Python's own types: "bool" in a signature is not `gradmgr.numpy.bool`."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link.get("refdomain") == "py" and hasattr(builtins, link["reftarget"]):
            link.replace_self(nodes.Text(link["reftarget"]))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Write the pages when the build begins; give autodoc the stubs' signatures and readable docstrings."""
    app.connect("builder-inited", lambda app: write_pages())
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", _signature_of)
    app.connect("autodoc-process-bases", _bases_of)
    app.connect("doctree-read", _unlink_builtins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
