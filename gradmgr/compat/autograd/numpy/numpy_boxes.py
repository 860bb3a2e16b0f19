"""autograd.numpy.numpy_boxes: the class of traced arrays."""

from gradmgr.compat.autograd.tracer import Box

__all__ = ["ArrayBox"]

ArrayBox = Box
