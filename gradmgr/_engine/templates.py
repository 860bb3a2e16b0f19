"""Functions made of text: the roads that are too hot for a frame that asks what kind of op it has.

As attrs and dataclasses make `__init__`: a text is filled in with names, compiled when the function is first
called, and shown by tracebacks.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import unbroadcast
from gradmgr._engine.op import Op
from gradmgr._engine.recorder import Stack, current
from gradmgr._engine.tensor import Tensor

# The compiled functions by their text: the ops of one shape share them, which takes half of the import time.
_SHAPES: dict[str, types.FunctionType] = {}


def template_scope(op: Op, module: str, **more: Any) -> dict[str, Any]:
    """Return what the functions of an op may name; `module` becomes their `__module__`."""
    return {
        "__builtins__": builtins,
        "__name__": module,
        "F4": libraries.F4,
        "F8": libraries.F8,
        "REJECTIONS": errors.REJECTIONS,
        "Stack": Stack,
        "Tensor": Tensor,
        "current": current,
        "explain": libraries.explain,
        "unbroadcast": unbroadcast,
        "kernel": op.kernel,
        "new": object.__new__,
        "op": op,
        **more,
    }


def compile_template(source: str) -> types.FunctionType:
    """Return the one function of a source text."""
    made = _SHAPES.get(source)
    if made is None:
        scope: dict[str, Any] = {}
        exec(source, scope)  # noqa: S102  # the text is ours, filled with names of ours
        made = _SHAPES[source] = next(value for value in scope.values() if isinstance(value, types.FunctionType))
    return made


def build_function(source: str, name: str, file: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """Make a function of a source text in which "@" stands for the name of the op in its scope."""
    shared = compile_template(source)
    filename, op = f"<gradmgr {file}>", scope["op"].name
    constants = tuple([c.replace("@", op) if isinstance(c, str) else c for c in shared.__code__.co_consts])
    code = shared.__code__.replace(co_consts=constants, co_name=name, co_qualname=name, co_filename=filename)
    return types.FunctionType(code, scope, name, shared.__defaults__)


def show(source: str, file: str, op: str) -> None:
    """Let tracebacks show a function's source."""
    import linecache  # late, as what it imports takes 1 ms

    text, filename = source.replace("@", op), f"<gradmgr {file}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
