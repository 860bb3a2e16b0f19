"""What each function raises that is documented by a line alone, by families whose errors are the same.

Each block of the texts below is names of functions and, indented, a line for each error that a call of them can end in,
which `_docstrings` puts into the docstrings. A function whose own docstring says what it raises does not stand here.
tests/samples/refusals.py has a call for each line.
"""

from __future__ import annotations

from types import MappingProxyType


def _read(text: str) -> MappingProxyType[str, str]:
    """Map each name that blocks of a text begin with to the indented lines that follow."""
    found = {}
    for block in text.strip().split("\n\n"):
        names, _, lines = block.partition("\n    ")
        found.update(dict.fromkeys(names.split(), f"    {lines}"))
    return MappingProxyType(found)


NUMPY = _read("""
abs acos acosh arcsin arcsinh arctan arctanh bitwise_count bitwise_invert cbrt ceil conj cos cosh deg2rad degrees exp
exp2 expm1 fabs fix floor isfinite isinf isnan isnat isneginf isposinf log log10 log1p log2 negative positive reciprocal
rint sign signbit sin sinh spacing sqrt square tan tanh trunc
    TypeError: `x` is neither a number nor an array of numbers, or of a dtype that NumPy does not have this for.
    ValueError: the result cannot be broadcast to the shape of `out`.

frexp modf
    TypeError: `x` is neither a number nor an array of numbers, or `out` is not a tuple of two arrays.

divmod
    TypeError: an argument is neither a number nor an array of numbers, or `out` is not a tuple of two arrays.
    ValueError: the shapes cannot be broadcast together.

add arctan2 copysign divide equal floor_divide fmax fmin fmod greater greater_equal heaviside hypot ldexp less
less_equal logaddexp logaddexp2 maximum minimum mod multiply nextafter not_equal pow subtract
    TypeError: an argument is neither a number nor an array of numbers, or of a dtype that NumPy does not have this for.
    ValueError: the shapes cannot be broadcast together, or the result cannot be broadcast to the shape of `out`.

bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm
    TypeError: an argument is not of integers.
    ValueError: the shapes cannot be broadcast together, or the result cannot be broadcast to the shape of `out`.

logical_and logical_or logical_xor
    ValueError: the shapes cannot be broadcast together, or the result cannot be broadcast to the shape of `out`.

logical_not
    ValueError: the result cannot be broadcast to the shape of `out`.

allclose isclose
    TypeError: an argument is neither a number nor an array of numbers.
    ValueError: the shapes cannot be broadcast together.

clip
    TypeError: an argument is neither a number nor an array of numbers.
    ValueError: the shapes cannot be broadcast together, or the result cannot be broadcast to the shape of `out`.

angle sinc
    TypeError: the argument is neither a number nor an array of numbers.

i0
    TypeError: `x` is complex.
    ValueError: `x` is text.

around
    TypeError: `a` is neither a number nor an array of numbers, or `decimals` is not an integer.
    ValueError: `out` has another shape than the result.

sum mean std var nansum nanmean nanstd nanvar cumsum cumprod prod nancumsum nancumprod nanprod
    TypeError: `a` is not of numbers, or `dtype` does not name a dtype.
    ValueError: `out` has another shape than the result.
    numpy.exceptions.AxisError: `a` has no such axis.

cumulative_sum cumulative_prod
    TypeError: `x` is not of numbers, or `dtype` does not name a dtype.
    ValueError: `x` has several axes and `axis` is not given, or `out` has another shape than the result.
    numpy.exceptions.AxisError: `x` has no such axis.

amax amin nanmax nanmin ptp
    TypeError: `a` is not of numbers.
    ValueError: there is no element to choose from and no `initial`, or `out` has another shape than the result.
    numpy.exceptions.AxisError: `a` has no such axis.

argmax argmin
    ValueError: there is no element to choose from, or `out` has another shape than the result.
    numpy.exceptions.AxisError: `a` has no such axis.

nanargmax nanargmin
    ValueError: there is no element that is not NaN to choose from, or `out` has another shape than the result.
    numpy.exceptions.AxisError: `a` has no such axis.

all any count_nonzero
    numpy.exceptions.AxisError: `a` has no such axis.

median nanmedian
    TypeError: `a` is not of numbers.
    ValueError: `out` has another shape than the result.
    numpy.exceptions.AxisError: `a` has no such axis.

percentile quantile nanpercentile nanquantile
    TypeError: `a` is not of real numbers.
    ValueError: `q` is out of range, or `method` is not one of NumPy's.
    numpy.exceptions.AxisError: `a` has no such axis.

average
    TypeError: `weights` have another shape than `a` and `axis` is not given.
    ValueError: `weights` have another length than the axis.
    ZeroDivisionError: the weights add up to 0.
    numpy.exceptions.AxisError: `a` has no such axis.

cov corrcoef
    TypeError: an argument is not of numbers.
    ValueError: `m` has more than two axes, or `y` another number of observations.

trace
    ValueError: `a` has fewer than two axes.
    TypeError: `dtype` does not name a dtype.

size
    numpy.exceptions.AxisError: `a` has no such axis.

append
    ValueError: the arrays differ in length along an axis other than `axis`.
    numpy.exceptions.AxisError: the arrays have no such axis.

concat
    TypeError: `arrays` is not a sequence of arrays, or `dtype` does not name a dtype.
    ValueError: there is no array, or the arrays differ in length along an axis other than `axis`.
    numpy.exceptions.AxisError: the arrays have no such axis.

stack
    TypeError: `arrays` is not a sequence of arrays.
    ValueError: there is no array, or the arrays differ in shape.
    numpy.exceptions.AxisError: the result has no such axis.

hstack vstack row_stack dstack column_stack
    TypeError: `tup` is not a sequence of arrays.
    ValueError: there is no array, or the arrays differ in length along an axis that is not the one joined along.

block
    TypeError: a tuple stands where a list must.
    ValueError: the lists are nested to different depths, or the arrays do not fit together.

array_split split
    TypeError: `indices_or_sections` is neither an integer nor a sequence of integers.
    ValueError: the number of parts is not positive.
    numpy.exceptions.AxisError: `ary` has no such axis.

hsplit vsplit dsplit
    TypeError: `indices_or_sections` is neither an integer nor a sequence of integers.
    ValueError: the array has too few axes, or its axis cannot be divided into equal parts.

unstack flip
    numpy.exceptions.AxisError: the array has no such axis.

fliplr flipud
    numpy.exceptions.AxisError: `m` has too few axes.

rot90
    ValueError: `axes` are not two different axes.
    numpy.exceptions.AxisError: `m` has no such axis.

roll
    TypeError: `shift` is neither an integer nor a sequence of integers.
    numpy.exceptions.AxisError: `a` has no such axis.

rollaxis expand_dims swapaxes
    TypeError: an axis is not an integer.
    numpy.exceptions.AxisError: the array has no such axis.

squeeze
    ValueError: the axis is longer than 1.
    numpy.exceptions.AxisError: `a` has no such axis.

moveaxis permute_dims
    TypeError: an axis is not an integer.
    ValueError: the number of axes is wrong, or an axis is given twice.
    numpy.exceptions.AxisError: the array has no such axis.

matrix_transpose
    ValueError: `x` has fewer than two axes.

reshape
    TypeError: `shape` is not of integers.
    ValueError: `shape` is for another number of elements.

resize
    TypeError: `new_shape` is not of integers.
    ValueError: a length is negative.

broadcast_to
    TypeError: `shape` is not of integers.
    ValueError: the array cannot be broadcast to `shape`.

broadcast broadcast_arrays
    ValueError: the shapes cannot be broadcast together.

atleast_1d atleast_2d atleast_3d copy meshgrid ravel
    TypeError: an argument is an object of which NumPy makes no array of numbers.

repeat
    TypeError: `repeats` is not of integers.
    ValueError: `repeats` is negative, or has another length than the axis.
    numpy.exceptions.AxisError: `a` has no such axis.

tile
    TypeError: `reps` is not of integers.
    ValueError: a number of repetitions is negative.

pad
    TypeError: `pad_width` is not of integers.
    ValueError: a width is negative, or `mode` is not one of NumPy's.

delete
    IndexError: an index is out of bounds.
    numpy.exceptions.AxisError: `arr` has no such axis.

insert
    IndexError: an index is out of bounds.
    ValueError: the shape of `values` does not fit.
    numpy.exceptions.AxisError: `arr` has no such axis.

trim_zeros
    numpy.exceptions.AxisError: `filt` has no such axis.

array asarray asanyarray ascontiguousarray asfortranarray empty_like ones_like zeros_like
    TypeError: the argument is not of numbers, or `dtype` does not name a dtype.

astype
    TypeError: `dtype` does not name a dtype.

full_like
    TypeError: `a` is not of numbers, or `dtype` does not name a dtype.
    ValueError: `fill_value` cannot be broadcast to the shape.

require
    TypeError: `a` is not of numbers, or `dtype` does not name a dtype.
    ValueError: the requirements contradict each other.

arange
    TypeError: a bound is not a number, or `dtype` does not name a dtype.
    ZeroDivisionError: `step` is 0.

empty ones zeros
    TypeError: `shape` is not of integers, or `dtype` does not name a dtype.
    ValueError: a length is negative.

full
    TypeError: `shape` is not of integers, or `dtype` does not name a dtype.
    ValueError: a length is negative, or `fill_value` cannot be broadcast to `shape`.

eye identity tri
    TypeError: a length is not an integer, or `dtype` does not name a dtype.

linspace logspace geomspace
    TypeError: an end is not a number, `num` is not an integer, or `dtype` does not name a dtype.
    ValueError: `num` is negative.

bartlett blackman hamming hanning kaiser
    TypeError: `M` is not one number.

indices
    TypeError: `dimensions` is not a sequence of integers, or `dtype` does not name a dtype.

ix_
    ValueError: an argument does not have one axis.

diag
    ValueError: `v` does not have one or two axes.

diagonal
    ValueError: `a` has fewer than two axes, or the two axes are the same.

diag_indices tril_indices triu_indices
    TypeError: a length is not an integer.

diag_indices_from
    ValueError: `arr` has fewer than two axes, or axes of different lengths.

tril_indices_from triu_indices_from
    ValueError: `arr` does not have two axes.

tril triu
    TypeError: `m` has no axes.

mask_indices
    TypeError: `n` is not an integer, or `mask_func` is not a function.

vander
    TypeError: `N` is not an integer.
    ValueError: `x` does not have one axis.

argsort sort
    ValueError: `kind` is not one of NumPy's.
    numpy.exceptions.AxisError: `a` has no such axis.

sort_complex
    numpy.exceptions.AxisError: `a` has no axes.

argpartition partition
    TypeError: `kth` is not of integers.
    ValueError: `kth` is out of bounds.
    numpy.exceptions.AxisError: `a` has no such axis.

lexsort
    TypeError: `keys` is not a sequence of arrays.
    ValueError: the keys differ in shape.
    numpy.exceptions.AxisError: the keys have no such axis.

searchsorted
    ValueError: `a` does not have one axis, or `side` is neither "left" nor "right".

digitize
    TypeError: `x` is complex.
    ValueError: `bins` do not have one axis, or are not in order.

unique
    numpy.exceptions.AxisError: `ar` has no such axis.

unique_all unique_counts unique_inverse unique_values
    TypeError: `x` cannot be sorted, as objects of different types cannot.

intersect1d setxor1d union1d
    TypeError: an argument is an object of which NumPy makes no array of numbers.

isin
    ValueError: `kind` is not one of NumPy's.

bincount
    TypeError: `x` is not of integers.
    ValueError: `x` does not have one axis or has a negative element, or `weights` have another length.

histogram histogram_bin_edges
    TypeError: `a` is not of numbers.
    ValueError: the number of bins is not positive, or the edges are not in order.

histogram2d
    ValueError: `x` and `y` differ in length.

histogramdd
    ValueError: there is not one number of bins, or one range, for each axis of the sample.

nonzero
    ValueError: `a` has no axes.

compress
    IndexError: the condition picks beyond the end of the axis.
    ValueError: `condition` does not have one axis.
    numpy.exceptions.AxisError: `a` has no such axis.

extract
    IndexError: the condition picks beyond the end of the array.

choose
    TypeError: `a` is not of integers.
    ValueError: an element of `a` is out of range, or the shapes cannot be broadcast together.

select
    TypeError: a condition is not of booleans.
    ValueError: `condlist` and `choicelist` differ in length, or are empty.

where
    ValueError: one of `x` and `y` is given alone, or the shapes cannot be broadcast together.

piecewise
    IndexError: a condition has another shape than `x`.
    ValueError: there are neither as many functions as conditions nor one more.

take
    IndexError: an index is out of bounds.
    TypeError: `indices` are not of integers.
    numpy.exceptions.AxisError: `a` has no such axis.

take_along_axis
    IndexError: `indices` are not of integers, or one is out of bounds.
    ValueError: `indices` have another number of axes than `arr`.
    numpy.exceptions.AxisError: `arr` has no such axis.

put_along_axis
    IndexError: `indices` are not of integers, or one is out of bounds.
    ValueError: `indices` have another number of axes than `arr`, or `values` cannot be broadcast to their shape.
    numpy.exceptions.AxisError: `arr` has no such axis.

put
    IndexError: a position is out of bounds.
    TypeError: `a` is not an array, or the positions are not of integers.

place putmask
    TypeError: the first argument is not an array.
    ValueError: the mask has another size than the array.

fill_diagonal
    ValueError: `a` has fewer than two axes.

unravel_index
    TypeError: `indices` or `shape` is not of integers.
    ValueError: an index is out of bounds.

ravel_multi_index
    TypeError: `dims` is not of integers.
    ValueError: an index is out of bounds, or there is not one array of indices for each dimension.

dot inner vdot
    TypeError: an argument is an object of which NumPy makes no array of numbers.
    ValueError: the lengths of the axes that are summed over differ.

matmul matvec vecmat vecdot
    TypeError: an argument is not of numbers.
    ValueError: an argument has too few axes, or the lengths of the axes that are summed over differ.

outer kron
    TypeError: an argument is not of numbers.

tensordot
    ValueError: the lengths of the axes that are summed over differ.
    IndexError: an argument has no such axis.

einsum
    ValueError: the subscripts do not fit the operands.
    TypeError: an operand is not of numbers.

einsum_path
    ValueError: the subscripts do not fit the operands.

cross
    ValueError: the vectors have neither two nor three components.
    numpy.exceptions.AxisError: an argument has no such axis.

convolve correlate
    ValueError: an argument is empty, or has more than one axis, or `mode` is not one of NumPy's.

diff
    ValueError: `n` is negative, or `a` has no axes.
    numpy.exceptions.AxisError: `a` has no such axis.

ediff1d
    TypeError: `to_begin` or `to_end` cannot be cast to the dtype of `ary`.

gradient
    TypeError: the number of distances is neither 0, nor 1, nor that of axes.
    ValueError: an axis is too short for `edge_order`.
    numpy.exceptions.AxisError: `f` has no such axis.

trapezoid
    ValueError: `x` does not fit `y`.
    numpy.exceptions.AxisError: `y` has no such axis.

unwrap
    ValueError: `p` has no axes.
    TypeError: `p` is complex.
    numpy.exceptions.AxisError: `p` has no such axis.

interp
    TypeError: `x` or `xp` is complex.
    ValueError: `xp` and `fp` do not have one axis, differ in length, or are empty.

poly roots
    ValueError: the argument has a shape that is not for this.

polyadd polysub polymul polydiv
    TypeError: an argument is an object of which NumPy makes no array of numbers.

polyder polyint
    ValueError: `m` is negative.

polyfit
    TypeError: `x` is empty or does not have one axis, or `y` has another length.
    ValueError: `deg` is negative.

polyval
    TypeError: `p` has no axes.

apply_along_axis
    TypeError: `func1d` is not a function, or `axis` is not an integer.
    numpy.exceptions.AxisError: `arr` has no such axis.

apply_over_axes
    TypeError: `func` is not a function.
    ValueError: `func` returns an array of another number of axes.

fromfunction
    TypeError: `function` is not a function, or `shape` is not of integers.

vectorize
    TypeError: `pyfunc` is not a function.
    ValueError: it is called without arguments, or its result does not fit the signature.

array2string array_repr array_str
    TypeError: an option is of another type than it is documented with.

base_repr
    ValueError: `base` is not between 2 and 36.

binary_repr
    TypeError: `num` is not an integer.

format_float_positional format_float_scientific
    TypeError: `x` is not a number.

packbits
    TypeError: `a` is not of integers or booleans.
    numpy.exceptions.AxisError: `a` has no such axis.

unpackbits
    TypeError: `a` is not of the dtype uint8.
    numpy.exceptions.AxisError: `a` has no such axis.

busday_count busday_offset is_busday
    ValueError: an argument is not a date.
    TypeError: an argument is of numbers.

datetime_as_string
    TypeError: `arr` is not of dates.

can_cast
    TypeError: `from_` is a Python number, or an argument does not name a dtype.

common_type
    TypeError: an array is not of numbers.

finfo
    ValueError: the dtype is not one of floats.

iinfo
    ValueError: the dtype is not one of integers.

result_type
    TypeError: an argument is neither an array nor a dtype.

mintypecode
    TypeError: `typechars` cannot be iterated over.

frombuffer
    TypeError: `buffer` is not like bytes, or `dtype` does not name a dtype.
    ValueError: the length of the buffer is not a multiple of that of an element.

fromfile
    FileNotFoundError: there is no such file.
    TypeError: `dtype` does not name a dtype.

fromiter
    TypeError: `iter` cannot be iterated over, or `dtype` does not name a dtype.
    ValueError: there are fewer elements than `count`.

fromregex
    FileNotFoundError: there is no such file.
    TypeError: `dtype` is not one of records.

fromstring
    ValueError: the text cannot be read to its end as numbers.

genfromtxt
    FileNotFoundError: there is no such file.
    ValueError: the lines differ in their numbers of columns.

load
    FileNotFoundError: there is no such file.
    ValueError: the file holds objects, and `allow_pickle` is False.

loadtxt
    FileNotFoundError: there is no such file.
    ValueError: a text is not a number, or the lines differ in their numbers of columns.

save savez savez_compressed
    TypeError: `file` is neither a path nor an open file.

savetxt
    ValueError: `fname` is neither a path nor an open file, or `X` does not have one or two axes.
""")

LINALG = _read("""
cholesky
    numpy.linalg.LinAlgError: `a` is not a stack of square matrices, or not positive definite.

cond
    numpy.linalg.LinAlgError: `x` is empty, or has fewer than two axes.

det slogdet
    numpy.linalg.LinAlgError: `a` is not a stack of square matrices.

eig eigh eigvals eigvalsh
    numpy.linalg.LinAlgError: `a` is not a stack of square matrices, or the iteration does not converge.

expm
    ValueError: `A` is not a stack of square matrices.

inv
    numpy.linalg.LinAlgError: `a` is not a stack of square matrices, or one is singular.

lstsq
    numpy.linalg.LinAlgError: `a` does not have two axes, `b` has another number of rows, or there is no convergence.

matrix_norm
    ValueError: `x` has fewer than two axes, or `ord` is not one of NumPy's.

matrix_rank
    TypeError: `A` is not of numbers.

multi_dot
    ValueError: there are fewer than two arrays, or their shapes do not fit together.
    numpy.linalg.LinAlgError: an array between the first and the last does not have two axes.

norm
    ValueError: `ord` is not one of NumPy's for this number of axes.
    numpy.exceptions.AxisError: `x` has no such axis.

pinv
    numpy.linalg.LinAlgError: `a` has fewer than two axes, or the iteration does not converge.

solve
    ValueError: `b` does not fit `a`.
    numpy.linalg.LinAlgError: `a` is not a stack of square matrices, or one is singular.

solve_triangular
    ValueError: `a` is not a stack of square matrices, or `b` does not fit it.
    numpy.linalg.LinAlgError: a matrix has a 0 on its diagonal.

svd svdvals
    numpy.linalg.LinAlgError: `a` has fewer than two axes, or the iteration does not converge.

tensorinv
    numpy.linalg.LinAlgError: the axes before and after `ind` do not make up a square matrix, or it is singular.

tensorsolve
    numpy.linalg.LinAlgError: the axes of `a` do not make up a square matrix, or it is singular.

vector_norm
    ValueError: `ord` is not a number.
    numpy.exceptions.AxisError: `x` has no such axis.

cross
    ValueError: the vectors do not have three components.
    IndexError: an argument has no such axis.

diagonal
    ValueError: `x` has fewer than two axes.

outer
    ValueError: an argument does not have one axis.

matmul
    ValueError: an argument has no axes, or the lengths of the axes that are summed over differ.

tensordot
    ValueError: the lengths of the axes that are summed over differ.
    IndexError: an argument has no such axis.

trace
    ValueError: `x` has fewer than two axes.
    TypeError: `dtype` does not name a dtype.

vecdot
    ValueError: the lengths of the axis differ.
    numpy.exceptions.AxisError: an argument has no such axis.
""")

FFT = _read("""
fft ifft hfft irfft
    ValueError: `n`, or the length of the axis, is not positive.
    numpy.exceptions.AxisError: `a` has no such axis.

rfft ihfft
    TypeError: `a` is complex.
    ValueError: `n`, or the length of the axis, is not positive.
    numpy.exceptions.AxisError: `a` has no such axis.

fft2 ifft2 irfft2
    numpy.exceptions.AxisError: `a` has no such axis.

rfft2
    TypeError: `a` is complex.
    numpy.exceptions.AxisError: `a` has no such axis.

fftn ifftn irfftn
    ValueError: a length is not positive, or `s` and `axes` differ in length.

rfftn
    TypeError: `a` is complex.
    ValueError: a length is not positive, or `s` and `axes` differ in length.

fftfreq rfftfreq
    ValueError: `n` is not an integer, or negative.
    ZeroDivisionError: `d` is 0.

fftshift ifftshift
    IndexError: `x` has no such axis.
""")

SPECIAL = _read("""
digamma entr erf erfc erfcinv erfcx erfinv expit expm1 exprel gamma gammaln
i0 i0e i1 i1e j0 j1 log1p log_expit log_ndtr loggamma logit ndtr ndtri
    TypeError: `x` is neither a number nor an array of numbers, or of a dtype that SciPy does not have this for.

beta betainc betaincinv betaln gammainc gammaincc gammainccinv gammaincinv iv jv kl_div polygamma rel_entr xlog1py xlogy
zeta
    TypeError: an argument is neither a number nor an array of numbers, or of a dtype that SciPy does not have this for.
    ValueError: the shapes cannot be broadcast together.

log_softmax softmax
    TypeError: `x` is not of numbers.
    ValueError: `x` is empty.
    numpy.exceptions.AxisError: `x` has no such axis.

logsumexp
    TypeError: `a` is an object of which NumPy makes no array of numbers.
    numpy.exceptions.AxisError: `a` has no such axis.
""")

# Methods of Tensor.
METHODS = _read("""
acos_ acosh_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asin_ asinh_ atan_ atanh_ cos_ cosh_ deg2rad_ digamma_
erf_ erfc_ erfinv_ exp2_ exp_ expm1_ i0_ lgamma_ log10_ log1p_ log2_ log_ logit_ rad2deg_ rsqrt_ sigmoid_ sin_ sinc_
sinh_ sqrt_ tan_ tanh_
    TypeError: the tensor is of integers, which cannot hold the result.

ceil_ fix_ floor_ frac_ relu_ trunc_
    TypeError: the tensor is complex.

bitwise_not_
    TypeError: the tensor is not of integers or booleans.

add_ arctan2_ atan2_ clamp_max_ clamp_min_ copysign_ div_ divide_ float_power_ floor_divide_ fmod_ heaviside_ hypot_
mul_ multiply_ nextafter_ pow_ remainder_ sub_ subtract_ true_divide_ xlogy_
    TypeError: the argument is not of numbers, or the dtype of the tensor cannot hold the result.
    ValueError: the argument cannot be broadcast to the shape of the tensor.

addcdiv_ addcmul_ clamp_ clip_ lerp_
    TypeError: an argument is not of numbers, or the dtype of the tensor cannot hold the result.
    ValueError: an argument cannot be broadcast to the shape of the tensor.

bitwise_and_ bitwise_left_shift_ bitwise_or_ bitwise_right_shift_ bitwise_xor_ gcd_ lcm_
    TypeError: the tensor or the argument is not of integers.
    ValueError: the argument, of integers, cannot be broadcast to the shape of the tensor.

logical_and_ logical_or_ logical_xor_
    TypeError: the argument is None.
    ValueError: the argument cannot be broadcast to the shape of the tensor.

addbmm_ addmm_ addmv_ addr_ baddbmm_
    TypeError: an argument is not of numbers.
    ValueError: the shapes do not fit together.

index_add_ index_copy_ index_fill_ scatter_ scatter_add_
    TypeError: `dim` is not an integer.
    IndexError: an index is out of bounds, or not an integer.
    numpy.exceptions.AxisError: the tensor has no axis `dim`.

masked_fill_
    TypeError: `mask` is not of booleans, or `value` is not a number.
    ValueError: `mask` cannot be broadcast to the shape of the tensor.

index_put_
    IndexError: an index is out of bounds, or not an integer.
    ValueError: the values cannot be broadcast to the elements that the indices name.

masked_scatter_
    TypeError: `mask` is not of booleans.
    ValueError: there are fewer values than elements to write, or `mask` cannot be broadcast to the tensor.

mvlgamma_
    TypeError: the tensor is of integers, which cannot hold the result.
    ValueError: `p` is not a positive integer.

polygamma_
    TypeError: the tensor is of integers, which cannot hold the result.

ldexp_
    TypeError: the argument is not of integers.

round_
    TypeError: `decimals` is not an integer.

put_
    TypeError: `index` is not of integers.
    IndexError: an index is out of bounds.
    ValueError: the numbers of values and indices differ.

fill_diagonal_
    ValueError: the tensor has fewer than two axes.

cauchy_ exponential_ log_normal_ normal_ uniform_
    TypeError: the tensor is of integers, or `generator` is not a numpy.random.Generator.

bernoulli_ geometric_
    TypeError: `generator` is not a numpy.random.Generator.
    ValueError: the probability is not from 0 to 1.

random_
    TypeError: `generator` is not a numpy.random.Generator.
    ValueError: `high` is not above `low`.

fill fill_
    TypeError: the value is not a number.
    ValueError: the value has several elements.

copy_
    TypeError: `src` is not of numbers.
    ValueError: `src` cannot be broadcast to the shape of the tensor.

squeeze_ unsqueeze_
    TypeError: `dim` is not an integer.
    numpy.exceptions.AxisError: the tensor has no axis `dim`.

swapaxes swapaxes_ swapdims_ transpose_
    TypeError: an axis is not an integer.
    numpy.exceptions.AxisError: the tensor has no such axes.

cumprod_ cumsum_
    TypeError: `dim` is not an integer, or `dtype` does not name a dtype.
    numpy.exceptions.AxisError: the tensor has no axis `dim`.

tril_ triu_
    TypeError: the tensor has no axes.

cumprod cumsum mean prod std sum var
    TypeError: `dtype` does not name a dtype.
    ValueError: `out` has another shape than the result.
    numpy.exceptions.AxisError: the tensor has no such axis.

max min
    ValueError: the tensor has no elements and there is no `initial`, or `out` has another shape than the result.
    numpy.exceptions.AxisError: the tensor has no such axis.

argsort sort
    ValueError: `kind` is not one of NumPy's.
    numpy.exceptions.AxisError: the tensor has no such axis.

argpartition partition
    TypeError: `kth` is not of integers.
    ValueError: `kth` is out of bounds.
    numpy.exceptions.AxisError: the tensor has no such axis.

astype
    TypeError: `dtype` does not name a dtype, or `casting` does not allow it.
    ValueError: `order` is not one of NumPy's.

copy flatten ravel
    ValueError: `order` is not one of NumPy's.

reshape
    TypeError: a length is not an integer.
    ValueError: the shape is for another number of elements.

transpose
    ValueError: the number of axes is not that of the tensor, or an axis is given twice.
    numpy.exceptions.AxisError: the tensor does not have these axes.

squeeze
    TypeError: an axis is not an integer.
    ValueError: the axis is longer than 1.
    numpy.exceptions.AxisError: the tensor has no such axis.

diagonal trace
    ValueError: the tensor has fewer than two axes.

clip
    TypeError: a bound is not a number.
    ValueError: a bound cannot be broadcast together with the tensor, or `out` has another shape than the result.

round
    TypeError: `decimals` is not an integer.
    ValueError: `out` has another shape than the result.

dot
    TypeError: the argument is not of numbers.
    ValueError: the lengths of the axes that are summed over differ, or `out` has another shape than the result.

take
    TypeError: `indices` are not of integers.
    IndexError: an index is out of bounds.
    numpy.exceptions.AxisError: the tensor has no such axis.

put
    TypeError: `ind` is not of integers.
    IndexError: an index is out of bounds.

repeat
    TypeError: `repeats` is not of integers.
    ValueError: `repeats` is negative, or has another length than the axis.
    numpy.exceptions.AxisError: the tensor has no such axis.

compress
    IndexError: `condition` picks beyond the end of the axis.
    ValueError: `condition` has several axes, or none.
    numpy.exceptions.AxisError: the tensor has no such axis.

choose
    TypeError: the tensor is not of integers.
    ValueError: an element is out of range, or the shapes cannot be broadcast together.
""")
