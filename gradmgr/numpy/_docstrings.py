"""Complete the docstrings of functions that templates make: a line for help(), what is raised, an example."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType
from typing import Any

from gradmgr._engine.tensor import Tensor
from gradmgr.numpy import _examples, _raises


def document(namespace: ModuleType) -> None:
    """Give functions of a namespace, and methods of Tensor, what their docstrings lack."""
    for module, original, errors, examples in (
        (namespace, "numpy", _raises.NUMPY, _examples.NUMPY),
        (namespace.linalg, "numpy.linalg", _raises.LINALG, _examples.LINALG),
        (namespace.fft, "numpy.fft", _raises.FFT, _examples.FFT),
        (namespace.special, "scipy.special", _raises.SPECIAL, _examples.SPECIAL),
    ):
        for name in module.__all__:
            function = getattr(module, name)
            if isinstance(function, FunctionType) and function.__doc__ is None:
                function.__doc__ = f"Compute `{original}.{name}` of Tensors or arrays, differentiably."
        for name in dict.fromkeys((*errors, *examples)):
            _complete(getattr(module, name), errors.get(name), examples.get(name))
    for name in dict.fromkeys((*_raises.METHODS, *_examples.METHODS)):
        _complete(vars(Tensor)[name], _raises.METHODS.get(name), _examples.METHODS.get(name))


def _complete(function: Any, errors: str | None, example: str | None) -> None:
    """Put lines of errors and an example, with the imports that it needs, into a docstring; 1 us."""
    doc = function.__doc__ or ""
    if "\n" in doc:
        doc = inspect.cleandoc(doc)  # 2 us
    text, prompt, own_example = doc.partition(">>> ")
    parts = [text.rstrip()]
    if errors is not None:
        parts.append(f"Raises:\n{errors}")
    if prompt:
        parts.append(prompt + own_example)
    if example is not None:
        parts.append(_examples.imports_of(example) + example)
    function.__doc__ = "\n\n".join(parts)
