"""What a replay calls to read Tensors and to test them, and the methods of objects that it calls in each replay."""

from __future__ import annotations

import weakref
from typing import Any

from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._engine.tensor import Tensor

# ---------------------------------------------------------------- reading and testing Tensors


def array_of(t: Tensor) -> Any:
    """Return the array of a tensor."""
    return t._array


def grad_of(t: Tensor) -> Tensor:
    """Return the gradient that a tensor has."""
    return t._grad  # type: ignore[return-value]  # not None: `has_grad` comes before


def has_grad(t: Tensor) -> bool:
    """Tell whether a tensor has a gradient."""
    return getattr(t, "_grad", None) is not None


def is_grad(t: Tensor, grad: Tensor) -> bool:
    """Tell whether this is the gradient of a tensor, the same object."""
    return getattr(t, "_grad", None) is grad


def layout_of(array: Any) -> tuple[Any, ...]:
    """Return what is the same in every replay of an array that is read."""
    return array.__class__, array.shape, array.dtype, array.strides


def layout_on_gpu(array: Any) -> tuple[Any, ...]:
    """Return the same of an array of a GPU, and which GPU it is."""
    device = array.device.id if is_on_gpu(array) else None
    return (*layout_of(array), device)


# By which a replay reads it, and tests it, without calls.
array_of.attribute = "_array"  # type: ignore[attr-defined]  # mypy knows no attributes of functions
grad_of.attribute = "_grad"  # type: ignore[attr-defined]  # as above
# A dtype is mostly the same object, which takes a third of the time to see.
_SAME_LAYOUT = (
    "{0}.__class__ is {1} and {0}.shape == {2} and {0}.strides == {4} and ({0}.dtype is {3} or {0}.dtype == {3})"
)
layout_of.condition = _SAME_LAYOUT  # type: ignore[attr-defined]  # as above
layout_on_gpu.condition = f"{_SAME_LAYOUT} and {{0}}.device.id == {{5}}"  # type: ignore[attr-defined]  # as above
layout_of.tests_layout = True  # type: ignore[attr-defined]  # as above
LAYOUTS = (layout_of, layout_on_gpu)
array_of.reads_tensor = grad_of.reads_tensor = has_grad.reads_tensor = True  # type: ignore[attr-defined]  # as above
has_grad.condition = "(getattr({0}, '_grad', None) is None) is not {1}"  # type: ignore[attr-defined]  # as above
is_grad.condition = "(getattr({0}, '_grad', None) is {1}) is {2}"  # type: ignore[attr-defined]  # as above


def are_distinct(*tensors: Tensor) -> bool:
    """Tell whether no two are the same object."""
    return len(set(map(id, tensors))) == len(tensors)


# By which a replay reads the state of tensors.
READS = (array_of, grad_of, has_grad, is_grad)


# ---------------------------------------------------------------- methods of objects


class WeakMethod:
    """A method of an object that is not kept alive."""

    __slots__ = ("__name__", "_owner")

    def __init__(self, method: Any) -> None:
        self._owner = weakref.ref(method.__self__)
        self.__name__ = method.__name__

    def __eq__(self, other: object) -> bool:
        owner = self._owner()
        return (
            isinstance(other, WeakMethod)
            and owner is not None
            and owner is other._owner()
            and self.__name__ == other.__name__
        )

    def __hash__(self) -> int:
        return hash(self.__name__)

    def is_of(self, package: str) -> bool:
        """Tell whether the object is of a class of a package."""
        return type(self._owner()).__module__.startswith(package)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        owner = self._owner()
        if owner is None:
            raise CaptureError(f"the object whose method {self.__name__} is called is gone")
        return getattr(owner, self.__name__)(*args, **keywords)


class UpdateMethod(WeakMethod):
    """A method that changes the state of an object of the program by arrays, all at once or not at all.

    It is called with the list `begun`, to which it appends together with what it changes; with the machine of the
    replay, or None; and with the arrays, of which it keeps none. It reads and writes no gradients.
    """

    __slots__ = ("_method",)

    begins_effects = keeps_nothing = True

    def __init__(self, method: Any, name: str) -> None:
        super().__init__(method)
        self._method = method.__func__
        self.__name__ = name  # as a user reads it

    def __call__(self, begun: list[bool], machine: Any, *args: Any) -> Any:
        owner = self._owner()
        if owner is None:
            raise CaptureError(f"the object of a {self.__name__} is gone")
        return self._method(owner, begun, machine, *args)
