"""`install`: let `import autograd` find gradmgr's layer, in a program that is not to be changed."""

from __future__ import annotations

import sys
from types import ModuleType

_NAME = "autograd"
_OURS = __name__.rpartition(".")[0]


def _layer() -> dict[str, ModuleType]:
    """Return the public modules of this package by the names that autograd's have."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = name.removeprefix(_OURS)
        if (name == _OURS or name.startswith(f"{_OURS}.")) and "._" not in path:
            found[_NAME + path] = module
    return found


def install() -> None:
    """Make `autograd` and its submodules name those of this package in `sys.modules`; again does nothing.

    Call it before anything imports autograd.

    Raises:
        RuntimeError: autograd itself is imported already.

    >>> import gradmgr.compat.autograd
    >>> gradmgr.compat.autograd.install()
    >>> import autograd
    >>> autograd.grad(lambda x: x**2)(3.0)
    np.float64(6.0)
    >>> gradmgr.compat.autograd.uninstall()
    """
    layer = _layer()
    for name, module in list(sys.modules.items()):
        if (name == _NAME or name.startswith(f"{_NAME}.")) and layer.get(name) is not module:
            raise RuntimeError(
                f"install: {name} is imported already, from {getattr(module, '__file__', 'elsewhere')}; call "
                "gradmgr.compat.autograd.install() before the first import of autograd, or in a fresh interpreter"
            )
    sys.modules.update(layer)


def uninstall() -> None:
    """Take the names that `install` made out of `sys.modules`; modules that were imported through them live on.

    >>> from gradmgr.compat import autograd
    >>> autograd.install()
    >>> import autograd.numpy
    >>> autograd.uninstall()
    """
    for name, module in _layer().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
