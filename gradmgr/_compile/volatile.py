"""What never gives the same answer twice: the clock, random numbers, files, the system. A list, not an analysis."""

from __future__ import annotations

import sys
import types
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._compile.code_names import EMPTY_CALL

# By module: what of it gives the same answer each time, or only writes.
_VOLATILE = MappingProxyType(
    {
        "io": "BufferedIOBase BytesIO IOBase RawIOBase StringIO TextIOBase",
        "os": "curdir fspath linesep name path pathsep sep",
        "os.path": "basename commonpath dirname join normpath sep split splitext",
        "random": "",
        "secrets": "",
        "socket": "",
        "sys": "byteorder float_info hexversion implementation maxsize platform stderr stdout version version_info",
        "time": "struct_time",
        "uuid": "NAMESPACE_DNS NAMESPACE_OID NAMESPACE_URL NAMESPACE_X500 UUID uuid3 uuid5",
    }
)
# What stands behind these modules.
_KNOWN_AS = MappingProxyType(
    {"genericpath": "os.path", "nt": "os", "ntpath": "os.path", "posix": "os", "posixpath": "os.path"}
)
_CLOCK = ("now", "today", "utcnow")  # of the classes of datetime
# What draws the same numbers each time where it is given a seed.
_SEEDED = ("default_rng", "MT19937", "PCG64", "PCG64DXSM", "Philox", "Random", "RandomState", "SFC64", "SeedSequence")
BUILTINS = frozenset(("input", "open"))


def is_of_library(module: Any) -> bool:
    """Return True if a module, given by its name, is gradmgr's, NumPy's, SciPy's, CuPy's or the standard library's."""
    root = str(module).partition(".")[0]
    return root in ("gradmgr", "numpy", "scipy", "cupy") or (root in sys.stdlib_module_names and root != "__main__")


def volatile(value: Any, path: tuple[str, ...], use: str) -> str | None:
    """Return what code reads that gives another answer each time, such as "time.perf_counter"; None if it does not.

    Args:
        value: what the root of a chain of names stands for.
        path: the attributes that are read of it.
        use: what the code does with it, as of `Chain`.
    """
    while isinstance(value, types.ModuleType):
        module = _known(value.__name__)
        steady = _VOLATILE.get(module, "").split()
        if not path or not is_of_library(module):
            return module if module in _VOLATILE or module == "numpy.random" else None
        name, *rest = path
        if module in _VOLATILE and name not in (*steady, *_SEEDED):
            return f"{module}.{name}"
        if name in steady and name != "path":
            return None
        value, path = getattr(value, name, None), tuple(rest)
    if isinstance(value, type) and path:
        value = getattr(value, path[0], None) if value.__module__ == "datetime" else value
    return _volatile_object(value, use)


def _known(module: str) -> str:
    return _KNOWN_AS.get(module, module.removeprefix("_"))


def _volatile_object(value: Any, use: str) -> str | None:
    module, name = _origin(value)
    module = "numpy.random" if module.startswith("numpy.random.") else _known(module)
    first, _, method = name.partition(".")
    if first in _SEEDED and not method and module in ("random", "numpy.random"):
        is_volatile = use == EMPTY_CALL if callable(value) else module == "random"  # else its state is compared
    elif module == "numpy.random":
        is_volatile = callable(value) and not isinstance(value, type)
    elif module == "datetime":
        is_volatile = method in _CLOCK
    else:
        is_volatile = (
            module in _VOLATILE and first not in _VOLATILE[module].split() and value not in (sys.stdout, sys.stderr)
        )
    return f"{module}.{name}" if is_volatile else None


def _origin(value: Any) -> tuple[str, str]:
    """Return the module of a function, of the class of a method or of the class of an object, and its name in it."""
    kind = type(value)
    is_known = is_of_library(kind.__module__) or kind.__module__.startswith("_cython")
    if not is_known or not hasattr(value, "__name__"):
        return kind.__module__, kind.__name__
    owner, name = getattr(value, "__self__", None), value.__name__
    if owner is np.random.mtrand._rand:
        return "numpy.random", name
    if owner is None or isinstance(owner, types.ModuleType):
        return str(getattr(value, "__module__", "")), name
    kind = owner if isinstance(owner, type) else type(owner)
    return kind.__module__, f"{kind.__name__}.{name}"
