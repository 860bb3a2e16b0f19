"""autograd.numpy.numpy_boxes: the class of traced arrays."""

from gradmgr._engine.tensor import Tensor
from gradmgr.compat.autograd.tracer import getval

__all__ = ["ArrayBox"]

ArrayBox = Tensor  # programs compare type(x) with it

# Programs read the number or array of a traced value as x._value, for which autograd has no public name but `getval`.
Tensor._value = property(getval, doc="The array or number, by the name that programs of autograd read it by.")  # type: ignore[attr-defined]  # added here
