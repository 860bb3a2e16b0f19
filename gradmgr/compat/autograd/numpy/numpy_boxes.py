"""autograd.numpy.numpy_boxes: the class of traced arrays."""

from gradmgr._engine.tensor import Tensor

__all__ = ["ArrayBox"]

ArrayBox = Tensor  # programs compare type(x) with it
