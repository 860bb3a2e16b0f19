"""Hidden state: modules, functions and objects whose answers depend on what no name in the code refers to.

What a function reads of them may differ from one call to the next without any name's standing for something else: the
clock, a file, a setting of the interpreter, what an object written in C holds. Only what is known to be free of that is
let through, so that an unforeseen case is refused, not taken for a constant.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import io
import logging
import re
import sys
import threading
import types
import warnings
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np

from gradmgr._compile.sources import is_of_library

# Modules of the standard library whose functions compute from what they are given, warn or log, and read nothing else.
_STEADY = frozenset(
    (
        *("__future__", "_abc", "_bisect", "_collections", "_collections_abc", "_contextvars", "_functools", "_heapq"),
        *("_operator", "_statistics", "_struct", "_typing", "_warnings", "_weakref", "abc", "array", "base64"),
        *(
            "binascii",
            "bisect",
            "builtins",
            "cmath",
            "collections",
            "colorsys",
            "concurrent",
            "contextlib",
            "contextvars",
            "copy",
        ),
        *("dataclasses", "enum", "fractions", "functools", "heapq", "itertools", "json", "keyword", "logging", "math"),
        *("numbers", "operator", "pprint", "re", "reprlib", "statistics", "string", "struct", "textwrap", "traceback"),
        *("types", "typing", "unicodedata", "warnings", "weakref"),
    )
)
# What never changes of the module sys, and the streams, to which code only writes.
_OF_SYS = frozenset(
    (
        *("byteorder", "float_info", "hash_info", "hexversion", "implementation", "int_info", "maxsize", "maxunicode"),
        *("platform", "stderr", "stdout", "version", "version_info"),
    )
)
# Functions of NumPy that read files or settings.
_OF_NUMPY = frozenset(
    (
        *("DataSource", "fromfile", "fromregex", "genfromtxt", "get_printoptions", "getbufsize", "geterr"),
        *("geterrcall", "load", "loadtxt", "memmap", "open_memmap"),
    )
)
_OF_WARNINGS = frozenset(("filters", "formatwarning", "onceregistry", "showwarning"))
_OF_LOGGING = frozenset(("getEffectiveLevel", "getLevelName", "hasHandlers", "isEnabledFor", "level"))
# Methods by which a path is looked up.
_OF_PATHS = frozenset(
    (
        *("absolute", "cwd", "exists", "expanduser", "glob", "group", "home", "is_block_device", "is_char_device"),
        *("is_dir", "is_fifo", "is_file", "is_junction", "is_mount", "is_socket", "is_symlink", "iterdir", "lstat"),
        *("open", "owner", "read_bytes", "read_text", "readlink", "resolve", "rglob", "samefile", "stat", "walk"),
    )
)

# Objects that never change, of modules that are not steady.
_IMMUTABLE = (dt.date, dt.time, dt.timedelta, dt.tzinfo, Fraction, PurePath, UUID)
_LOCKS = type(threading.Lock()), type(threading.RLock())
# Classes written in C of whose objects all is compared, or nothing changes.
_SEEN = frozenset(
    (
        *(object, list, tuple, dict, set, frozenset, deque, defaultdict, types.MappingProxyType),
        *(int, float, complex, str, bytes, bool, bytearray, slice, property, staticmethod, classmethod, type),
        *(types.SimpleNamespace,),
        *(type({}.keys()), type({}.values()), type({}.items()), type(Ellipsis), type(NotImplemented), range),
        *(types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType),
        *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType),
        *(types.GenericAlias, types.UnionType, weakref.ReferenceType, ContextVar, re.Pattern, *_LOCKS),
        *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.tzinfo, dt.timezone),
    )
)
# Packages whose classes written in C hold nothing that changes, or what is visited.
_KNOWN = frozenset(
    ("_collections", "_operator", "_typing", "collections", "functools", "gradmgr", "numpy", "operator", "typing")
)
_OF_C = 1 << 8, 1 << 9  # flags of a class: it cannot be changed, as those written in C; it was made by a program


def root_of(module: Any) -> str:
    """Return the package that a module is of, given by its name."""
    return str(module).partition(".")[0]


def is_standard(module: Any) -> bool:
    """Tell whether a module, given by its name, is of the standard library."""
    root = root_of(module)
    return root in sys.stdlib_module_names and root != "__main__"


def _is_volatile(module: Any) -> bool:
    """Tell whether functions of a module may read what they are not given."""
    return str(module) == "numpy.random" or (is_standard(module) and root_of(module) not in _STEADY)


def volatile_module_of(value: Any) -> str | None:
    """Return the module, if a value is one whose functions may give another value each time, or is of it; else None."""
    if isinstance(value, types.ModuleType):
        return value.__name__ if value is not sys and _is_volatile(value.__name__) else None
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        module = getattr(value, "__module__", None)
        return str(module) if str(module) != "numpy.random" and _is_volatile(module) else None
    module = type(value).__module__
    if is_of_names(value) or isinstance(value, (*_IMMUTABLE, *_LOCKS, np.random.Generator)):
        return None
    return module if _is_volatile(module) or module.startswith("numpy.random.") else None


def is_of_names(value: Any) -> bool:
    """Tell whether a value is an object of the standard library's to which programs give attributes."""
    is_namespace = type(value).__qualname__ == "Namespace" and type(value).__module__ == "argparse"
    return is_namespace or isinstance(value, (threading.local, types.SimpleNamespace))


def hides_state(value: Any, words: set[str]) -> str | None:
    """Return what cannot be seen of an object that code with these words reads; None if all can.

    Args:
        value: neither a Tensor, an array nor a container.
        words: the names in the code.
    """
    kind = type(value)
    if isinstance(value, functools._lru_cache_wrapper):
        return "whose results functools.lru_cache keeps, so that they may change unseen; read it by a name of its own"
    if isinstance(value, PurePath):
        return None if words.isdisjoint(_OF_PATHS) else "by which files are looked up, which may change; do it outside"
    if isinstance(value, _LOCKS) and "locked" in words:
        return "which changes unseen"
    if isinstance(value, np.ufunc) and all(set(types_) <= set("O->") for types_ in value.types):
        return "made of Python code that cannot be seen; call that"
    if isinstance(value, types.BuiltinFunctionType):
        return "written in C, which may read what cannot be seen; call it outside" if _is_foreign(value) else None
    if any(_is_written_in_c(cls) and cls not in _SEEN for cls in kind.__mro__):
        return "written in C, whose state cannot be compared; pass what it needs of it as an argument"
    return None


def _is_foreign(function: types.BuiltinFunctionType) -> bool:
    """Tell whether a function written in C is of another library."""
    owner = function.__self__
    owning = owner if isinstance(owner, type) else type(owner)
    module = function.__module__ or (owner.__name__ if isinstance(owner, types.ModuleType) else owning.__module__)
    return not (is_standard(module) or root_of(module) in ("numpy", "scipy", "cupy", "gradmgr"))


def _is_written_in_c(cls: type) -> bool:
    """Tell whether a class is written in C, by a library whose objects are not known."""
    if root_of(cls.__module__) in _KNOWN:
        return False
    if issubclass(cls, (enum.Enum, threading.local)):
        return False
    immutable, of_program = _OF_C
    makes = isinstance(vars(cls).get("__new__"), types.BuiltinFunctionType)
    return bool(cls.__flags__ & immutable) or not cls.__flags__ & of_program or makes


def hidden_read(module: types.ModuleType, attributes: set[str | None]) -> str | None:
    """Return which of these attributes of a module, which code names, gives what cannot be compared."""
    if module is np:
        found = sorted(name for name in attributes if name in _OF_NUMPY)
    elif module is warnings:
        found = sorted(str(name) for name in attributes if name in _OF_WARNINGS)
    elif module is sys:
        found = sorted(str(name) for name in attributes if name not in _OF_SYS)
    else:
        found = []
    return found[0] if found else None


def reads_hidden(function: Any) -> bool:
    """Tell whether a function of NumPy's reads files or settings."""
    return root_of(getattr(function, "__module__", None)) == "numpy" and getattr(function, "__name__", "") in _OF_NUMPY


def asks_loggers(words: set[str]) -> bool:
    """Tell whether code asks what a Logger that it looks up itself would do."""
    return "getLogger" in words and not words.isdisjoint(_OF_LOGGING)


def why_unreadable(value: Any) -> str | None:
    """Return why what a value gives cannot be compared, whatever code does with it; None if it can."""
    if is_stateful(value):
        return f"a {type(value).__name__}, which changes as it is read"
    volatile = volatile_module_of(value)
    if volatile is not None:
        return f"of the module {volatile}, which gives other values each time"
    return "which reads what lies outside of the program" if reads_hidden(value) else None


def is_stateful(value: Any) -> bool:
    """Tell whether reading a value changes it."""
    return isinstance(value, (Iterator, io.IOBase)) and not isinstance(value, type)


def has_attributes(value: Any) -> bool:
    """Tell whether a program sets attributes of a value: an object of its own, or of a library that is seen whole."""
    return not is_of_library(type(value).__module__) or is_of_names(value) or is_seen_whole(value)


def is_seen_whole(value: Any) -> bool:
    """Tell whether all attributes of a value are compared, as the code of its class is not read."""
    module = type(value).__module__
    is_known = is_standard(module) or root_of(module) in ("numpy", "scipy")
    is_else = is_of_names(value) or isinstance(value, (logging.Logger, np.finfo, np.iinfo))
    return is_known and hasattr(value, "__dict__") and not is_else
