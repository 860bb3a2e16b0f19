"""Rules of the architecture, checked on the sources: imports only go down, no mutable module state, no assert."""

import ast
import collections
import contextvars
import dis
import functools
import importlib
import itertools
import os
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import numpy as np
import pytest

import gradmgr
from gradmgr import distributions

ROOT = Path(gradmgr.__file__).parent

# From the ground up: a package or module may import those before it and itself, and no others of ours.
LAYERS = [
    *("errors", "_arrays", "_replay", "_engine", "_engine.history", "_compile"),
    *("ops", "special", "sparse", "numpy", "manager", "_transforms"),
    "distributions",
    *("vmap", "functional", "forward_ad", "function", "anomaly", "graph"),
    "interop",
    *("profiler", "nn._functions", "nn.functional", "nn.init", "nn.utils", "nn._modules", "nn", "optim"),
    *("serialization", "distributed", "compat"),
]

# What may change while a program runs: what is current, the op table, and what locks need.
MAY_CHANGE = {
    ("gradmgr._arrays.atomic", "error_treatment"),  # NumPy's: how floating-point errors are treated
    ("gradmgr._arrays.batched", "RULES"),
    ("gradmgr._arrays.captured", "_capturing"),
    ("gradmgr._arrays.listening", "_listener"),
    ("gradmgr._engine.collector", "_watch"),
    ("gradmgr._engine.context", "_current"),
    ("gradmgr._engine.history.modes", "_modes"),
    ("gradmgr._engine.turn_lock", "_locks"),
    ("gradmgr._engine.write_lock", "lock"),
    ("gradmgr._arrays.blocks", "_team"),
    ("gradmgr._arrays.native", "found"),  # the machine, looked for and tested once
    ("gradmgr._arrays.native_kernels", "kernels"),  # likewise
    ("gradmgr._arrays.large_products", "found"),
    ("gradmgr._arrays.onednn_library", "found"),
    ("gradmgr.manager", "_backwarding"),
    ("gradmgr._engine.turns", "turns"),
    ("gradmgr._engine.op", "OPS"),
    ("gradmgr._engine.entry", "KINDS"),
    ("gradmgr._engine.entry", "VJPS"),
    ("gradmgr._engine.observers", "_observers"),
    ("gradmgr.profiler._collect", "_innermost"),
    ("gradmgr._engine.templates", "_STAND_INS"),
    ("gradmgr.distributed._world", "_state"),
}


@functools.cache  # parsing all modules takes seconds
def package():
    """Our modules by name, parsed."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("gradmgr", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(), str(path))
    return found


def parsed(**sources):
    return {name.replace("__", "."): ast.parse(source) for name, source in sources.items()}


# ---------------------------------------------------------------- imports


def dynamic_import(node):
    """The module named by importlib.import_module("...") or __import__("...")."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if called in ("import_module", "__import__"):
            return str(node.args[0].value)
    return None


def imported(node, module, modules):
    """The modules, ours and others', that one node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            is_package = any(other.startswith(f"{module}.") for other in modules)
            parents = module.split(".")[: -node.level + is_package or None]
            base = ".".join([*parents, *([node.module] if node.module else [])])
        whole = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in modules else base for name in whole]
    name = dynamic_import(node)
    return [] if name is None else [name]


def is_ours(name):
    return name == "gradmgr" or name.startswith("gradmgr.")


def imports(modules):
    """(importer, imported, line, whether inside a function) for each import of a module of ours."""
    for module, tree in modules.items():
        in_function = {id(inner) for f in ast.walk(tree) if is_function(f) for inner in ast.walk(f)}
        for node in ast.walk(tree):
            for name in imported(node, module, modules):
                if is_ours(name):
                    yield module, name, node.lineno, id(node) in in_function
                    package_of_it = name.rpartition(".")[0]  # importing a.b runs a/__init__ first
                    if package_of_it and not f"{module}.".startswith(f"{package_of_it}."):
                        yield module, package_of_it, node.lineno, id(node) in in_function


def is_function(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def layer_of(module, layers):
    """Return the position of the innermost layer that a module lies in; the package itself comes last."""
    if module == "gradmgr":
        return len(layers)
    parts = module.split(".")[1:]
    names = [".".join(parts[:k]) for k in range(len(parts), 0, -1)]
    return next((layers.index(name) for name in names if name in layers), None)


def upward(modules, layers):
    unlisted = [module for module in modules if layer_of(module, layers) is None]
    problems = [f"{module} is in no layer: enter its package in LAYERS" for module in unlisted]
    for module, name, line, _ in imports(modules):
        own, other = layer_of(module, layers), layer_of(name, layers)
        if own is not None and (other is None or other > own or name == module):
            problems.append(f"{module}:{line} imports {name}, which is not below it")
    return problems


def circular_imports(modules):
    """Return the modules that import themselves through others."""
    imported_by = collections.defaultdict(set)
    for module, name, _, _ in imports(modules):
        imported_by[module].add(name)
    problems = []
    for start in modules:
        reached, waiting = set(), [start]
        while waiting:
            for name in imported_by[waiting.pop()] - reached:
                reached.add(name)
                waiting.append(name)
        if start in reached:
            problems.append(f"{start} imports itself through others")
    return problems


def deferred_imports(modules):
    """Return imports inside functions; gradmgr/__init__ alone may have them, so that it is imported fast."""
    return [
        f"{module}:{line} imports {name} inside a function"
        for module, name, line, in_function in imports(modules)
        if in_function and module != "gradmgr"
    ]


def test_gradmgr_imports_these_modules_when_first_used_and_no_others():
    """So that a program which does not use them spends no time on them."""
    program = "import sys, gradmgr; print(*[name for name in sys.modules if name.startswith('gradmgr')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603  # our own program
    unopened = set(package()) - set(done.stdout.split())
    packages = {"_compile", "_replay", "nn", "optim", "profiler", "distributed", "distributions", "interop", "compat"}
    assert {name if name.split(".")[1] not in packages else name.split(".")[1] for name in unopened} == {
        *packages,
        *(f"gradmgr.{name}" for name in ("forward_ad", "function", "functional", "serialization")),
        "gradmgr._engine.forward",
        *(f"gradmgr._arrays.{name}" for name in ("drawing", "large_products", "onednn_library", "products")),
        *(
            f"gradmgr._transforms.{name}"
            for name in (
                "checkpoint",
                "container_grad",
                "custom_op",
                "derivative",
                "gradcheck",
                "gradcheck_derivatives",
                "gradcheck_problem",
                "gradcheck_report",
                "jacobian",
                "notebook",
                "promotion",
                "randomness",
            )
        ),
        *(f"gradmgr._transforms.function_{name}" for name in ("apply", "call", "context", "node")),
    }
    for name in unopened:
        importlib.import_module(name)
    for name in gradmgr.__all__:
        assert getattr(gradmgr, name) is not None
        assert name in dir(gradmgr)


def test_a_star_import_leaves_numpy_as_it_is():
    names = {}
    exec("import numpy; from gradmgr import *", names)  # noqa: S102  # what a program may begin with
    assert names["numpy"] is sys.modules["numpy"]
    assert names["GradManager"] is gradmgr.GradManager


def test_every_layer_is_there():
    modules = package()
    found = {name for name in LAYERS for module in modules if f"{module}.".startswith(f"gradmgr.{name}.")}
    assert found == set(LAYERS)


def test_imports_only_go_down():
    assert upward(package(), LAYERS) == []


def test_no_circular_imports():
    assert circular_imports(package()) == []


def test_no_deferred_import_of_gradmgrs_own_modules():
    assert deferred_imports(package()) == []


def test_upward_imports_are_found():
    layers = ["low", "high"]
    for source in (
        "from gradmgr.high import f",
        "import gradmgr.high",
        "from gradmgr import high",
        "from . import high",
        "from .high import f",
        "from gradmgr import tensor",
        "def f():\n    from gradmgr import high",
        "import importlib\nimportlib.import_module('gradmgr.high')",
        "if TYPE_CHECKING:\n    from gradmgr.high import f",
    ):
        modules = parsed(gradmgr__low=source, gradmgr__high="", gradmgr="")
        assert len(upward(modules, layers)) == 1, source
    good = parsed(gradmgr__low="import numpy", gradmgr__high="from gradmgr import low\nfrom . import low", gradmgr="")
    assert upward(good, layers) == []
    (problem,) = upward(parsed(gradmgr__low="", gradmgr__new="", gradmgr__high="", gradmgr=""), layers)
    assert "gradmgr.new" in problem


def test_a_package_counts_where_a_module_in_it_is_imported():
    modules = parsed(gradmgr__ops="", gradmgr__ops__a="", gradmgr__ops__b="from gradmgr.ops.a import f", gradmgr="")
    assert upward(modules, ["ops"]) == []
    modules["gradmgr.low"] = ast.parse("from gradmgr.ops.a import f")
    assert upward(modules, ["ops.a", "low", "ops"]) == ["gradmgr.low:1 imports gradmgr.ops, which is not below it"]


def test_circles_are_found():
    modules = parsed(gradmgr__a="from gradmgr import b", gradmgr__b="from .c import f", gradmgr__c="import gradmgr.a")
    assert len(circular_imports(modules)) == 3
    assert circular_imports(parsed(gradmgr__a="from gradmgr.b import f", gradmgr__b="import numpy")) == []


def test_deferred_imports_are_found():
    for source in (
        "def f():\n    from gradmgr import low",
        "class C:\n    def m(self):\n        if 1:\n            import gradmgr.low",
        "async def f():\n    from .low import g",
        "g = lambda: __import__('gradmgr.low')",
    ):
        assert len(deferred_imports(parsed(gradmgr__high=source, gradmgr__low=""))) == 1, source
    assert (
        deferred_imports(parsed(gradmgr__high="import gradmgr.low\ndef f():\n    import scipy", gradmgr__low="")) == []
    )


# ---------------------------------------------------------------- state at module level

MUTABLE_MAKERS = {
    *("dict", "list", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter", "ChainMap"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "Lock", "RLock", "local", "Condition"),
    *("Event", "Semaphore", "count", "cycle", "iter", "array", "zeros", "ones", "empty", "SimpleNamespace", "Queue"),
}
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp, ast.GeneratorExp)
READERS = {"items", "values", "keys", "get", "index", "count", "copy", "isdisjoint", "issubset", "union"}


def makes_mutable(value):
    if isinstance(value, ast.Call):
        return (value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")) in (
            MUTABLE_MAKERS
        )
    if isinstance(value, ast.IfExp):
        return makes_mutable(value.body) or makes_mutable(value.orelse)
    if isinstance(value, (ast.BinOp, ast.BoolOp)):
        return any(makes_mutable(part) for part in ast.iter_child_nodes(value))
    return isinstance(value, DISPLAYS)


def outside_functions(tree):
    """The statements that run at import, those of class bodies too."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not is_function(node):
            waiting += [
                inner for inner in ast.iter_child_nodes(node) if isinstance(inner, (ast.stmt, ast.excepthandler))
            ]


def bindings(node):
    """(name, value) pairs of an assignment; a tuple of names is bound to a tuple of values."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]
            yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def only_read(name, tree):
    """Whether every use of a name looks into what it names and does not let go of it."""
    parents = parents_in(tree)
    stores = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and name in (node.name, node.asname):
            return False
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        user = parents[id(node)]
        if isinstance(node.ctx, ast.Store):
            stores += 1
        elif not is_reading(node, user, parents):
            return False
    return stores == 1


@functools.cache
def parents_in(tree):
    """For the id of each node of a module, the node that holds it."""
    return {id(inner): node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)}


def is_reading(node, user, parents):
    if isinstance(user, ast.Subscript):
        return user.value is not node or isinstance(user.ctx, ast.Load)
    if isinstance(user, ast.Attribute):
        call = parents[id(user)]
        return user.attr in READERS and isinstance(call, ast.Call) and call.func is user
    if isinstance(user, ast.Call):
        return isinstance(user.func, ast.Name) and user.func.id in ("len", "frozenset", "tuple", "sorted", "enumerate")
    if isinstance(user, ast.keyword):
        return user.arg is None  # f(**name) copies
    return isinstance(user, (ast.For, ast.comprehension, ast.Compare, ast.Starred))


def is_used_elsewhere(name, module, modules):
    """Return whether another module imports the name or uses it as an attribute."""
    own = module.rpartition(".")[2]
    for other, tree in modules.items():
        attributes, imports = attributes_and_imports(tree)
        if (own, name) in attributes:
            return True
        for node in imports if other != module else ():
            names = {alias.name for alias in node.names}
            if names & {name, "*"} and module in imported(node, other, modules):
                return True
    return False


@functools.cache
def attributes_and_imports(tree):
    """The pairs (name, attribute) of `name.attribute` in a module, and its `from ... import` statements."""
    attributes, imports = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            attributes.add((getattr(node.value, "id", None), node.attr))
        elif isinstance(node, ast.ImportFrom):
            imports.append(node)
    return frozenset(attributes), tuple(imports)


def is_constant(name, node, module, modules):
    """Whether a display is proven to stay as it is.

    It is bound once, to one name of the module, is not empty (what for?), and every use of it, all
    in its own module, reads an element, iterates or copies.
    """
    tree = modules[module]
    if node not in tree.body or len(getattr(node, "targets", [None])) > 1 or isinstance(node.value, ast.GeneratorExp):
        return False
    empty = not (getattr(node.value, "elts", None) or getattr(node.value, "keys", None) or is_comprehension(node.value))
    if empty or not isinstance(node.value, DISPLAYS):
        return False
    return only_read(name, tree) and not is_used_elsewhere(name, module, modules)


def is_comprehension(value):
    return isinstance(value, (ast.DictComp, ast.ListComp, ast.SetComp))


def module_state(modules, allowed=MAY_CHANGE):
    """Return what can change after import at module level or in a class body."""
    problems = []
    for module, tree in modules.items():
        for node in outside_functions(tree):
            for name, value in bindings(node):
                known = (module, name) in allowed or name == "__all__"
                if makes_mutable(value) and not known and not is_constant(name, node, module, modules):
                    problems.append(f"{module}:{node.lineno} {name} can change; make it a tuple, frozenset or proxy")
        problems += [
            f"{module}:{node.lineno} {what}" for node in ast.walk(tree) if (what := global_or_cache(node)) is not None
        ]
    return problems


def global_or_cache(node):
    if isinstance(node, ast.Global):
        return f"global {', '.join(node.names)}"
    for decorator in getattr(node, "decorator_list", []):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in ("cache", "lru_cache"):
            return f"{node.name} has a cache"
    return None


def test_no_mutable_state_at_module_level():
    assert module_state(package()) == []


def test_the_listed_mutable_state_exists():
    """The list of exceptions names nothing that is gone."""
    for module, name in MAY_CHANGE:
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    "source",
    [
        "cache = {}",
        "cache: dict[str, int] = {}",
        "seen = []",
        "seen = set()",
        "seen = [k for k in range(3)]\nseen.append(3)",
        "a, b = 1, {}",
        "x = y = {}",
        "import collections\nx = collections.defaultdict(list)",
        "import threading\nlock = threading.Lock()",
        "from contextvars import ContextVar\nv = ContextVar('v')",
        "if True:\n    cache = {}",
        "try:\n    cache = {}\nexcept KeyError:\n    pass",
        "class C:\n    table = {1: 2}",
        "import itertools\nnext_id = itertools.count()",
        "import numpy as np\nbuffer = np.zeros(3)",
        "pool = (k for k in range(3))",
        "n = 0\ndef f():\n    global n\n    n += 1",
        "import functools\n@functools.lru_cache(maxsize=None)\ndef f(x): return x",
        "from functools import cache\n@cache\ndef f(x): return x",
        "T = {'a': 1}\ndef f():\n    T['b'] = 2",
        "T = {'a': 1}\ndef f():\n    del T['a']",
        "T = {'a': 1}\ndef f():\n    T.update(b=2)",
        "T = {'a': 1}\ndef f():\n    return T",
        "T = {'a': 1}\ndef f(g):\n    g(T)",
        "T = {'a': 1}\ndef f():\n    for k in T: pass\nT = {}",
        "T = {'a': 1}\nU = T",
        "T = {} or None",
    ],
)
def test_mutable_state_is_found(source):
    assert module_state(parsed(gradmgr__a=source)) != []


def test_state_that_another_module_imports_is_found():
    reading = "T = {'a': 1}\ndef f(k):\n    return T[k]"
    assert module_state(parsed(gradmgr__a=reading, gradmgr__b="import numpy")) == []
    for taking in (
        "from gradmgr.a import T",
        "from .a import T",
        "from gradmgr import a\na.T['b'] = 2",
        "from gradmgr.a import *",
    ):
        assert len(module_state(parsed(gradmgr__a=reading, gradmgr__b=taking))) == 1, taking


def test_constants_are_allowed():
    source = (
        "from types import MappingProxyType\nA = (1, 2)\nB = frozenset((1,))\nC = MappingProxyType({'a': 1})\n"
        "D = {'a': 1}\nfor k, v in D.items(): print(D[k], k in D, len(D))\nprint(**D)\n"
        "def f():\n    local = {}\n    local['a'] = 1\n    return local\n__all__ = ['f']"
    )
    assert module_state(parsed(gradmgr__a=source)) == []


CHANGEABLE = (
    *(dict, list, set, bytearray, collections.deque, np.ndarray, contextvars.ContextVar, threading.local),
    *(type(threading.Lock()), type(threading.RLock()), itertools.count, types.GeneratorType, weakref.WeakSet),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)


# Operations, whose rules are declared beside them, views of these rules, r_ and c_, and classes made by a metaclass.
DECLARED = ("Op", "Primitive", "RulesOfPrimitives", "_Joiner", "_Joined", "_OfPlainValues")


UNFROZEN = types.SimpleNamespace(frozen=False)


def changeable_attributes(modules, trees, allowed=MAY_CHANGE):
    """The same question put to the imported modules: it sees what functions returned, too."""
    known = [getattr(importlib.import_module(module), name) for module, name in allowed]
    problems = []
    for module in modules:
        tree = trees.get(module.__name__)
        for name, value in vars(module).items():
            is_class = isinstance(value, type)  # its own class may be of ours
            of_ours = not is_class and is_ours(type(value).__module__) and type(value).__name__ not in DECLARED
            of_ours = of_ours and not isinstance(value, tuple)  # named tuples stay what they are
            of_ours = of_ours and not getattr(type(value), "__dataclass_params__", UNFROZEN).frozen
            suspect = isinstance(value, CHANGEABLE) or of_ours or hasattr(value, "cache_info")
            if not suspect or name.startswith("__") or any(value is one for one in known):
                continue
            if not (tree and only_read(name, tree)):
                problems.append(f"{module.__name__}.{name} is a {type(value).__name__}")
    return problems


def test_no_mutable_object_at_module_level():
    for name in package():
        importlib.import_module(name)
    modules = [module for name, module in sorted(sys.modules.items()) if is_ours(name)]
    assert len(modules) == len(package())
    assert changeable_attributes(modules, package()) == []


def test_mutable_objects_are_found():
    module = types.ModuleType("gradmgr.bad")
    for value in ({}, [], np.zeros(2), threading.Lock(), gradmgr.GradManager(), itertools.count()):
        module.made_by_a_function = value
        assert len(changeable_attributes([module], {})) == 1
    for value in ((1, "a", frozenset(), np.float64(1), np.add), distributions.constraints.positive):
        module.made_by_a_function = value
        assert changeable_attributes([module], {}) == []


# ---------------------------------------------------------------- asserts, the environment, optional libraries


def asserts(modules):
    """Find assert statements and AssertionError, but as the base of a class: GradcheckError may fail a test, too."""
    return [
        f"{module}:{node.lineno} assert"
        for module, tree in modules.items()
        for bases in [{base for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for base in each.bases}]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Name) and node.id == "AssertionError" and node not in bases)
    ]


# MPI's launcher tells a rank its number by variables, of which none is gradmgr's.
READS_THE_ENVIRONMENT = {"gradmgr.distributed._local_ranks"}


def environment(modules):
    return [
        f"{module}:{node.lineno} reads the environment"
        for module, tree in modules.items()
        if module not in READS_THE_ENVIRONMENT
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb", "putenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os")
    ]


# ---------------------------------------------------------------- handlers


def codes_in(code):
    """Yield a code object and those in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def jumps_past_handlers(code):
    """Yield the lines of jumps back in a loop that the with or try statement around the loop does not cover.

    On CPython 3.13 that is so of the jump for a condition at the end of a loop: a signal handler that is called there,
    as for Ctrl-C, raises past `__exit__`, `finally` and `except BaseException`. Loops in a function of their own do not
    suffer from it.
    """
    steps = list(dis.get_instructions(code))
    at = {step.offset: k for k, step in enumerate(steps)}
    table = dis._parse_exception_table(code)

    def cleans_up_at(offset):
        """Return where what is raised is handled by a with statement, by `finally` or by `except BaseException`."""
        for _ in range(5):
            offset = next((entry.target for entry in table if entry.start <= offset < entry.end), None)
            if offset is None:
                return None
            handler = steps[at[offset] :]
            if handler[0].opname == "PUSH_EXC_INFO":
                is_typed = any(step.opname == "CHECK_EXC_MATCH" for step in handler[1:6])
                return None if is_typed and handler[1].argval != "BaseException" else offset
            offset = next(step.offset for step in handler if step.opname == "RERAISE")  # of a comprehension
        return None

    for step in steps:
        if step.opname == "JUMP_BACKWARD" and cleans_up_at(step.offset) != cleans_up_at(step.argval):
            yield step.positions.lineno


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before CPython 3.12 every jump is covered")
def test_no_signal_passes_by_a_handler():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        for code in codes_in(compile(path.read_text(), str(path), "exec"))
        for line in jumps_past_handlers(code)
    ]
    assert found == []


def test_no_assert():
    assert asserts(package()) == []


def test_no_environment_variable():
    assert environment(package()) == []


def test_asserts_and_environment_variables_are_found():
    assert len(asserts(parsed(gradmgr__a="def f(x):\n    if x:\n        assert x > 0"))) == 1
    assert len(asserts(parsed(gradmgr__a="def f():\n    raise AssertionError('no')"))) == 1
    assert asserts(parsed(gradmgr__a="asserted = 'assert'")) == []
    assert len(environment(parsed(gradmgr__a="import os\nDEBUG = os.environ.get('DEBUG')"))) == 1
    assert len(environment(parsed(gradmgr__a="from os import getenv"))) == 1


def modules_after(statement, *paths):
    """The names of the modules loaded in a fresh interpreter after a statement; `paths` come first on its path."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    path = os.pathsep.join([*map(str, paths), str(ROOT.parent)])
    done = subprocess.run(  # noqa: S603  # our own interpreter, our own text
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.fixture
def with_cupy(tmp_path):
    """A folder in which `import cupy` succeeds, so that the test can fail where CuPy is not installed."""
    (tmp_path / "cupy.py").write_text("class ndarray: pass\n")
    return tmp_path


def test_importing_and_using_gradmgr_imports_no_cupy(with_cupy):
    program = "import gradmgr, gradmgr.numpy as np; np.sum(gradmgr.tensor([1.0]) * 2).item()"
    assert "cupy" not in modules_after(program, with_cupy)
    assert "cupy" in modules_after(f"import cupy; {program}", with_cupy)


def test_an_import_of_cupy_is_found(with_cupy, tmp_path):
    (tmp_path / "bad_library.py").write_text("try:\n    import cupy\nexcept ImportError:\n    cupy = None\n")
    assert "cupy" in modules_after("import bad_library", with_cupy)


def test_numpy_is_the_only_dependency():
    more = modules_after("import gradmgr") - modules_after("import numpy, numpy.lib.array_utils")
    tops = {name.partition(".")[0] for name in more}
    assert tops - set(sys.stdlib_module_names) - {"gradmgr", "numpy"} <= {name for name in tops if name.startswith("_")}
