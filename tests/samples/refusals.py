"""Calls that must be refused, for what docstrings say that is raised: one for each cause of each line of errors.

Those of functions stand in `gradmgr.numpy._raises`.
A call is made from one that is right, the first in the example of the function's docstring, by putting something else
in the place of an argument; or it is given in full.
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse

import gradmgr.numpy as xp
from gradmgr import GradManager, distributions, function, nn, sparse, tensor
from gradmgr.compat.autograd import extend

Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def at(position: int, value: Any) -> Call:
    """Return a call with another value at a position."""
    return lambda f, args, keywords: f(*args[:position], value, *args[position + 1 :], **keywords)


def also(**more: Any) -> Call:
    """Return a call with other keywords."""
    return lambda f, args, keywords: f(*args, **(keywords | more))


def only(*args: Any, **keywords: Any) -> Call:
    """Return a call with these arguments alone."""
    return lambda f, _args, _keywords: f(*args, **keywords)


def ones(*shape: int) -> Any:
    """Return a Tensor of ones."""
    return tensor(np.ones(shape))


OBJECT = object()
OTHER_SHAPES = only(ones(2), ones(3))
OUT = also(out=ones(9, 9, 9))
UNARY_OUT = only(ones(2), out=ones(3))
BINARY_OUT = only(ones(2), ones(2), out=ones(3))
TEXT = at(0, "text")
NO_DTYPE = also(dtype="text")
NO_AXIS = also(axis=9)
COMPLEX = at(0, tensor([1j, 2.0]))
LINE = ones(4)
OBLONG = ones(5, 7)

WHOLE = tensor([1, 2])


def _of_integers(f: Callable[..., Any], _args: tuple[Any, ...], _keywords: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        return f(WHOLE)


# By the words of a line, of methods of Tensor.
_OF_METHODS: dict[str, tuple[Call, ...]] = {
    "the tensor is of integers, which cannot hold the result.": (_of_integers,),
    "the tensor is complex.": (only(tensor([1j, 2.0])),),
    "the tensor is not of integers or booleans.": (only(ones(2)),),
    "the argument is not of numbers, or the dtype of the tensor cannot hold the result.": (
        only(ones(2), "text"),
        only(ones(2), 1j),
    ),
    "the argument cannot be broadcast to the shape of the tensor.": (
        only(ones(2), ones(3)),
        only(ones(2), ones(4, 2)),
    ),
    "an argument is not of numbers, or the dtype of the tensor cannot hold the result.": (
        only(ones(2), "text", 1.0),
        only(ones(2), 1.0, "text"),
        only(WHOLE, 1.5, 2.5),
    ),
    "an argument cannot be broadcast to the shape of the tensor.": (
        only(ones(2), ones(3), 1.0),
        only(ones(2), 1.0, ones(4, 2)),
    ),
    "the tensor or the argument is not of integers.": (only(ones(2), 1), only(WHOLE, 1.5)),
    "the argument, of integers, cannot be broadcast to the shape of the tensor.": (only(WHOLE, tensor([1, 2, 3])),),
    "the shapes do not fit together.": (at(1, ones(7, 9, 2)),),
    "`dim` is not an integer.": (at(1, "text"),),
    "an index is out of bounds, or not an integer.": (at(2, tensor([[99]])), at(2, ones(1, 1))),
    "the tensor has no axis `dim`.": (at(1, 9),),
    "`mask` is not of booleans, or `value` is not a number.": (at(1, ones(2)), at(2, "text")),
    "`mask` cannot be broadcast to the shape of the tensor.": (at(1, np.ones(9, bool)),),
    "`index` is not of integers.": (at(1, ones(2)),),
    "the numbers of values and indices differ.": (at(2, ones(9)),),
    "the tensor has fewer than two axes.": (at(0, LINE),),
    "the tensor is of integers, or `generator` is not a numpy.random.Generator.": (at(0, WHOLE), also(generator=3)),
    "`generator` is not a numpy.random.Generator.": (also(generator=3),),
    "the probability is not from 0 to 1.": (at(1, 9.0), at(1, -1.0)),
    "`high` is not above `low`.": (at(1, 99),),
    "the value is not a number.": (at(1, None),),
    "the value has several elements.": (at(1, ones(2)),),
    "`src` is not of numbers.": (at(1, None),),
    "`src` cannot be broadcast to the shape of the tensor.": (at(1, ones(9, 9)),),
    "an axis is not an integer.": (at(1, "text"),),
    "the tensor has no such axis.": (NO_AXIS,),
    "the values cannot be broadcast to the elements that the indices name.": (at(2, ones(9, 9)),),
    "`mask` is not of booleans.": (at(1, ones(2)),),
    "there are fewer values than elements to write, or `mask` cannot be broadcast to the tensor.": (
        at(2, ones(0)),
        at(1, np.ones(9, bool)),
    ),
    "`p` is not a positive integer.": (at(1, 0), at(1, 1.5)),
    "the argument is not of integers.": (at(1, 1.5),),
    "the tensor has no such axes.": (at(1, 9),),
    "the argument is None.": (at(1, None),),
    "`condition` picks beyond the end of the axis.": (at(1, np.ones(9, bool)),),
    "`condition` has several axes, or none.": (at(1, True), at(1, np.ones((2, 2), bool))),
    "the number of axes is not that of the tensor, or an axis is given twice.": (only(OBLONG, 0), only(OBLONG, 0, 0)),
    "the tensor does not have these axes.": (only(LINE, 9),),
    "`dim` is not an integer, or `dtype` does not name a dtype.": (at(1, "text"), NO_DTYPE),
    "the tensor has no axes.": (only(tensor(1.0)),),
    "`out` has another shape than the result.": (OUT,),
    "the tensor has no elements and there is no `initial`, or `out` has another shape than the result.": (
        only(ones(0)),
        OUT,
    ),
    "`dtype` does not name a dtype, or `casting` does not allow it.": (at(1, "text"), also(casting="no")),
    "`order` is not one of NumPy's.": (also(order="Z"),),
    "a length is not an integer.": (only(LINE, "text"),),
    "the shape is for another number of elements.": (only(LINE, 3, 5),),
    "a bound is not a number.": (at(1, "text"),),
    "a bound cannot be broadcast together with the tensor, or `out` has another shape than the result.": (
        at(1, ones(9)),
        OUT,
    ),
    "`decimals` is not an integer.": (at(1, 1.5),),
    "the argument is not of numbers.": (at(1, None),),
    "the lengths of the axes that are summed over differ, or `out` has another shape than the result.": (
        at(1, ones(9)),
        OUT,
    ),
    "`ind` is not of integers.": (at(1, ones(2)),),
    "the tensor is not of integers.": (at(0, ones(2)),),
    "an element is out of range, or the shapes cannot be broadcast together.": (
        at(0, tensor([9, 9])),
        at(1, [ones(5), ones(6)]),
    ),
}


# By the words of a line.
SHARED: MappingProxyType[str, tuple[Call, ...]] = MappingProxyType(
    {
        "`x` is neither a number nor an array of numbers, or of a dtype that NumPy does not have this for.": (TEXT,),
        "the result cannot be broadcast to the shape of `out`.": (UNARY_OUT,),
        "`out` has another shape than the result.": (OUT,),
        "`x` is neither a number nor an array of numbers, or `out` is not a tuple of two arrays.": (TEXT, OUT),
        "an argument is neither a number nor an array of numbers, or `out` is not a tuple of two arrays.": (TEXT, OUT),
        "the shapes cannot be broadcast together.": (OTHER_SHAPES,),
        "an argument is neither a number nor an array of numbers, or of a dtype that NumPy does not have this for.": (
            TEXT,
            at(1, "text"),
        ),
        "the shapes cannot be broadcast together, or the result cannot be broadcast to the shape of `out`.": (
            OTHER_SHAPES,
            BINARY_OUT,
        ),
        "an argument is not of integers.": (at(0, 1.5), at(1, 1.5)),
        "an argument is neither a number nor an array of numbers.": (TEXT, at(1, "text")),
        "the argument is neither a number nor an array of numbers.": (TEXT,),
        "`x` is complex.": (COMPLEX,),
        "`x` is text.": (TEXT,),
        "`a` is neither a number nor an array of numbers, or `decimals` is not an integer.": (TEXT, at(1, 1.5)),
        "`a` is not of numbers, or `dtype` does not name a dtype.": (only("text"), NO_DTYPE),
        "`a` has no such axis.": (NO_AXIS,),
        "`x` is not of numbers, or `dtype` does not name a dtype.": (TEXT, NO_DTYPE),
        "`x` has several axes and `axis` is not given, or `out` has another shape than the result.": (
            only(OBLONG),
            OUT,
        ),
        "`x` has no such axis.": (NO_AXIS,),
        "`a` is not of numbers.": (TEXT,),
        "there is no element to choose from and no `initial`, or `out` has another shape than the result.": (
            only(ones(0)),
            OUT,
        ),
        "there is no element to choose from, or `out` has another shape than the result.": (only(ones(0)), OUT),
        "there is no element that is not NaN to choose from, or `out` has another shape than the result.": (
            only(ones(0)),
            only([np.nan]),
            OUT,
        ),
        "`a` is not of real numbers.": (TEXT, COMPLEX),
        "`q` is out of range, or `method` is not one of NumPy's.": (at(1, -1), also(method="text")),
        "`weights` have another shape than `a` and `axis` is not given.": (only(OBLONG, weights=ones(7)),),
        "`weights` have another length than the axis.": (only(OBLONG, axis=1, weights=ones(5)),),
        "the weights add up to 0.": (only(ones(2), weights=[1.0, -1.0]),),
        "an argument is not of numbers.": (at(1, "text"),),
        "`m` has more than two axes, or `y` another number of observations.": (
            only(ones(2, 2, 2)),
            only(ones(3), ones(4)),
        ),
        "`a` has fewer than two axes.": (at(0, LINE),),
        "`dtype` does not name a dtype.": (NO_DTYPE,),
        "the arrays differ in length along an axis other than `axis`.": (only(OBLONG, ones(5, 8), axis=0),),
        "the arrays have no such axis.": (NO_AXIS,),
        "`arrays` is not a sequence of arrays, or `dtype` does not name a dtype.": (only(3), NO_DTYPE),
        "there is no array, or the arrays differ in length along an axis other than `axis`.": (
            only([]),
            only([OBLONG, ones(5, 8)], axis=0),
        ),
        "`a` is an object of which NumPy makes no array of numbers.": (only(OBJECT),),
        "`arrays` is not a sequence of arrays.": (only(3),),
        "there is no array, or the arrays differ in shape.": (only([]), only([OBLONG, LINE])),
        "the result has no such axis.": (NO_AXIS,),
        "`tup` is not a sequence of arrays.": (only(3),),
        "there is no array, or the arrays differ in length along an axis that is not the one joined along.": (
            only([]),
            only([ones(2, 2, 2), ones(3, 3, 2)]),
        ),
        "a tuple stands where a list must.": (only((1.0, 2.0)),),
        "the lists are nested to different depths, or the arrays do not fit together.": (
            only([[1.0], 2.0]),
            only([[OBLONG, LINE]]),
        ),
        "`indices_or_sections` is neither an integer nor a sequence of integers.": (at(1, "text"),),
        "the number of parts is not positive.": (at(1, -1),),
        "`ary` has no such axis.": (NO_AXIS,),
        "the array has too few axes, or its axis cannot be divided into equal parts.": (at(0, 1.0), at(1, 5)),
        "the array has no such axis.": (NO_AXIS,),
        "`m` has too few axes.": (only(1.0),),
        "`axes` are not two different axes.": (also(axes=(0, 0)),),
        "`m` has no such axis.": (also(axes=(0, 9)),),
        "`shift` is neither an integer nor a sequence of integers.": (at(1, OBJECT),),
        "an axis is not an integer.": (at(1, "text"),),
        "the axis is longer than 1.": (only(LINE, axis=0),),
        "the number of axes is wrong, or an axis is given twice.": (at(1, [0, 1, 2, 0]),),
        "`x` has fewer than two axes.": (only(LINE),),
        "`shape` is not of integers.": (at(1, "text"),),
        "`shape` is for another number of elements.": (at(1, (3, 5)),),
        "`new_shape` is not of integers.": (at(1, "text"),),
        "a length is negative.": (at(0, (-3,)),),
        "the array cannot be broadcast to `shape`.": (at(1, (9, 9)),),
        "an argument is an object of which NumPy makes no array of numbers.": (at(0, OBJECT),),
        "`repeats` is not of integers.": (at(1, ones(2)),),
        "`repeats` is negative, or has another length than the axis.": (at(1, -1), at(1, [1, 2, 3, 4, 5])),
        "`reps` is not of integers.": (at(1, OBJECT),),
        "a number of repetitions is negative.": (at(1, -1),),
        "`pad_width` is not of integers.": (at(1, "text"),),
        "a width is negative, or `mode` is not one of NumPy's.": (at(1, -1), also(mode="text")),
        "an index is out of bounds.": (at(1, 99),),
        "`arr` has no such axis.": (NO_AXIS,),
        "the shape of `values` does not fit.": (only(ones(3), [0, 1], ones(7)),),
        "`filt` has no such axis.": (NO_AXIS,),
        "the argument is not of numbers, or `dtype` does not name a dtype.": (only(OBJECT), NO_DTYPE),
        "`fill_value` cannot be broadcast to the shape.": (at(1, OBLONG),),
        "the requirements contradict each other.": (only(OBLONG, requirements=["C", "F"]),),
        "a bound is not a number, or `dtype` does not name a dtype.": (only("text"), NO_DTYPE),
        "`step` is 0.": (only(0, 1, 0),),
        "`shape` is not of integers, or `dtype` does not name a dtype.": (at(0, "text"), NO_DTYPE),
        "a length is negative, or `fill_value` cannot be broadcast to `shape`.": (at(0, -3), at(1, OBLONG)),
        "a length is not an integer, or `dtype` does not name a dtype.": (at(0, "text"), NO_DTYPE),
        "an end is not a number, `num` is not an integer, or `dtype` does not name a dtype.": (
            at(0, OBJECT),
            at(2, 1.5),
            NO_DTYPE,
        ),
        "`num` is negative.": (at(2, -1),),
        "`M` is not one number.": (at(0, "text"), at(0, LINE)),
        "`dimensions` is not a sequence of integers, or `dtype` does not name a dtype.": (only(3), NO_DTYPE),
        "an argument does not have one axis.": (at(0, OBLONG),),
        "`v` does not have one or two axes.": (only(1.0),),
        "`a` has fewer than two axes, or the two axes are the same.": (only(LINE), only(OBLONG, axis1=0, axis2=0)),
        "a length is not an integer.": (only("text"),),
        "`arr` has fewer than two axes, or axes of different lengths.": (only(LINE), only(OBLONG)),
        "`arr` does not have two axes.": (only(LINE),),
        "`m` has no axes.": (only(1.0),),
        "`n` is not an integer, or `mask_func` is not a function.": (at(0, "text"), at(1, 3)),
        "`N` is not an integer.": (at(1, "text"),),
        "`x` does not have one axis.": (at(0, OBLONG),),
        "`kind` is not one of NumPy's.": (also(kind="text"),),
        "`a` has no axes.": (only(1.0),),
        "`kth` is not of integers.": (at(1, 1.5),),
        "`kth` is out of bounds.": (at(1, 99),),
        "`keys` is not a sequence of arrays.": (only(3),),
        "the keys differ in shape.": (only([[1.0, 2.0], [1.0]]),),
        "the keys have no such axis.": (NO_AXIS,),
        '`a` does not have one axis, or `side` is neither "left" nor "right".': (at(0, OBLONG), also(side="text")),
        "`bins` do not have one axis, or are not in order.": (at(1, OBLONG), at(1, [1.0, 3.0, 2.0])),
        "`ar` has no such axis.": (NO_AXIS,),
        "`x` cannot be sorted, as objects of different types cannot.": (only(np.array([1, None], object)),),
        "`x` is not of integers.": (only(ones(2)),),
        "`x` does not have one axis or has a negative element, or `weights` have another length.": (
            only([[1]]),
            only([-1]),
            also(weights=ones(9)),
        ),
        "the number of bins is not positive, or the edges are not in order.": (
            also(bins=0),
            also(bins=[1.0, 3.0, 2.0]),
        ),
        "`x` and `y` differ in length.": (OTHER_SHAPES,),
        "there is not one number of bins, or one range, for each axis of the sample.": (
            only(ones(4, 2), bins=[3]),
            only(ones(4, 2), range=[(0, 1)]),
        ),
        "the condition picks beyond the end of the axis.": (at(0, np.ones(9, bool)),),
        "`condition` does not have one axis.": (at(0, True),),
        "the condition picks beyond the end of the array.": (at(0, np.ones(9, bool)),),
        "`a` is not of integers.": (at(0, 1.5),),
        "an element of `a` is out of range, or the shapes cannot be broadcast together.": (
            at(0, -3),
            at(1, [ones(5), ones(6)]),
        ),
        "a condition is not of booleans.": (only([ones(2)], [ones(2)]),),
        "`condlist` and `choicelist` differ in length, or are empty.": (at(0, []), only([], [])),
        "one of `x` and `y` is given alone, or the shapes cannot be broadcast together.": (
            only([True], 1.0),
            only([True], ones(2), ones(3)),
        ),
        "a condition has another shape than `x`.": (at(0, ones(9)),),
        "there are neither as many functions as conditions nor one more.": (at(2, []),),
        "`indices` are not of integers.": (at(1, ones(2)),),
        "`indices` are not of integers, or one is out of bounds.": (at(1, ones(2, 2)), at(1, [[99], [99]])),
        "`indices` have another number of axes than `arr`.": (at(1, 0),),
        "`indices` have another number of axes than `arr`, or `values` cannot be broadcast to their shape.": (
            at(1, 0),
            at(2, ones(9, 9)),
        ),
        "a position is out of bounds.": (at(1, 99),),
        "`a` is not an array, or the positions are not of integers.": (at(0, "text"), at(1, ones(2))),
        "the first argument is not an array.": (at(0, "text"),),
        "the mask has another size than the array.": (at(1, np.ones(9, bool)),),
        "`indices` or `shape` is not of integers.": (at(0, 1.5), at(1, "text")),
        "`dims` is not of integers.": (at(1, "text"),),
        "an index is out of bounds, or there is not one array of indices for each dimension.": (
            at(0, (99, 99)),
            at(0, (0,)),
        ),
        "the lengths of the axes that are summed over differ.": (OTHER_SHAPES,),
        "an argument has too few axes, or the lengths of the axes that are summed over differ.": (
            only(1.0, 1.0),
            only(ones(3, 3), ones(4)),
        ),
        "an argument has no such axis.": (NO_AXIS,),
        "the subscripts do not fit the operands.": (at(0, "i"),),
        "an operand is not of numbers.": (at(1, OBJECT),),
        "the vectors have neither two nor three components.": (only(LINE, LINE),),
        "an argument is empty, or has more than one axis, or `mode` is not one of NumPy's.": (
            at(0, []),
            at(0, OBLONG),
            also(mode="text"),
        ),
        "`n` is negative, or `a` has no axes.": (also(n=-1), only(1.0)),
        "`to_begin` or `to_end` cannot be cast to the dtype of `ary`.": (only([1, 2], to_begin=1.5),),
        "the number of distances is neither 0, nor 1, nor that of axes.": (only(OBLONG, 1.0, 1.0, 1.0),),
        "an axis is too short for `edge_order`.": (only(ones(1)),),
        "`f` has no such axis.": (NO_AXIS,),
        "`x` does not fit `y`.": (only(ones(3), ones(5)),),
        "`y` has no such axis.": (NO_AXIS,),
        "`p` has no axes.": (only(1.0),),
        "`p` is complex.": (only(tensor([1j, 2.0])),),
        "`p` has no such axis.": (NO_AXIS,),
        "`x` or `xp` is complex.": (at(0, 1j), at(1, [1j, 2.0])),
        "`xp` and `fp` do not have one axis, differ in length, or are empty.": (
            at(1, OBLONG),
            at(1, ones(5)),
            only(1.0, [], []),
        ),
        "the argument has a shape that is not for this.": (only(OBLONG),),
        "`m` is negative.": (also(m=-1),),
        "`x` is empty or does not have one axis, or `y` has another length.": (
            at(0, []),
            at(0, OBLONG),
            at(1, ones(9)),
        ),
        "`deg` is negative.": (at(2, -1),),
        "`func1d` is not a function, or `axis` is not an integer.": (at(0, 3), at(1, 1.5)),
        "`func` is not a function.": (at(0, 3),),
        "`func` returns an array of another number of axes.": (at(0, lambda a, axis: a[None, None]),),
        "`function` is not a function, or `shape` is not of integers.": (at(0, 3), at(1, ("text",))),
        "`pyfunc` is not a function.": (only(3),),
        "it is called without arguments, or its result does not fit the signature.": (
            lambda f, _args, _keywords: f(abs)(),
            lambda f, _args, _keywords: f(lambda x: [x, x, x], signature="()->(n),(n)")(1.0),
        ),
        "an option is of another type than it is documented with.": (also(precision="text"),),
        "`base` is not between 2 and 36.": (also(base=99),),
        "`num` is not an integer.": (only(1.5),),
        "`x` is not a number.": (TEXT,),
        "`a` is not of integers or booleans.": (only([1.5]),),
        "`a` is not of the dtype uint8.": (only([1.5]),),
        "an argument is not a date.": (TEXT,),
        "an argument is of numbers.": (at(0, LINE),),
        "`arr` is not of dates.": (only(LINE),),
        "`from_` is a Python number, or an argument does not name a dtype.": (at(0, 1.5), at(1, "text")),
        "an array is not of numbers.": (only(np.array(["text"])),),
        "the dtype is not one of floats.": (only(np.int64),),
        "the dtype is not one of integers.": (only(np.float64),),
        "an argument is neither an array nor a dtype.": (only(OBJECT),),
        "`typechars` cannot be iterated over.": (only(3),),
        "`buffer` is not like bytes, or `dtype` does not name a dtype.": (TEXT, NO_DTYPE),
        "the length of the buffer is not a multiple of that of an element.": (only(b"123", dtype=float),),
        "there is no such file.": (at(0, "no such file"),),
        "`iter` cannot be iterated over, or `dtype` does not name a dtype.": (only(3, float), NO_DTYPE),
        "there are fewer elements than `count`.": (only(iter([1.0]), float, count=5),),
        "`dtype` is not one of records.": (lambda f, _args, _keywords: f(io.StringIO("1"), r"(\d)", float),),
        "the text cannot be read to its end as numbers.": (only("1 text", sep=" "),),
        "the lines differ in their numbers of columns.": (only(["1 2", "1"]),),
        "the file holds objects, and `allow_pickle` is False.": (lambda f, _args, _keywords: f(_file_of_objects()),),
        "a text is not a number, or the lines differ in their numbers of columns.": (
            only(["text"]),
            only(["1 2", "1"]),
        ),
        "`file` is neither a path nor an open file.": (at(0, OBJECT),),
        "`fname` is neither a path nor an open file, or `X` does not have one or two axes.": (
            at(0, OBJECT),
            at(1, ones(2, 2, 2)),
        ),
        "`a` is not a stack of square matrices, or not positive definite.": (at(0, OBLONG), only(-np.eye(2))),
        "`x` is empty, or has fewer than two axes.": (only(ones(0, 0)), only(LINE)),
        "`a` is not a stack of square matrices.": (at(0, OBLONG),),
        "`a` is not a stack of square matrices, or the iteration does not converge.": (at(0, OBLONG),),
        "`A` is not a stack of square matrices.": (at(0, OBLONG),),
        "`a` is not a stack of square matrices, or one is singular.": (at(0, OBLONG), at(0, ones(2, 2))),
        "`a` does not have two axes, `b` has another number of rows, or there is no convergence.": (
            at(0, LINE),
            at(1, ones(99)),
        ),
        "`x` has fewer than two axes, or `ord` is not one of NumPy's.": (only(LINE), also(ord=7)),
        "`A` is not of numbers.": (only([["text"]]),),
        "there are fewer than two arrays, or their shapes do not fit together.": (
            only([OBLONG]),
            only([OBLONG, OBLONG]),
        ),
        "an array between the first and the last does not have two axes.": (only([OBLONG, LINE, OBLONG]),),
        "`ord` is not one of NumPy's for this number of axes.": (only(OBLONG, 7),),
        "`a` has fewer than two axes, or the iteration does not converge.": (only(LINE), only(OBLONG * np.nan)),
        "`b` does not fit `a`.": (at(1, ones(9)),),
        "`a` is not a stack of square matrices, or `b` does not fit it.": (at(0, OBLONG), at(1, ones(9))),
        "a matrix has a 0 on its diagonal.": (at(0, np.zeros((2, 2))),),
        "the axes before and after `ind` do not make up a square matrix, or it is singular.": (
            only(OBLONG, ind=1),
            only(ones(2, 2), ind=1),
        ),
        "the axes of `a` do not make up a square matrix, or it is singular.": (
            only(OBLONG, ones(5)),
            only(ones(2, 2), ones(2)),
        ),
        "`ord` is not a number.": (only(LINE, ord="text"),),
        "the vectors do not have three components.": (only(LINE, LINE),),
        "an argument has no axes, or the lengths of the axes that are summed over differ.": (
            only(1.0, LINE),
            only(OBLONG, OBLONG),
        ),
        "the lengths of the axis differ.": (OTHER_SHAPES,),
        "`n`, or the length of the axis, is not positive.": (also(n=0), only(ones(0))),
        "`a` is complex.": (at(0, ones(4, 4) * 1j),),
        "a length is not positive, or `s` and `axes` differ in length.": (
            also(s=(0, 2), axes=(0, 1)),
            also(s=(2, 2), axes=(0,)),
        ),
        "`n` is not an integer, or negative.": (at(0, 1.5), at(0, -1)),
        "`d` is 0.": (only(4, 0),),
        "`x` is neither a number nor an array of numbers, or of a dtype that SciPy does not have this for.": (TEXT,),
        "an argument is neither a number nor an array of numbers, or of a dtype that SciPy does not have this for.": (
            TEXT,
            at(1, "text"),
        ),
        "`x` is not of numbers.": (TEXT,),
        "`x` is empty.": (only(ones(0)),),
        **_OF_METHODS,
    }
)


def _file_of_objects() -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, np.array([dt.date(2020, 1, 1)], object))
    file.seek(0)
    return file


# By the name of a function and the name of an exception, where the words' own calls do not serve.
_INTEGERS = (only([1, 2], [1, 2, 3]), only([1, 2], [1, 2], out=tensor([1, 2, 3])))
_TOO_FAR = also(axes=(0, 9))
SPECIFIC: MappingProxyType[tuple[str, str], tuple[Call, ...]] = MappingProxyType(
    {
        **{
            (f"numpy.{name}", "ValueError"): _INTEGERS
            for name in ("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor")
        },
        ("numpy.gcd", "ValueError"): _INTEGERS,
        ("numpy.lcm", "ValueError"): _INTEGERS,
        ("numpy.ldexp", "ValueError"): (only(ones(2), [1, 2, 3]), only(ones(2), 1, out=ones(3))),
        ("numpy.bitwise_count", "ValueError"): (only([1, 2], out=tensor([1, 2, 3])),),
        ("numpy.bitwise_invert", "ValueError"): (only([1, 2], out=tensor([1, 2, 3])),),
        ("numpy.isnat", "ValueError"): (only(np.zeros(2, "M8[D]"), out=ones(3)),),
        ("numpy.clip", "ValueError"): (only(ones(2), ones(3), 1.0), only(ones(2), 0.0, 1.0, out=ones(3))),
        ("numpy.cov", "TypeError"): (only("text"),),
        ("numpy.corrcoef", "TypeError"): (only("text"),),
        ("numpy.rollaxis", "numpy.exceptions.AxisError"): (at(1, 9),),
        ("numpy.expand_dims", "numpy.exceptions.AxisError"): (at(1, 9),),
        ("numpy.swapaxes", "numpy.exceptions.AxisError"): (at(1, 9),),
        ("numpy.moveaxis", "numpy.exceptions.AxisError"): (at(1, 9),),
        ("numpy.permute_dims", "numpy.exceptions.AxisError"): (only(LINE, (9,)),),
        ("numpy.apply_along_axis", "numpy.exceptions.AxisError"): (at(1, 9),),
        ("numpy.resize", "ValueError"): (at(1, (-3,)),),
        ("numpy.astype", "TypeError"): (at(1, "text"),),
        ("numpy.unravel_index", "ValueError"): (at(0, 99),),
        ("numpy.tensordot", "ValueError"): (only(OBLONG, OBLONG, 1),),
        ("numpy.tensordot", "IndexError"): (only(LINE, LINE, 2),),
        ("numpy.vectorize", "ValueError"): (
            lambda f, _args, _keywords: f(lambda x: x)([]),
            lambda f, _args, _keywords: f(lambda x: [x, x, x], signature="()->(n),(n)")(1.0),
        ),
        ("numpy.linalg.tensordot", "ValueError"): (only(OBLONG, OBLONG, axes=1),),
        ("numpy.linalg.tensordot", "IndexError"): (only(LINE, LINE, axes=2),),
        ("numpy.linalg.solve_triangular", "ValueError"): (only(OBLONG, LINE), only(np.eye(2), ones(9))),
        ("numpy.linalg.solve_triangular", "numpy.linalg.LinAlgError"): (only(np.zeros((2, 2)), ones(2)),),
        ("numpy.fft.fft2", "numpy.exceptions.AxisError"): (_TOO_FAR,),
        ("numpy.fft.ifft2", "numpy.exceptions.AxisError"): (_TOO_FAR,),
        ("numpy.fft.irfft2", "numpy.exceptions.AxisError"): (_TOO_FAR,),
        ("numpy.fft.rfft2", "numpy.exceptions.AxisError"): (_TOO_FAR,),
        ("numpy.fft.fftshift", "IndexError"): (also(axes=9),),
        ("numpy.fft.ifftshift", "IndexError"): (also(axes=9),),
        (".index_put_", "IndexError"): (at(1, [tensor([99])]), at(1, [ones(1)])),
        (".mvlgamma_", "TypeError"): (only(WHOLE, 1),),
        (".polygamma_", "TypeError"): (only(WHOLE, 1),),
        (".round_", "TypeError"): (also(decimals=1.5),),
        (".swapdims_", "TypeError"): (only(OBLONG, 0, "text"),),
        (".swapdims_", "numpy.exceptions.AxisError"): (only(OBLONG, 0, 9),),
        ("special.betainc", "ValueError"): (only(ones(2), ones(3), 0.5),),
        ("special.logsumexp", "numpy.exceptions.AxisError"): (only(LINE, axis=9),),
        ("special.betaincinv", "ValueError"): (only(ones(2), ones(3), 0.5),),
    }
)


# ---------------------------------------------------------------- layers

LayerCall = Callable[[Any], Any]


def built(*args: Any, **keywords: Any) -> LayerCall:
    """Return the making of a layer with these arguments."""
    return lambda layer: layer(*args, **keywords)


def on(*inputs: Any, of: tuple[Any, ...] = (), **keywords: Any) -> LayerCall:
    """Return the call, on these inputs, of a layer made with the arguments `of` and keywords."""
    return lambda layer: layer(*of, **keywords)(*inputs)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    """Return an array of ones of the layers' dtype."""
    return np.ones(shape, np.float32)


def integers(*shape: int) -> np.ndarray[Any, Any]:
    """Return an array of ones that are integers."""
    return np.ones(shape, np.int64)


def _activations() -> dict[str, dict[str, tuple[LayerCall, ...]]]:
    of_floats = ("ELU", "GELU", "LeakyReLU", "LogSoftmax", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh")
    found: dict[str, dict[str, tuple[LayerCall, ...]]] = {name: {"TypeError": (on(integers(2)),)} for name in of_floats}
    found["ReLU"] = {"TypeError": (on(1j * floats(2)),)}
    found["LeakyReLU"]["TypeError"] += (on(floats(2), of=("text",)),)
    found["GELU"]["ValueError"] = (built("text"),)
    found["Softplus"]["ValueError"] = (on(floats(2), beta=0),)
    for name in "Softmax", "LogSoftmax":
        found[name] = {"TypeError": (on(integers(2), dim=0),), AXIS: (on(floats(2), dim=9),)}
    return found


AXIS = "numpy.exceptions.AxisError"


def _of_images() -> dict[str, dict[str, tuple[LayerCall, ...]]]:
    """Return calls of the layers of which there is one for each number of axes: with two axes less, or of integers."""
    found = {}
    for axes in 1, 2, 3:
        right, wrong, whole = floats(1, 3, *[4] * axes), floats(*[4] * axes), integers(1, 3, *[4] * axes)
        for name in f"Conv{axes}d", f"ConvTranspose{axes}d":
            of = (3, 2, 2)
            refused = (built(3, 4, 2, groups=2), on(wrong, of=of), on(right, of=(5, 2, 2)))
            found[name] = {"ValueError": refused, "TypeError": (on(whole, of=of),)}
        for name in (f"InstanceNorm{axes}d", *((f"BatchNorm{axes}d",) if axes < 3 else ())):
            refused = (built(-1), on(floats(4), of=(3,)), on(right, of=(5,)))
            found[name] = {"ValueError": refused, "TypeError": (on(whole, of=(3,)),)}
        for name in f"AvgPool{axes}d", f"MaxPool{axes}d":
            found[name] = {
                "ValueError": (on(wrong, of=(2,)), on(right, of=(9,))),
                "TypeError": (on(whole, of=(2,)),),
            }
        for name in f"AdaptiveAvgPool{axes}d", f"AdaptiveMaxPool{axes}d":
            found[name] = {
                "ValueError": (on(wrong, of=(2,)), on(right, of=(0,))),
                "TypeError": (on(whole, of=(2,)),),
            }
    return found


def _losses() -> dict[str, dict[str, tuple[LayerCall, ...]]]:
    differ, whole = on(floats(2), floats(3)), on(integers(2), integers(2))
    found: dict[str, dict[str, tuple[LayerCall, ...]]] = {
        name: {"ValueError": (built(reduction="text"), differ), "TypeError": (whole,)}
        for name in ("BCELoss", "BCEWithLogitsLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "SmoothL1Loss")
    }
    found["BCELoss"]["ValueError"] += (on(2 * floats(2), floats(2)),)
    found["HuberLoss"]["ValueError"] += (on(floats(2), floats(2), delta=0),)
    found["SmoothL1Loss"]["ValueError"] += (on(floats(2), floats(2), beta=-1),)
    for name in "CrossEntropyLoss", "NLLLoss":
        found[name] = {
            "ValueError": (built(reduction="text"), on(floats(2, 3), integers(4))),
            "TypeError": (on(integers(2, 3), integers(2)), on(floats(2, 3), floats(3))),
            "IndexError": (on(floats(2, 3), 9 * integers(2)),),
        }
    return found


# By the name of a layer and that of an exception.
LAYERS: MappingProxyType[str, dict[str, tuple[LayerCall, ...]]] = MappingProxyType(
    {
        **_activations(),
        **_of_images(),
        **_losses(),
        "BatchNorm": {
            "ValueError": (built(-1), on(floats(3), of=(3,)), on(floats(2, 4), of=(3,))),
            "TypeError": (on(integers(2, 3), of=(3,)),),
        },
        "Embedding": {
            "ValueError": (built(-1, 3),),
            "TypeError": (on(floats(2), of=(5, 3)),),
            "IndexError": (on(9 * integers(2), of=(5, 3)), built(5, 3, padding_idx=9)),
        },
        "EmbeddingBag": {
            "ValueError": (
                built(-1, 3),
                built(5, 3, mode="text"),
                on(integers(2), of=(5, 3)),
                on(integers(2, 2), [0], of=(5, 3)),
            ),
            "TypeError": (on(floats(2, 2), of=(5, 3)),),
            "IndexError": (on(9 * integers(2, 2), of=(5, 3)),),
        },
        "Flatten": {"ValueError": (on(floats(3)),)},
        "GRUCell": {
            "ValueError": (built(0, 2), on(floats(2, 9), of=(3, 2)), on(floats(2, 3), floats(3, 2), of=(3, 2))),
            "TypeError": (on(integers(2, 3), of=(3, 2)),),
        },
        "GroupNorm": {
            "ValueError": (built(2, 3), on(floats(2, 5), of=(3, 3))),
            "TypeError": (on(integers(2, 3), of=(3, 3)),),
        },
        "LSTMCell": {
            "ValueError": (built(0, 2), on(floats(2, 9), of=(3, 2)), on(floats(2, 3), [floats(3, 2)] * 2, of=(3, 2))),
            "TypeError": (on(integers(2, 3), of=(3, 2)), on(floats(2, 3), floats(2, 2), of=(3, 2))),
        },
        **{
            name: {
                "ValueError": (built(-1), on(floats(2, 5), of=(3,))),
                "TypeError": (on(integers(2, 3), of=(3,)),),
            }
            for name in ("LayerNorm", "RMSNorm")
        },
        "Linear": {
            "ValueError": (built(-1, 2), on(floats(2, 5), of=(3, 2))),
            "TypeError": (built(1.5, 2), built(3, 2, dtype="int64"), on(integers(2, 3), of=(3, 2))),
        },
        "Module": {"NotImplementedError": (on(1),)},
        "ModuleDict": {"TypeError": (built({"a": 3}), built({3: nn.Identity()}))},
        "ModuleList": {"TypeError": (built([3]),)},
        "ParameterList": {"TypeError": (built([3]),)},
        "RNNCell": {
            "ValueError": (
                built(0, 2),
                built(3, 2, nonlinearity="text"),
                on(floats(2, 9), of=(3, 2)),
                on(floats(2, 3), floats(3, 2), of=(3, 2)),
            ),
            "TypeError": (on(integers(2, 3), of=(3, 2)),),
        },
        "TransformerDecoder": {
            "ValueError": (
                lambda layer: layer(nn.TransformerDecoderLayer(4, 2, 4), -1),
                lambda layer: layer(nn.TransformerDecoderLayer(4, 2, 4), 1)(floats(2, 3, 5), floats(2, 3, 4)),
            ),
            "TypeError": (built(3, 1),),
        },
        "TransformerDecoderLayer": {
            "ValueError": (
                built(3, 2),
                built(4, 2, activation="text"),
                on(floats(2, 3, 5), floats(2, 3, 4), of=(4, 2, 4)),
            )
        },
        "TransformerEncoder": {
            "ValueError": (
                lambda layer: layer(nn.TransformerEncoderLayer(4, 2, 4), -1),
                lambda layer: layer(nn.TransformerEncoderLayer(4, 2, 4), 1)(floats(2, 3, 5)),
            ),
            "TypeError": (built(3, 1),),
        },
        "Upsample": {
            "ValueError": (on(floats(1, 1, 4)), on(floats(1, 1, 4), scale_factor=2, mode="text")),
            "TypeError": (on(integers(1, 1, 4), scale_factor=2),),
        },
    }
)


# ---------------------------------------------------------------- other functions and classes


class _WithoutForward(function.Function):
    pass


class _OfOtherGradients(function.Function):
    """A function whose gradient is what it is given as its second argument."""

    @staticmethod
    def forward(ctx: Any, x: Any, gradient: Any) -> Any:
        ctx.gradient = gradient
        return x * 1

    @staticmethod
    @function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return (g * 2 if ctx.gradient is None else ctx.gradient), None


def _gradient(gradient: Any) -> None:
    x = ones(2)
    with GradManager().attach(x) as gm:
        gm.backward(_OfOtherGradients.apply(x, gradient), ones(2))


def _second_gradient(_made: Any) -> None:
    x = ones(2)
    with GradManager().attach(x) as outer:
        with GradManager().attach(x) as inner:
            inner.backward(_OfOtherGradients.apply(x, None), ones(2))
        outer.backward(x.grad * x, ones(2))


def _nan_in_backward(scope: Any) -> None:
    x = tensor(0.0)
    with np.errstate(invalid="ignore"), scope(True), GradManager().attach(x) as gm:
        gm.backward(xp.sqrt(x) * x)


def _backward_of_several(backward: Any) -> None:
    x = ones(2)
    with GradManager().attach(x):
        backward(x * 2)


def _twice(group: Any) -> None:
    manager = GradManager()
    group([manager, manager])


_IN_PLACE_INIT: dict[str, tuple[LayerCall, ...]] = {"TypeError": (built(np.ones(2)),)}
_LOSS: dict[str, tuple[LayerCall, ...]] = {
    "ValueError": (built(floats(2), floats(2), reduction="text"), built(floats(2), floats(3))),
    "TypeError": (built(integers(2), integers(2)),),
}
_NOT_RECORDED: dict[str, tuple[LayerCall, ...]] = {"RuntimeError": (built(tensor(1.0)),)}
_NOT_CONNECTED: dict[str, tuple[LayerCall, ...]] = {"RuntimeError": (built(),)}
_NO_OPTIMIZER: dict[str, tuple[LayerCall, ...]] = {"TypeError": (built(3, 0.5),)}


def _of_vector(method: Callable[[Any, Any], Any]) -> LayerCall:
    """Return a call of an operator of autograd's on a function, then of what it gives on a vector too long."""
    return lambda operator: method(operator(lambda x: xp.sum(x * x)), np.ones(2))


def _subclass(base: type) -> type:
    return type("Derived", (base,), {})


_NO_FUNCTION: tuple[LayerCall, ...] = (built(3),)
_OF_INT: LayerCall = lambda operator: operator(lambda x: x * x)(3)  # one of many calls
_OF_ARRAY: LayerCall = lambda operator: operator(lambda x: x * x)(np.ones(2))  # as above
_OF_WRONG_RULE: LayerCall = lambda check: check(_wrong_rule(), np.ones(2))  # as above


def _wrong_rule() -> Any:
    doubled = extend.primitive(lambda x: 2.0 * x)
    extend.defvjp(doubled, lambda ans, x: lambda g: 3.0 * g)
    extend.defjvp(doubled, lambda g, ans, x: 3.0 * g)
    return doubled


def _of_autograd() -> dict[str, dict[str, tuple[LayerCall, ...]]]:
    """Return calls of functions of `gradmgr.compat.autograd`."""
    found: dict[str, dict[str, tuple[LayerCall, ...]]] = {
        "deriv": {"TypeError": (_OF_INT,)},
        "hessian": {
            "TypeError": (_OF_INT, lambda f: f(lambda p: p["a"])({"a": 1.0}), lambda f: f(lambda x: {"a": x})(1.0))
        },
        "holomorphic_grad": {"TypeError": (lambda f: f(abs)(1j * np.ones(2)),)},
        "grad_named": {"TypeError": (built(3, "x"),), "ValueError": (built(lambda x: x, "z"),)},
        "make_hvp": {
            "TypeError": (_OF_INT, _OF_ARRAY),
            "ValueError": (_of_vector(lambda made, x: made(x)[0](np.ones(3))),),
        },
        "hessian_tensor_product": {
            "TypeError": (*_NO_FUNCTION, lambda f: f(lambda x: x * x)(np.ones(2), np.ones(2))),
            "ValueError": (_of_vector(lambda made, x: made(x, np.ones(3))),),
        },
        "tensor_jacobian_product": {
            "TypeError": _NO_FUNCTION,
            "ValueError": (lambda f: f(lambda x: x * x)(np.ones(2), np.ones(3)),),
        },
        "make_jvp_reversemode": {
            "TypeError": (_OF_INT,),
            "ValueError": (_of_vector(lambda made, x: made(x)(np.ones(3))),),
        },
        "make_ggnvp": {
            "TypeError": (*_NO_FUNCTION, lambda f: f(lambda x: x, lambda y: y)(np.ones(2))(np.ones(2))),
            "ValueError": (lambda f: f(lambda x: x * x)(np.ones(2))(np.ones(3)),),
        },
        "grad_and_aux": {"TypeError": (lambda f: f(lambda x: x)(1.0), lambda f: f(lambda x: (x, 1))(3))},
        "multigrad_dict": {
            "TypeError": (*_NO_FUNCTION, lambda f: f(lambda a: a)(), lambda f: f(lambda a: a)(1.0, 2.0))
        },
        "core.make_vjp": {
            "TypeError": (built(3, 1.0), built(abs, 3)),
            "ValueError": (lambda f: f(lambda x: x * x, np.ones(2))[0](np.ones(3)),),
        },
        "core.make_jvp": {
            "TypeError": (built(3, 1.0), lambda f: f(abs, 3)(1.0)),
            "ValueError": (lambda f: f(lambda x: x * x, np.ones(2))(np.ones(3)),),
        },
        "extend.VSpace": {"TypeError": (built("text"), built({"a": None}))},
        "misc.flatten": {
            "TypeError": (built({1: 2.0, "a": 3.0}), built([None])),
            "ValueError": (lambda f: f(np.ones(3))[1](np.ones(2)),),
        },
        "test_util.combo_check": {
            "gradmgr.errors.GradcheckError": (lambda f: f(_wrong_rule())([np.ones(2)]),),
            "TypeError": _NO_FUNCTION,
        },
        "tracer.Box": {"NotImplementedError": (_subclass, lambda box: box.register(str))},
        "tracer.Node": {"NotImplementedError": (_subclass,)},
        "util.subvals": {"IndexError": (built((1, 2), [(5, 1)]),)},
        "util.subval": {"IndexError": (built((1, 2), -3, 1),)},
        "wrap_util.unary_to_nary": {
            "TypeError": (*_NO_FUNCTION, lambda f: f(abs)(3), lambda f: f(abs)(abs, "text")),
            "IndexError": (lambda f: f(lambda fun, x: fun(x))(abs, 1)(3.0),),
        },
    }
    for name in ("checkpoint", "extend.primitive", "core.primitive", "extend.notrace_primitive"):
        found[name] = {"TypeError": _NO_FUNCTION}
    for name in ("const_graph", "const_graph_unary"):
        found[f"misc.tracers.{name}"] = {"TypeError": _NO_FUNCTION}
    for name in ("defjvp_argnum", "defjvp_argnums", "defvjp_argnum", "defvjp_argnums"):
        found[f"extend.{name}"] = {"TypeError": (built(3, abs),)}
    found["extend.def_linear"] = {"TypeError": (built(3),)}
    found["misc.optimizers.unflatten_optimizer"] = {"TypeError": _NO_FUNCTION}
    for name in ("sgd", "rmsprop", "adam"):
        found[f"misc.optimizers.{name}"] = {"ValueError": (built(lambda x, i: np.ones(3), np.ones(2)),)}
    for name in ("check_vjp", "check_jvp"):
        found[f"test_util.{name}"] = {
            "gradmgr.errors.GradcheckError": (_OF_WRONG_RULE,),
            "TypeError": (built(abs, "text"),),
        }
    return {f"gradmgr.compat.autograd.{name}": calls for name, calls in found.items()}


# By full name, and that of an exception; a call takes the function or class.
OTHERS: MappingProxyType[str, dict[str, tuple[LayerCall, ...]]] = MappingProxyType(
    {
        "gradmgr.Function": {
            "NotImplementedError": (lambda _class: _WithoutForward.apply(1.0),),
            "ValueError": (lambda _class: _gradient(ones(3)),),
            "TypeError": (lambda _class: _gradient("text"), lambda _class: _gradient(1j * ones(2))),
            "RuntimeError": (built(),),
        },
        "gradmgr.GradManagerGroup": {"TypeError": (built([3]),), "ValueError": (_twice,)},
        "gradmgr.Tensor": {
            "TypeError": (built("text"), built(1.0, dtype="text")),
            "ValueError": (built([1.0, [2.0]]), built(1.0, device="text")),
        },
        "gradmgr.Tensor.backward": {"RuntimeError": (built(tensor(1.0)),), "ValueError": (_backward_of_several,)},
        "gradmgr.detect_anomaly": {"RuntimeError": (_nan_in_backward,)},
        "gradmgr.set_detect_anomaly": {"RuntimeError": (_nan_in_backward,)},
        "gradmgr.enable_grad": {"TypeError": (built(3),)},
        "gradmgr.no_grad": {"TypeError": (built(3),)},
        "gradmgr.once_differentiable": {"RuntimeError": (_second_gradient,)},
        "gradmgr.distributed.finalize": _NOT_CONNECTED,
        "gradmgr.distributed.rank": _NOT_CONNECTED,
        "gradmgr.distributed.size": _NOT_CONNECTED,
        "gradmgr.distributions.Distribution": {
            "NotImplementedError": (lambda _class: distributions.Poisson(3.0).entropy(),)
        },
        "gradmgr.distributions.constraints.independent": {
            "TypeError": (built(3, 1),),
            "ValueError": (built(distributions.constraints.real, 1.5), built(distributions.constraints.real, -1)),
        },
        "gradmgr.distributions.transform_to": {"NotImplementedError": (built(3),)},
        "gradmgr.distributions.transforms.Transform": {"NotImplementedError": (lambda each: each()(1.0),)},
        **_of_autograd(),
        "gradmgr.graph.to_mermaid": _NOT_RECORDED,
        "gradmgr.graph.to_svg": _NOT_RECORDED,
        "gradmgr.nn.functional.l1_loss": _LOSS,
        "gradmgr.nn.functional.huber_loss": _LOSS
        | {"ValueError": (*_LOSS["ValueError"], built(floats(2), floats(2), delta=0))},
        "gradmgr.nn.functional.smooth_l1_loss": _LOSS
        | {"ValueError": (*_LOSS["ValueError"], built(floats(2), floats(2), beta=-1))},
        "gradmgr.nn.functional.log_softmax": {"TypeError": (built(integers(2), 0),), AXIS: (built(floats(2), 9),)},
        "gradmgr.nn.init.constant_": {"TypeError": (built(np.ones(2), 1.0),)},
        "gradmgr.nn.init.ones_": _IN_PLACE_INIT,
        "gradmgr.nn.init.zeros_": _IN_PLACE_INIT,
        "gradmgr.nn.init.kaiming_normal_": _IN_PLACE_INIT | {"ValueError": (built(LINE), built(OBLONG, mode="text"))},
        "gradmgr.optim.lr_scheduler.ExponentialLR": _NO_OPTIMIZER,
        "gradmgr.optim.lr_scheduler.MultiStepLR": {"TypeError": (built(3, [1]),)},
        "gradmgr.sparse.SparseArray": {"ValueError": (lambda _class: _sparse() @ ones(9),)},
        "gradmgr.sparse.SuperLU": {"ValueError": (lambda _class: sparse.splu(_sparse()).solve(ones(9)),)},
    }
)


def _sparse() -> Any:
    return sparse.with_data(scipy.sparse.csc_array(np.eye(2)), ones(2))
