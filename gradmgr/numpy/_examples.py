"""An example for each function that is documented by a line alone: value or derivative, in numbers readable at sight.

Each block of the texts below is the name of a function and lines of a session of Python, which `_docstrings` puts, with
the imports that they need, into the function's docstring. A function whose docstring has an example of its own does not
stand here.
"""

from __future__ import annotations

from types import MappingProxyType


def imports_of(example: str) -> str:
    """Return the lines that import what an example uses."""
    imports = ">>> import gradmgr.numpy as np\n" if "np." in example else ""
    if "tensor(" in example:
        imports += f">>> from gradmgr import {'special, ' if 'special.' in example else ''}tensor\n"
    if "vjp(" in example:
        imports += ">>> from gradmgr.functional import vjp  # vjp(f, x) is f(x) and the gradient at x\n"
    return imports


def _read(text: str) -> MappingProxyType[str, str]:
    """Map the names that blocks of a text begin with to what follows."""
    return MappingProxyType(dict([block.split("\n", 1) for block in text.strip().split("\n\n")]))


NUMPY = _read(r"""
abs
>>> vjp(np.abs, tensor([-2.0, 3.0]), np.ones(2))
(Tensor([2., 3.]), Tensor([-1.,  1.]))

acos
>>> vjp(np.acos, tensor(0.0))
(Tensor(1.57079633), Tensor(-1.))

acosh
>>> np.acosh(np.cosh(tensor([0.5, 2.0])))
Tensor([0.5, 2. ])

add
>>> np.add(tensor([[1.0], [2.0]]), [10.0, 20.0])
Tensor([[11., 21.],
        [12., 22.]])

all
>>> np.all(tensor([[1, 0], [1, 1]]), axis=1)
Tensor([False,  True])

allclose
>>> np.allclose(tensor([1.0, 2.0]), [1.0, 2.0 + 1e-9])
True

amax
>>> vjp(np.amax, tensor([3.0, 1.0, 3.0]))
(Tensor(3.), Tensor([0.5, 0. , 0.5]))

amin
>>> vjp(np.amin, tensor([3.0, 1.0, 2.0]))
(Tensor(1.), Tensor([0., 1., 0.]))

angle
>>> np.angle(tensor([1 + 1j, -1j]), deg=True)
Tensor([ 45., -90.])

any
>>> np.any(tensor([[0, 0], [1, 0]]), axis=1)
Tensor([False,  True])

append
>>> np.append(tensor([1.0, 2.0]), [3.0])
Tensor([1., 2., 3.])

apply_along_axis
>>> np.apply_along_axis(lambda row: row[::-1] * row[0], 1, tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[ 2.,  1.],
        [12.,  9.]])

apply_over_axes
>>> np.apply_over_axes(np.sum, tensor([[1.0, 2.0], [3.0, 4.0]]), [0, 1])
Tensor([[10.]])

arange
>>> np.arange(0.0, 1.0, 0.25)
Tensor([0.  , 0.25, 0.5 , 0.75])

arcsin
>>> vjp(np.arcsin, tensor(0.0))
(Tensor(0.), Tensor(1.))

arcsinh
>>> np.arcsinh(np.sinh(tensor([0.5, 2.0])))
Tensor([0.5, 2. ])

arctan
>>> vjp(np.arctan, tensor([0.0, 1.0]), np.ones(2))
(Tensor([0.        , 0.78539816]), Tensor([1. , 0.5]))

arctan2
>>> np.arctan2(tensor([0.0, 1.0]), [-1.0, 0.0]) / np.pi
Tensor([1. , 0.5])

arctanh
>>> vjp(np.arctanh, tensor([0.0, 0.5]), np.ones(2))
(Tensor([0.        , 0.54930614]), Tensor([1.        , 1.33333333]))

argmax
>>> np.argmax(tensor([1.0, 3.0, 2.0]))
Tensor(1)

argmin
>>> np.argmin(tensor([[1.0, 3.0], [2.0, 0.0]]), axis=1)
Tensor([0, 1])

argpartition
>>> np.argpartition(tensor([3.0, 1.0, 2.0]), 1)[1]
Tensor(2)

argsort
>>> np.argsort(tensor([3.0, 1.0, 2.0]))
Tensor([1, 2, 0])

argwhere
>>> np.argwhere(tensor([[0.0, 5.0], [7.0, 0.0]]))
Tensor([[0, 1],
        [1, 0]])

around
>>> np.around(tensor([1.26, -0.34]), 1)
Tensor([ 1.3, -0.3])

array
>>> x, y = tensor(1.0), tensor(2.0)
>>> np.array([x, y * 3])
Tensor([1., 6.])

array2string
>>> np.array2string(tensor([0.5, 1.25]), precision=1)
'[0.5 1.2]'

array_equal
>>> np.array_equal(tensor([1, 2]), [1.0, 2.0])
True

array_equiv
>>> np.array_equiv(tensor([1, 2]), [[1, 2], [1, 2]])
True

array_repr
>>> np.array_repr(tensor([1.0, 2.0]))
'array([1., 2.])'

array_split
>>> np.array_split(tensor([1.0, 2.0, 3.0]), 2)
[Tensor([1., 2.]), Tensor([3.])]

array_str
>>> np.array_str(tensor([1.0, 2.0]))
'[1. 2.]'

asanyarray
>>> np.asanyarray([1, 2], dtype=float)
Tensor([1., 2.])

asarray
>>> np.asarray([[1.0, 2.0]])
Tensor([[1., 2.]])

asarray_chkfinite
>>> np.asarray_chkfinite([1.0, np.nan])
Traceback (most recent call last):
    ...
ValueError: asarray_chkfinite: array must not contain infs or NaNs

ascontiguousarray
>>> np.ascontiguousarray(np.ones((2, 3)).T).numpy().flags.c_contiguous
True

asfortranarray
>>> np.asfortranarray(np.ones((2, 3))).numpy().flags.f_contiguous
True

astype
>>> np.astype(tensor([1.5, 2.5]), np.float32)
Tensor([1.5, 2.5], dtype=float32)

atleast_1d
>>> np.atleast_1d(tensor(2.0))
Tensor([2.])

atleast_2d
>>> np.atleast_2d(tensor([1.0, 2.0]))
Tensor([[1., 2.]])

atleast_3d
>>> np.atleast_3d(tensor([1.0, 2.0])).shape
(1, 2, 1)

average
>>> np.average(tensor([1.0, 4.0]), weights=[3.0, 1.0])
Tensor(1.75)

bartlett
>>> np.bartlett(5)
Tensor([0. , 0.5, 1. , 0.5, 0. ])

base_repr
>>> np.base_repr(10, base=3)
'101'

binary_repr
>>> np.binary_repr(5, width=8)
'00000101'

bincount
>>> np.bincount([0, 2, 2], weights=tensor([1.0, 10.0, 100.0]))
Tensor([  1.,   0., 110.])

bitwise_and
>>> np.bitwise_and(tensor([12, 10]), 6)
Tensor([4, 2])

bitwise_count
>>> np.bitwise_count(tensor([1, 7, 255]))
Tensor([1, 3, 8], dtype=uint8)

bitwise_invert
>>> np.bitwise_invert(tensor([0, 5]))
Tensor([-1, -6])

bitwise_left_shift
>>> np.bitwise_left_shift(tensor([1, 3]), 2)
Tensor([ 4, 12])

bitwise_or
>>> np.bitwise_or(tensor([12, 10]), 1)
Tensor([13, 11])

bitwise_right_shift
>>> np.bitwise_right_shift(tensor([16, 9]), 2)
Tensor([4, 2])

bitwise_xor
>>> np.bitwise_xor(tensor([12, 10]), 6)
Tensor([10, 12])

blackman
>>> np.blackman(3).round(6) + 0.0
Tensor([0., 1., 0.])

block
>>> np.block([[np.eye(2), np.zeros((2, 1))], [np.ones((1, 3))]])
Tensor([[1., 0., 0.],
        [0., 1., 0.],
        [1., 1., 1.]])

broadcast
>>> np.broadcast(tensor([[1.0], [2.0]]), tensor([1.0, 2.0, 3.0])).shape
(2, 3)

broadcast_arrays
>>> np.broadcast_arrays(tensor([[1.0], [2.0]]), tensor([3.0, 4.0]))
(Tensor([[1., 1.],
        [2., 2.]]), Tensor([[3., 4.],
        [3., 4.]]))

broadcast_to
>>> vjp(lambda x: np.broadcast_to(x, (3, 2)), tensor([1.0, 2.0]), np.ones((3, 2)))
(Tensor([[1., 2.],
        [1., 2.],
        [1., 2.]]), Tensor([3., 3.]))

busday_count
>>> np.busday_count("2026-03-02", "2026-03-09")
np.int64(5)

busday_offset
>>> np.busday_offset("2026-03-06", 1)
np.datetime64('2026-03-09')

can_cast
>>> np.can_cast(tensor([1.0]), np.float32)
False

cbrt
>>> vjp(np.cbrt, tensor(8.0), tensor(12.0))
(Tensor(2.), Tensor(1.))

ceil
>>> np.ceil(tensor([1.2, -1.2]))
Tensor([ 2., -1.])

choose
>>> np.choose([1, 0], [tensor([1.0, 2.0]), tensor([10.0, 20.0])])
Tensor([10.,  2.])

clip
>>> vjp(lambda x: np.clip(x, 0.0, 1.0), tensor([-2.0, 0.5, 3.0]), np.ones(3))
(Tensor([0. , 0.5, 1. ]), Tensor([0., 1., 0.]))

column_stack
>>> np.column_stack([tensor([1.0, 2.0]), tensor([3.0, 4.0])])
Tensor([[1., 3.],
        [2., 4.]])

common_type
>>> np.common_type(np.ones(2, np.float32), np.ones(2, np.complex64)).__name__
'complex64'

compress
>>> np.compress([True, False, True], tensor([1.0, 2.0, 3.0]))
Tensor([1., 3.])

concat
>>> np.concat([tensor([[1.0, 2.0]]), tensor([[3.0, 4.0]])])
Tensor([[1., 2.],
        [3., 4.]])

concatenate
>>> np.concatenate([tensor([1.0, 2.0]), tensor([3.0])])
Tensor([1., 2., 3.])

conj
>>> np.conj(tensor([1 + 2j]))
Tensor([1.-2.j])

convolve
>>> np.convolve(tensor([1.0, 2.0, 3.0]), [1.0, -1.0])
Tensor([ 1.,  1.,  1., -3.])

copy
>>> np.copy(tensor([1.0, 2.0]))
Tensor([1., 2.])

copysign
>>> np.copysign(tensor([1.0, 2.0]), [-1.0, 5.0])
Tensor([-1.,  2.])

copyto
>>> x = tensor([1.0, 2.0, 3.0])
>>> np.copyto(x, 0.0, where=[True, False, True])
>>> x
Tensor([0., 2., 0.])

corrcoef
>>> np.corrcoef(tensor([1.0, 2.0, 3.0]), [2.0, 4.0, 6.0]).round(6)
Tensor([[1., 1.],
        [1., 1.]])

correlate
>>> np.correlate(tensor([1.0, 2.0, 3.0]), [0.0, 1.0])
Tensor([2., 3.])

cos
>>> np.cos(tensor([0.0, np.pi]))
Tensor([ 1., -1.])

cosh
>>> vjp(np.cosh, tensor(0.0))
(Tensor(1.), Tensor(0.))

count_nonzero
>>> np.count_nonzero(tensor([0.0, 2.0, 3.0]))
Tensor(2)

cov
>>> np.cov(tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
Tensor([[1., 2.],
        [2., 4.]])

cross
>>> np.cross(tensor([1.0, 0.0, 0.0]), tensor([0.0, 1.0, 0.0]))
Tensor([0., 0., 1.])

cumprod
>>> vjp(np.cumprod, tensor([2.0, 0.0, 3.0]), np.ones(3))
(Tensor([2., 0., 0.]), Tensor([1., 8., 0.]))

cumsum
>>> vjp(np.cumsum, tensor([1.0, 2.0, 3.0]), np.ones(3))
(Tensor([1., 3., 6.]), Tensor([3., 2., 1.]))

cumulative_prod
>>> np.cumulative_prod(tensor([2.0, 3.0, 4.0]))
Tensor([ 2.,  6., 24.])

cumulative_sum
>>> np.cumulative_sum(tensor([1.0, 2.0, 3.0]), include_initial=True)
Tensor([0., 1., 3., 6.])

datetime_as_string
>>> import numpy
>>> np.datetime_as_string(numpy.datetime64("2026-03-02T12", "h"), unit="D")
np.str_('2026-03-02')

deg2rad
>>> np.deg2rad(tensor([180.0, 90.0])) / np.pi
Tensor([1. , 0.5])

degrees
>>> np.degrees(tensor([np.pi, np.pi / 2]))
Tensor([180.,  90.])

delete
>>> np.delete(tensor([1.0, 2.0, 3.0]), 1)
Tensor([1., 3.])

diag
>>> np.diag(tensor([1.0, 2.0]))
Tensor([[1., 0.],
        [0., 2.]])

diag_indices
>>> rows, columns = np.diag_indices(3)
>>> rows
Tensor([0, 1, 2])

diag_indices_from
>>> rows, columns = np.diag_indices_from(np.eye(2))
>>> columns
Tensor([0, 1])

diagflat
>>> np.diagflat(tensor([[1.0], [2.0]]))
Tensor([[1., 0.],
        [0., 2.]])

diagonal
>>> np.diagonal(tensor([[1.0, 2.0], [3.0, 4.0]]), offset=1)
Tensor([2.])

diff
>>> np.diff(tensor([1.0, 4.0, 9.0]))
Tensor([3., 5.])

digitize
>>> np.digitize(tensor([0.5, 1.5, 2.5]), [1.0, 2.0])
Tensor([0, 1, 2])

divide
>>> np.divide(tensor([1.0, 3.0]), [2.0, 4.0])
Tensor([0.5 , 0.75])

divmod
>>> np.divmod(tensor([7.0, -7.0]), 3.0)
(Tensor([ 2., -3.]), Tensor([1., 2.]))

dot
>>> np.dot(tensor([1.0, 2.0]), tensor([3.0, 4.0]))
Tensor(11.)

dsplit
>>> [part.shape for part in np.dsplit(np.ones((2, 3, 4)), 2)]
[(2, 3, 2), (2, 3, 2)]

dstack
>>> np.dstack([tensor([1.0, 2.0]), tensor([3.0, 4.0])])
Tensor([[[1., 3.],
         [2., 4.]]])

ediff1d
>>> np.ediff1d(tensor([1.0, 4.0, 9.0]), to_begin=[0.0])
Tensor([0., 3., 5.])

einsum
>>> np.einsum("ij,j->i", tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1.0, 10.0]))
Tensor([21., 43.])

einsum_path
>>> np.einsum_path("ij,jk,kl->il", np.ones((2, 9)), np.ones((9, 2)), np.ones((2, 9)))[0]
['einsum_path', (0, 1), (0, 1)]

empty
>>> np.empty((2, 3), dtype=np.float32).shape
(2, 3)

empty_like
>>> np.empty_like(np.ones((2, 3))).shape
(2, 3)

equal
>>> np.equal(tensor([1.0, 2.0]), [1.0, 3.0])
Tensor([ True, False])

exp
>>> vjp(np.exp, tensor([0.0, 1.0]), np.ones(2))
(Tensor([1.        , 2.71828183]), Tensor([1.        , 2.71828183]))

exp2
>>> np.exp2(tensor([1.0, 3.0]))
Tensor([2., 8.])

expand_dims
>>> np.expand_dims(tensor([1.0, 2.0]), 1)
Tensor([[1.],
        [2.]])

expm1
>>> np.expm1(tensor([1e-12]))
Tensor([1.e-12])

extract
>>> x = tensor([1.0, -2.0, 3.0])
>>> np.extract(x > 0, x)
Tensor([1., 3.])

eye
>>> np.eye(2, 3, k=1)
Tensor([[0., 1., 0.],
        [0., 0., 1.]])

fabs
>>> np.fabs(tensor([-1.5, 2.0]))
Tensor([1.5, 2. ])

fill_diagonal
>>> x = np.zeros((2, 2))
>>> np.fill_diagonal(x, tensor([3.0, 4.0]))
>>> x
Tensor([[3., 0.],
        [0., 4.]])

fix
>>> np.fix(tensor([1.7, -1.7]))
Tensor([ 1., -1.])

flatnonzero
>>> np.flatnonzero(tensor([[0.0, 5.0], [7.0, 0.0]]))
Tensor([1, 2])

flip
>>> np.flip(tensor([1.0, 2.0, 3.0]))
Tensor([3., 2., 1.])

fliplr
>>> np.fliplr(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[2., 1.],
        [4., 3.]])

flipud
>>> np.flipud(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[3., 4.],
        [1., 2.]])

float_power
>>> np.float_power(tensor([2, 3]), -1)
Tensor([0.5       , 0.33333333])

floor
>>> np.floor(tensor([1.7, -1.2]))
Tensor([ 1., -2.])

floor_divide
>>> np.floor_divide(tensor([7.0, -7.0]), 2.0)
Tensor([ 3., -4.])

fmax
>>> np.fmax(tensor([1.0, np.nan]), [0.0, 2.0])
Tensor([1., 2.])

fmin
>>> np.fmin(tensor([1.0, np.nan]), [0.0, 2.0])
Tensor([0., 2.])

fmod
>>> np.fmod(tensor([7.0, -7.0]), 3.0)
Tensor([ 1., -1.])

format_float_positional
>>> np.format_float_positional(1e-5)
'0.00001'

format_float_scientific
>>> np.format_float_scientific(1234.5)
'1.2345e+03'

frexp
>>> np.frexp(tensor([8.0, 0.75]))
(Tensor([0.5 , 0.75]), Tensor([4, 0], dtype=int32))

frombuffer
>>> np.frombuffer(b"\x01\x02", dtype=np.uint8)
Tensor([1, 2], dtype=uint8)

fromfile
>>> import numpy
>>> import tempfile
>>> file = tempfile.TemporaryFile()
>>> numpy.array([1.0, 2.0]).tofile(file)
>>> file.seek(0)
0
>>> np.fromfile(file)
Tensor([1., 2.])
>>> file.close()

fromfunction
>>> np.fromfunction(lambda i, j: 10 * i + j, (2, 3))
Tensor([[ 0.,  1.,  2.],
        [10., 11., 12.]])

fromiter
>>> np.fromiter((k * k for k in range(4)), dtype=float)
Tensor([0., 1., 4., 9.])

fromregex
>>> import io
>>> np.fromregex(io.StringIO("a=1 a=2"), r"a=(\d)", [("a", int)])
array([(1,), (2,)], dtype=[('a', '<i8')])

fromstring
>>> np.fromstring("1 2 3", sep=" ")
Tensor([1., 2., 3.])

full
>>> np.full((2, 2), 7.0)
Tensor([[7., 7.],
        [7., 7.]])

full_like
>>> np.full_like(tensor([1.0, 2.0]), 5.0)
Tensor([5., 5.])

gcd
>>> np.gcd(tensor([12, 18]), 8)
Tensor([4, 2])

genfromtxt
>>> import io
>>> np.genfromtxt(io.StringIO("1,2\n3,"), delimiter=",")
Tensor([[ 1.,  2.],
        [ 3., nan]])

geomspace
>>> np.geomspace(1.0, 1000.0, 4)
Tensor([   1.,   10.,  100., 1000.])

gradient
>>> np.gradient(tensor([0.0, 1.0, 4.0, 9.0]))
Tensor([1., 2., 4., 5.])

greater
>>> np.greater(tensor([1.0, 3.0]), 2.0)
Tensor([False,  True])

greater_equal
>>> np.greater_equal(tensor([1.0, 2.0]), 2.0)
Tensor([False,  True])

hamming
>>> np.hamming(3)
Tensor([0.08, 1.  , 0.08])

hanning
>>> np.hanning(3)
Tensor([0., 1., 0.])

heaviside
>>> np.heaviside(tensor([-1.0, 0.0, 2.0]), 0.5)
Tensor([0. , 0.5, 1. ])

histogram
>>> counts, edges = np.histogram(tensor([0.1, 0.6, 0.9]), bins=2, range=(0, 1))
>>> counts
Tensor([1, 2])

histogram2d
>>> np.histogram2d(tensor([0.1, 0.9]), [0.2, 0.3], bins=2, range=[[0, 1], [0, 1]])[0]
Tensor([[1., 0.],
        [1., 0.]])

histogram_bin_edges
>>> np.histogram_bin_edges(tensor([0.0, 1.0]), bins=4)
Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ])

histogramdd
>>> np.histogramdd(tensor([[0.1, 0.2], [0.9, 0.3]]), bins=2, range=[(0, 1), (0, 1)])[0]
Tensor([[1., 0.],
        [1., 0.]])

hsplit
>>> np.hsplit(tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
[Tensor([[1.],
        [3.]]), Tensor([[2.],
        [4.]])]

hstack
>>> np.hstack([tensor([1.0, 2.0]), tensor([3.0])])
Tensor([1., 2., 3.])

hypot
>>> vjp(lambda x: np.hypot(x, 4.0), tensor(3.0))
(Tensor(5.), Tensor(0.6))

i0
>>> np.i0(tensor([0.0]))
Tensor([1.])

identity
>>> np.identity(2)
Tensor([[1., 0.],
        [0., 1.]])

iinfo
>>> np.iinfo(tensor([1, 2], dtype=np.int8)).max
127

imag
>>> np.imag(tensor([1 + 2j]))
Tensor([2.])

indices
>>> np.indices((2, 2))
Tensor([[[0, 0],
         [1, 1]],
<BLANKLINE>
        [[0, 1],
         [0, 1]]])

inner
>>> np.inner(tensor([1.0, 2.0]), tensor([3.0, 4.0]))
Tensor(11.)

insert
>>> np.insert(tensor([1.0, 3.0]), 1, 2.0)
Tensor([1., 2., 3.])

interp
>>> vjp(lambda y: np.interp(0.25, [0.0, 1.0], y), tensor([10.0, 20.0]))
(Tensor(12.5), Tensor([0.75, 0.25]))

intersect1d
>>> np.intersect1d(tensor([3.0, 1.0, 2.0]), [2.0, 3.0, 4.0])
Tensor([2., 3.])

is_busday
>>> np.is_busday("2026-03-07")
np.False_

isclose
>>> np.isclose(tensor([1.0, 2.0]), [1.0 + 1e-9, 2.1])
Tensor([ True, False])

iscomplex
>>> np.iscomplex(tensor([1 + 1j, 2 + 0j]))
Tensor([ True, False])

iscomplexobj
>>> np.iscomplexobj(tensor([2 + 0j]))
True

isfinite
>>> np.isfinite(tensor([1.0, np.inf]))
Tensor([ True, False])

isfortran
>>> np.isfortran(np.ones((2, 3)).T)
True

isin
>>> np.isin(tensor([1, 2, 3]), [1, 3])
Tensor([ True, False,  True])

isinf
>>> np.isinf(tensor([1.0, -np.inf]))
Tensor([False,  True])

isnan
>>> np.isnan(tensor([1.0, np.nan]))
Tensor([False,  True])

isnat
>>> import numpy
>>> np.isnat(numpy.array(["2026-03-02", "NaT"], "datetime64[D]"))
array([False,  True])

isneginf
>>> np.isneginf(tensor([np.inf, -np.inf]))
Tensor([False,  True])

isposinf
>>> np.isposinf(tensor([np.inf, -np.inf]))
Tensor([ True, False])

isreal
>>> np.isreal(tensor([1 + 1j, 2 + 0j]))
Tensor([False,  True])

isrealobj
>>> np.isrealobj(tensor([2 + 0j]))
False

ix_
>>> rows, columns = np.ix_([0, 1], [2, 4, 5])
>>> rows.shape, columns.shape
((2, 1), (1, 3))

kaiser
>>> np.kaiser(3, 0.0)
Tensor([1., 1., 1.])

kron
>>> np.kron(tensor([1.0, 10.0]), tensor([1.0, 2.0]))
Tensor([ 1.,  2., 10., 20.])

lcm
>>> np.lcm(tensor([4, 6]), 10)
Tensor([20, 30])

ldexp
>>> np.ldexp(tensor([1.0, 1.5]), [3, 1])
Tensor([8., 3.])

less
>>> np.less(tensor([1.0, 3.0]), 2.0)
Tensor([ True, False])

less_equal
>>> np.less_equal(tensor([1.0, 3.0]), 1.0)
Tensor([ True, False])

lexsort
>>> np.lexsort([tensor([2.0, 1.0, 0.0]), tensor([1.0, 1.0, 0.0])])
Tensor([2, 1, 0])

linspace
>>> np.linspace(0.0, tensor(1.0), 5)
Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ])

load
>>> import io
>>> file = io.BytesIO()
>>> np.save(file, tensor([1.0, 2.0]))
>>> np.load(io.BytesIO(file.getvalue()))
Tensor([1., 2.])

loadtxt
>>> import io
>>> np.loadtxt(io.StringIO("1 2\n3 4"))
Tensor([[1., 2.],
        [3., 4.]])

log
>>> vjp(np.log, tensor(1.0))
(Tensor(0.), Tensor(1.))

log10
>>> np.log10(tensor([1.0, 1000.0]))
Tensor([0., 3.])

log1p
>>> np.log1p(tensor([1e-12]))
Tensor([1.e-12])

log2
>>> np.log2(tensor([1.0, 8.0]))
Tensor([0., 3.])

logaddexp
>>> np.exp(np.logaddexp(np.log(tensor(2.0)), np.log(3.0)))
Tensor(5.)

logaddexp2
>>> np.logaddexp2(tensor([3.0]), 3.0)
Tensor([4.])

logical_and
>>> np.logical_and(tensor([1.0, 0.0]), [1.0, 1.0])
Tensor([ True, False])

logical_not
>>> np.logical_not(tensor([1.0, 0.0]))
Tensor([False,  True])

logical_or
>>> np.logical_or(tensor([1.0, 0.0]), [0.0, 0.0])
Tensor([ True, False])

logical_xor
>>> np.logical_xor(tensor([1.0, 0.0]), [1.0, 1.0])
Tensor([False,  True])

logspace
>>> np.logspace(0.0, 3.0, 4)
Tensor([   1.,   10.,  100., 1000.])

mask_indices
>>> np.mask_indices(2, np.triu)
(Tensor([0, 0, 1]), Tensor([0, 1, 1]))

matmul
>>> np.matmul(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1.0, 10.0]))
Tensor([21., 43.])

matrix_transpose
>>> np.matrix_transpose(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[1., 3.],
        [2., 4.]])

matvec
>>> np.matvec(tensor([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 0.0], [0.0, 1.0]])
Tensor([[1., 3.],
        [2., 4.]])

maximum
>>> vjp(lambda x: np.maximum(x, 1.0), tensor([0.0, 1.0, 2.0]), np.ones(3))
(Tensor([1., 1., 2.]), Tensor([0. , 0.5, 1. ]))

may_share_memory
>>> x = tensor([1.0, 2.0])
>>> np.may_share_memory(x, x[:1])
True

mean
>>> vjp(np.mean, tensor([1.0, 2.0, 3.0, 6.0]))
(Tensor(3.), Tensor([0.25, 0.25, 0.25, 0.25]))

median
>>> vjp(np.median, tensor([5.0, 1.0, 3.0]))
(Tensor(3.), Tensor([0., 0., 1.]))

meshgrid
>>> np.meshgrid(tensor([1.0, 2.0]), tensor([10.0, 20.0]))
(Tensor([[1., 2.],
        [1., 2.]]), Tensor([[10., 10.],
        [20., 20.]]))

min_scalar_type
>>> np.min_scalar_type(300)
dtype('uint16')

minimum
>>> np.minimum(tensor([0.0, 3.0]), 1.0)
Tensor([0., 1.])

mintypecode
>>> np.mintypecode("fD")
'D'

mod
>>> np.mod(tensor([7.0, -7.0]), 3.0)
Tensor([1., 2.])

modf
>>> np.modf(tensor([1.25, -2.5]))
(Tensor([ 0.25, -0.5 ]), Tensor([ 1., -2.]))

moveaxis
>>> np.moveaxis(np.ones((2, 3, 4)), 0, -1).shape
(3, 4, 2)

multiply
>>> vjp(np.multiply, (tensor(2.0), tensor(3.0)))
(Tensor(6.), (Tensor(3.), Tensor(2.)))

nan_to_num
>>> np.nan_to_num(tensor([1.0, np.nan]))
Tensor([1., 0.])

nanargmax
>>> np.nanargmax(tensor([1.0, np.nan, 3.0]))
Tensor(2)

nanargmin
>>> np.nanargmin(tensor([np.nan, 2.0, 1.0]))
Tensor(2)

nancumprod
>>> np.nancumprod(tensor([2.0, np.nan, 3.0]))
Tensor([2., 2., 6.])

nancumsum
>>> np.nancumsum(tensor([2.0, np.nan, 3.0]))
Tensor([2., 2., 5.])

nanmax
>>> np.nanmax(tensor([1.0, np.nan]))
Tensor(1.)

nanmean
>>> vjp(np.nanmean, tensor([1.0, np.nan, 3.0]))
(Tensor(2.), Tensor([0.5, 0. , 0.5]))

nanmedian
>>> np.nanmedian(tensor([1.0, np.nan, 3.0, 5.0]))
Tensor(3.)

nanmin
>>> np.nanmin(tensor([1.0, np.nan]))
Tensor(1.)

nanpercentile
>>> np.nanpercentile(tensor([1.0, np.nan, 3.0]), 50)
Tensor(2.)

nanprod
>>> np.nanprod(tensor([2.0, np.nan, 3.0]))
Tensor(6.)

nanquantile
>>> np.nanquantile(tensor([1.0, np.nan, 3.0]), 0.5)
Tensor(2.)

nanstd
>>> np.nanstd(tensor([1.0, np.nan, 3.0]))
Tensor(1.)

nansum
>>> vjp(np.nansum, tensor([1.0, np.nan, 3.0]))
(Tensor(4.), Tensor([1., 0., 1.]))

nanvar
>>> np.nanvar(tensor([1.0, np.nan, 5.0]))
Tensor(4.)

ndenumerate
>>> list(np.ndenumerate(np.asarray([[5, 6]])))
[((0, 0), Tensor(5)), ((0, 1), Tensor(6))]

ndim
>>> np.ndim(tensor([[1.0, 2.0]]))
2

negative
>>> np.negative(tensor([1.0, -2.0]))
Tensor([-1.,  2.])

nextafter
>>> np.nextafter(tensor([1.0]), 2.0) - 1.0 == np.finfo(np.float64).eps
Tensor([ True])

nonzero
>>> np.nonzero(tensor([0.0, 2.0, 3.0]))
(Tensor([1, 2]),)

not_equal
>>> np.not_equal(tensor([1.0, 2.0]), [1.0, 3.0])
Tensor([False,  True])

ones
>>> np.ones((2, 2))
Tensor([[1., 1.],
        [1., 1.]])

ones_like
>>> np.ones_like(tensor([5, 6]))
Tensor([1, 1])

outer
>>> np.outer(tensor([1.0, 2.0]), tensor([1.0, 10.0]))
Tensor([[ 1., 10.],
        [ 2., 20.]])

packbits
>>> np.packbits(tensor([1, 0, 0, 0, 0, 0, 1, 1]))
Tensor([131], dtype=uint8)

pad
>>> np.pad(tensor([1.0, 2.0]), (1, 2))
Tensor([0., 1., 2., 0., 0.])

partition
>>> np.partition(tensor([3.0, 1.0, 2.0]), 1)[1]
Tensor(2.)

percentile
>>> np.percentile(tensor([1.0, 2.0, 3.0, 5.0]), 50)
Tensor(2.5)

permute_dims
>>> np.permute_dims(np.ones((2, 3, 4)), (2, 0, 1)).shape
(4, 2, 3)

piecewise
>>> x = tensor([-2.0, 3.0])
>>> np.piecewise(x, [x < 0], [lambda x: -x, lambda x: x**2])
Tensor([2., 9.])

place
>>> x = tensor([1.0, 2.0, 3.0])
>>> np.place(x, [True, False, True], [10.0, 20.0])
>>> x
Tensor([10.,  2., 20.])

poly
>>> np.poly(tensor([1.0, 2.0]))
Tensor([ 1., -3.,  2.])

polyadd
>>> np.polyadd(tensor([1.0, 2.0]), [1.0, 0.0, 0.0])
Tensor([1., 1., 2.])

polyder
>>> np.polyder(tensor([1.0, 2.0, 3.0]))
Tensor([2., 2.])

polydiv
>>> np.polydiv(tensor([1.0, -3.0, 2.0]), [1.0, -1.0])
(Tensor([ 1., -2.]), Tensor([0.]))

polyfit
>>> np.polyfit([0.0, 1.0, 2.0], tensor([1.0, 3.0, 5.0]), 1).round(6)
Tensor([2., 1.])

polyint
>>> np.polyint(tensor([6.0, 2.0]))
Tensor([3., 2., 0.])

polymul
>>> np.polymul(tensor([1.0, 1.0]), [1.0, -1.0])
Tensor([ 1.,  0., -1.])

polysub
>>> np.polysub(tensor([1.0, 2.0]), [1.0])
Tensor([1., 1.])

polyval
>>> vjp(lambda c: np.polyval(c, 2.0), tensor([1.0, 0.0, 5.0]))
(Tensor(9.), Tensor([4., 2., 1.]))

positive
>>> np.positive(tensor([1.0, -2.0]))
Tensor([ 1., -2.])

pow
>>> vjp(lambda x: np.pow(x, 3), tensor([2.0, -1.0]), np.ones(2))
(Tensor([ 8., -1.]), Tensor([12.,  3.]))

prod
>>> vjp(np.prod, tensor([2.0, 0.0, 3.0]))
(Tensor(0.), Tensor([0., 6., 0.]))

ptp
>>> np.ptp(tensor([3.0, 1.0, 7.0]))
Tensor(6.)

put
>>> x = tensor([1.0, 2.0, 3.0])
>>> np.put(x, [0, 2], [10.0, 30.0])
>>> x
Tensor([10.,  2., 30.])

put_along_axis
>>> x = np.zeros((2, 2))
>>> np.put_along_axis(x, [[1], [0]], tensor(5.0), axis=1)
>>> x
Tensor([[0., 5.],
        [5., 0.]])

putmask
>>> x = tensor([1.0, 2.0, 3.0])
>>> np.putmask(x, x > 1.5, x * 10)
>>> x
Tensor([ 1., 20., 30.])

quantile
>>> np.quantile(tensor([1.0, 2.0, 3.0, 5.0]), 0.5)
Tensor(2.5)

ravel
>>> np.ravel(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([1., 2., 3., 4.])

ravel_multi_index
>>> np.ravel_multi_index(([0, 1], [2, 0]), (2, 3))
array([2, 3])

real
>>> np.real(tensor([1 + 2j]))
Tensor([1.])

real_if_close
>>> np.real_if_close(tensor([1 + 0j, 2 + 0j]))
Tensor([1., 2.])

reciprocal
>>> vjp(np.reciprocal, tensor([2.0, 4.0]), np.ones(2))
(Tensor([0.5 , 0.25]), Tensor([-0.25  , -0.0625]))

repeat
>>> vjp(lambda x: np.repeat(x, [1, 2]), tensor([1.0, 2.0]), np.ones(3))
(Tensor([1., 2., 2.]), Tensor([1., 2.]))

require
>>> np.require(tensor([[1.0, 2.0]]), dtype=np.float32, requirements="F")
Tensor([[1., 2.]], dtype=float32)

reshape
>>> np.reshape(tensor([1.0, 2.0, 3.0, 4.0]), (2, -1))
Tensor([[1., 2.],
        [3., 4.]])

resize
>>> np.resize(tensor([1.0, 2.0, 3.0]), (2, 2))
Tensor([[1., 2.],
        [3., 1.]])

result_type
>>> np.result_type(tensor([1.0], dtype=np.float32), 2.0)
dtype('float32')

rint
>>> np.rint(tensor([1.4, 2.5]))
Tensor([1., 2.])

roll
>>> np.roll(tensor([1.0, 2.0, 3.0]), 1)
Tensor([3., 1., 2.])

rollaxis
>>> np.rollaxis(np.ones((2, 3, 4)), 2).shape
(4, 2, 3)

roots
>>> np.sort(np.roots(tensor([1.0, -3.0, 2.0]))).round(6)
Tensor([1., 2.])

rot90
>>> np.rot90(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[2., 4.],
        [1., 3.]])

row_stack
>>> import warnings
>>> with warnings.catch_warnings(action="ignore"):  # it is deprecated in favour of vstack
...     np.row_stack([tensor([1.0, 2.0]), tensor([3.0, 4.0])])
Tensor([[1., 2.],
        [3., 4.]])

save
>>> import io
>>> import numpy
>>> file = io.BytesIO()
>>> np.save(file, tensor([1.0, 2.0]))
>>> numpy.load(io.BytesIO(file.getvalue()))
array([1., 2.])

savetxt
>>> import io
>>> file = io.StringIO()
>>> np.savetxt(file, tensor([1.0, 2.5]), fmt="%.1f")
>>> file.getvalue()
'1.0\n2.5\n'

savez
>>> import io
>>> import numpy
>>> file = io.BytesIO()
>>> np.savez(file, x=tensor([1.0, 2.0]))
>>> numpy.load(io.BytesIO(file.getvalue()))["x"]
array([1., 2.])

savez_compressed
>>> import io
>>> file = io.BytesIO()
>>> np.savez_compressed(file, x=np.zeros(1000))
>>> len(file.getvalue()) < 1000
True

searchsorted
>>> np.searchsorted(tensor([1.0, 2.0, 3.0]), 2.5)
Tensor(2)

select
>>> x = tensor([-1.0, 0.5, 3.0])
>>> np.select([x < 0, x > 1], [-x, x**2], default=0.0)
Tensor([1., 0., 9.])

setdiff1d
>>> np.setdiff1d(tensor([3.0, 1.0, 2.0]), [2.0])
Tensor([1., 3.])

setxor1d
>>> np.setxor1d(tensor([3.0, 1.0]), [3.0, 2.0])
Tensor([1., 2.])

shape
>>> np.shape(tensor([[1.0, 2.0]]))
(1, 2)

shares_memory
>>> np.shares_memory(tensor([1.0]), tensor([1.0]))
False

sign
>>> np.sign(tensor([-2.0, 0.0, 3.0]))
Tensor([-1.,  0.,  1.])

signbit
>>> np.signbit(tensor([-0.0, 0.0, -1.0]))
Tensor([ True, False,  True])

sin
>>> vjp(np.sin, tensor(0.0))
(Tensor(0.), Tensor(1.))

sinc
>>> np.sinc(tensor([0.0, 0.5])) * np.pi
Tensor([3.14159265, 2.        ])

sinh
>>> vjp(np.sinh, tensor(0.0))
(Tensor(0.), Tensor(1.))

size
>>> np.size(tensor([[1.0, 2.0], [3.0, 4.0]]))
4

sort
>>> vjp(np.sort, tensor([3.0, 1.0, 2.0]), tensor([1.0, 10.0, 100.0]))
(Tensor([1., 2., 3.]), Tensor([100.,   1.,  10.]))

sort_complex
>>> np.sort_complex(tensor([2 + 1j, 1 + 0j]))
Tensor([1.+0.j, 2.+1.j])

spacing
>>> np.spacing(tensor([1.0])) == np.finfo(np.float64).eps
Tensor([ True])

split
>>> np.split(tensor([1.0, 2.0, 3.0, 4.0]), [1, 3])
[Tensor([1.]), Tensor([2., 3.]), Tensor([4.])]

sqrt
>>> vjp(np.sqrt, tensor([4.0, 25.0]), np.ones(2))
(Tensor([2., 5.]), Tensor([0.25, 0.1 ]))

square
>>> vjp(np.square, tensor([2.0, -3.0]), np.ones(2))
(Tensor([4., 9.]), Tensor([ 4., -6.]))

squeeze
>>> np.squeeze(tensor([[[1.0], [2.0]]]))
Tensor([1., 2.])

stack
>>> np.stack([tensor([1.0, 2.0]), tensor([3.0, 4.0])], axis=1)
Tensor([[1., 3.],
        [2., 4.]])

std
>>> np.std(tensor([1.0, 3.0]))
Tensor(1.)

subtract
>>> vjp(np.subtract, (tensor(5.0), tensor(3.0)))
(Tensor(2.), (Tensor(1.), Tensor(-1.)))

sum
>>> vjp(lambda x: np.sum(x, axis=1), tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1.0, 10.0]))
(Tensor([3., 7.]), Tensor([[ 1.,  1.],
        [10., 10.]]))

swapaxes
>>> np.swapaxes(np.ones((2, 3, 4)), 0, 2).shape
(4, 3, 2)

take
>>> np.take(tensor([10.0, 20.0, 30.0]), [2, 0, 2])
Tensor([30., 10., 30.])

take_along_axis
>>> x = tensor([[3.0, 1.0], [2.0, 4.0]])
>>> np.take_along_axis(x, np.argsort(x, axis=1), axis=1)
Tensor([[1., 3.],
        [2., 4.]])

tan
>>> vjp(np.tan, tensor(0.0))
(Tensor(0.), Tensor(1.))

tanh
>>> vjp(np.tanh, tensor(0.0))
(Tensor(0.), Tensor(1.))

tensordot
>>> np.tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5)), axes=2).shape
(2, 5)

tile
>>> np.tile(tensor([1.0, 2.0]), (2, 2))
Tensor([[1., 2., 1., 2.],
        [1., 2., 1., 2.]])

trace
>>> vjp(np.trace, tensor([[1.0, 2.0], [3.0, 4.0]]))
(Tensor(5.), Tensor([[1., 0.],
        [0., 1.]]))

trapezoid
>>> np.trapezoid(tensor([0.0, 1.0, 4.0]), [0.0, 1.0, 3.0])
Tensor(5.5)

tri
>>> np.tri(3)
Tensor([[1., 0., 0.],
        [1., 1., 0.],
        [1., 1., 1.]])

tril
>>> np.tril(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[1., 0.],
        [3., 4.]])

tril_indices
>>> rows, columns = np.tril_indices(2)
>>> rows, columns
(Tensor([0, 1, 1]), Tensor([0, 0, 1]))

tril_indices_from
>>> np.tril_indices_from(np.eye(2))
(Tensor([0, 1, 1]), Tensor([0, 0, 1]))

trim_zeros
>>> np.trim_zeros(tensor([0.0, 1.0, 0.0, 2.0, 0.0]))
Tensor([1., 0., 2.])

triu
>>> np.triu(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([[1., 2.],
        [0., 4.]])

triu_indices
>>> rows, columns = np.triu_indices(2)
>>> rows, columns
(Tensor([0, 0, 1]), Tensor([0, 1, 1]))

triu_indices_from
>>> np.triu_indices_from(np.eye(2))
(Tensor([0, 0, 1]), Tensor([0, 1, 1]))

trunc
>>> np.trunc(tensor([1.7, -1.7]))
Tensor([ 1., -1.])

union1d
>>> np.union1d(tensor([3.0, 1.0]), [2.0, 3.0])
Tensor([1., 2., 3.])

unique
>>> np.unique(tensor([3.0, 1.0, 3.0]), return_counts=True)
(Tensor([1., 3.]), Tensor([1, 2]))

unique_all
>>> np.unique_all(tensor([3.0, 1.0, 3.0])).inverse_indices
Tensor([1, 0, 1])

unique_counts
>>> np.unique_counts(tensor([3.0, 1.0, 3.0])).counts
Tensor([1, 2])

unique_inverse
>>> np.unique_inverse(tensor([3.0, 1.0, 3.0])).inverse_indices
Tensor([1, 0, 1])

unique_values
>>> np.unique_values(tensor([3.0, 1.0, 3.0]))
Tensor([1., 3.])

unpackbits
>>> np.unpackbits(tensor([131], dtype=np.uint8))
Tensor([1, 0, 0, 0, 0, 0, 1, 1], dtype=uint8)

unravel_index
>>> np.unravel_index(tensor([2, 3]), (2, 3))
(Tensor([0, 1]), Tensor([2, 0]))

unstack
>>> np.unstack(tensor([[1.0, 2.0], [3.0, 4.0]]))
(Tensor([1., 2.]), Tensor([3., 4.]))

unwrap
>>> np.unwrap(tensor([0.0, 5.0, 1.0]), period=4.0)
Tensor([0., 1., 1.])

vander
>>> np.vander(tensor([2.0, 3.0]), 3)
Tensor([[4., 2., 1.],
        [9., 3., 1.]])

var
>>> vjp(np.var, tensor([1.0, 3.0]))
(Tensor(1.), Tensor([-1.,  1.]))

vdot
>>> np.vdot(tensor([1 + 2j]), tensor([1 + 2j]))
Tensor(5.+0.j)

vecdot
>>> np.vecdot(tensor([[1.0, 2.0], [3.0, 4.0]]), [1.0, 10.0])
Tensor([21., 43.])

vecmat
>>> np.vecmat(tensor([1.0, 10.0]), tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([31., 42.])

vsplit
>>> np.vsplit(tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
[Tensor([[1., 2.]]), Tensor([[3., 4.]])]

vstack
>>> np.vstack([tensor([1.0, 2.0]), tensor([3.0, 4.0])])
Tensor([[1., 2.],
        [3., 4.]])

where
>>> vjp(lambda x: np.where(x > 0, x, 0.1 * x), tensor([-10.0, 5.0]), np.ones(2))
(Tensor([-1.,  5.]), Tensor([0.1, 1. ]))

zeros
>>> np.zeros((2, 2), dtype=np.int64)
Tensor([[0, 0],
        [0, 0]])

zeros_like
>>> np.zeros_like(tensor([[1.0, 2.0]]))
Tensor([[0., 0.]])
""")

LINALG = _read("""
cholesky
>>> np.linalg.cholesky(tensor([[4.0, 2.0], [2.0, 10.0]]))
Tensor([[2., 0.],
        [1., 3.]])

cond
>>> np.linalg.cond(tensor([[4.0, 0.0], [0.0, 2.0]]))
Tensor(2.)

cross
>>> np.linalg.cross(tensor([1.0, 0.0, 0.0]), tensor([0.0, 1.0, 0.0]))
Tensor([0., 0., 1.])

det
>>> vjp(np.linalg.det, tensor([[2.0, 0.0], [0.0, 3.0]]))
(Tensor(6.), Tensor([[3., 0.],
        [0., 2.]]))

diagonal
>>> np.linalg.diagonal(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor([1., 4.])

eig
>>> values, vectors = np.linalg.eig(tensor([[2.0, 0.0], [0.0, 3.0]]))
>>> np.real(values)
Tensor([2., 3.])

eigh
>>> values, vectors = np.linalg.eigh(tensor([[2.0, 1.0], [1.0, 2.0]]))
>>> values
Tensor([1., 3.])

eigvals
>>> np.real(np.linalg.eigvals(tensor([[2.0, 1.0], [0.0, 3.0]])))
Tensor([2., 3.])

eigvalsh
>>> np.linalg.eigvalsh(tensor([[2.0, 1.0], [1.0, 2.0]]))
Tensor([1., 3.])

inv
>>> np.linalg.inv(tensor([[2.0, 0.0], [0.0, 4.0]]))
Tensor([[0.5 , 0.  ],
        [0.  , 0.25]])

lstsq
>>> x, residuals, rank, singular = np.linalg.lstsq(tensor([[1.0], [1.0]]), tensor([1.0, 3.0]))
>>> x, residuals, rank
(Tensor([2.]), Tensor([2.]), Tensor(1, dtype=int32))

matmul
>>> np.linalg.matmul(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[1.0], [10.0]]))
Tensor([[21.],
        [43.]])

matrix_norm
>>> np.linalg.matrix_norm(tensor([[3.0, 0.0], [0.0, 4.0]]))
Tensor(5.)

matrix_power
>>> np.linalg.matrix_power(tensor([[1.0, 1.0], [0.0, 1.0]]), 5)
Tensor([[1., 5.],
        [0., 1.]])

matrix_rank
>>> np.linalg.matrix_rank(tensor([[1.0, 2.0], [2.0, 4.0]]))
Tensor(1)

multi_dot
>>> np.linalg.multi_dot([np.ones((9, 2)), np.ones((2, 9)), tensor([1.0] * 9)])[0]
Tensor(18.)

norm
>>> vjp(np.linalg.norm, tensor([3.0, 4.0]))
(Tensor(5.), Tensor([0.6, 0.8]))

outer
>>> np.linalg.outer(tensor([1.0, 2.0]), tensor([1.0, 10.0]))
Tensor([[ 1., 10.],
        [ 2., 20.]])

pinv
>>> np.linalg.pinv(tensor([[2.0, 0.0], [0.0, 0.0]]))
Tensor([[0.5, 0. ],
        [0. , 0. ]])

qr
>>> q, r = np.linalg.qr(tensor([[3.0, 1.0], [4.0, 2.0]]))
>>> (q @ r).round(6)
Tensor([[3., 1.],
        [4., 2.]])

slogdet
>>> np.linalg.slogdet(tensor([[0.0, 1.0], [1.0, 0.0]]))
SlogdetResult(sign=Tensor(-1.), logabsdet=Tensor(0.))

solve
>>> vjp(lambda b: np.linalg.solve([[2.0, 0.0], [0.0, 4.0]], b), tensor([2.0, 8.0]), np.ones(2))
(Tensor([1., 2.]), Tensor([0.5 , 0.25]))

svd
>>> u, s, vh = np.linalg.svd(tensor([[3.0, 0.0], [0.0, 4.0]]))
>>> s
Tensor([4., 3.])

svdvals
>>> np.linalg.svdvals(tensor([[3.0, 0.0], [0.0, 4.0]]))
Tensor([4., 3.])

tensordot
>>> np.linalg.tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5))).shape
(2, 5)

tensorinv
>>> np.linalg.tensorinv(np.eye(6).reshape(2, 3, 6), ind=2).shape
(6, 2, 3)

tensorsolve
>>> np.linalg.tensorsolve(tensor([[2.0, 0.0], [0.0, 4.0]]), tensor([2.0, 8.0]))
Tensor([1., 2.])

trace
>>> np.linalg.trace(tensor([[1.0, 2.0], [3.0, 4.0]]))
Tensor(5.)

vecdot
>>> np.linalg.vecdot(tensor([[1.0, 2.0], [3.0, 4.0]]), [1.0, 10.0])
Tensor([21., 43.])

vector_norm
>>> np.linalg.vector_norm(tensor([[3.0, 4.0], [6.0, 8.0]]), axis=1)
Tensor([ 5., 10.])
""")

FFT = _read("""
fft
>>> np.fft.fft(tensor([1.0, 0.0, 0.0, 0.0]))
Tensor([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])

fft2
>>> np.fft.fft2(tensor([[1.0, 0.0], [0.0, 0.0]]))
Tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]])

fftfreq
>>> np.fft.fftfreq(4, d=0.5)
Tensor([ 0. ,  0.5, -1. , -0.5])

fftn
>>> np.fft.fftn(tensor([[1.0, 1.0], [1.0, 1.0]]))
Tensor([[4.+0.j, 0.+0.j],
        [0.+0.j, 0.+0.j]])

fftshift
>>> np.fft.fftshift(tensor([0.0, 1.0, -2.0, -1.0]))
Tensor([-2., -1.,  0.,  1.])

hfft
>>> np.fft.hfft(tensor([1.0, 2.0, 1.0]))
Tensor([ 6.,  0., -2.,  0.])

ifft
>>> np.fft.ifft(tensor([1.0, 1.0, 1.0, 1.0]))
Tensor([1.+0.j, 0.+0.j, 0.+0.j, 0.+0.j])

ifft2
>>> np.fft.ifft2(tensor([[1.0, 1.0], [1.0, 1.0]]))
Tensor([[1.+0.j, 0.+0.j],
        [0.+0.j, 0.+0.j]])

ifftn
>>> np.fft.ifftn(tensor([[4.0, 0.0], [0.0, 0.0]]))
Tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]])

ifftshift
>>> np.fft.ifftshift(tensor([-2.0, -1.0, 0.0, 1.0]))
Tensor([ 0.,  1., -2., -1.])

ihfft
>>> np.real(np.fft.ihfft(tensor([6.0, 0.0, -2.0, 0.0])))
Tensor([1., 2., 1.])

irfft
>>> np.fft.irfft(tensor([1.0, 1.0, 1.0]))
Tensor([1., 0., 0., 0.])

irfft2
>>> np.fft.irfft2(tensor([[1.0, 1.0], [1.0, 1.0]]))
Tensor([[1., 0.],
        [0., 0.]])

irfftn
>>> np.fft.irfftn(tensor([[4.0, 0.0], [0.0, 0.0]]))
Tensor([[1., 1.],
        [1., 1.]])

rfft
>>> vjp(lambda x: np.real(np.fft.rfft(x)), tensor([1.0, 0.0, 0.0, 0.0]), tensor([1.0, 0.0, 0.0]))
(Tensor([1., 1., 1.]), Tensor([1., 1., 1., 1.]))

rfft2
>>> np.fft.rfft2(tensor([[1.0, 1.0], [1.0, 1.0]]))
Tensor([[4.+0.j, 0.+0.j],
        [0.+0.j, 0.+0.j]])

rfftfreq
>>> np.fft.rfftfreq(4, d=0.5)
Tensor([0. , 0.5, 1. ])

rfftn
>>> np.fft.rfftn(tensor([[1.0, 0.0], [0.0, 0.0]]))
Tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]])
""")

SPECIAL = _read("""
beta
>>> special.beta(tensor([2.0]), 3.0) * 12
Tensor([1.])

betaln
>>> np.exp(special.betaln(tensor([2.0]), 3.0)) * 12
Tensor([1.])

digamma
>>> special.digamma(tensor([2.0])) - special.digamma(tensor([1.0]))
Tensor([1.])

entr
>>> special.entr(tensor([0.0, 0.5])) / np.log(2.0)
Tensor([0. , 0.5])

erf
>>> vjp(special.erf, tensor(0.0), np.sqrt(tensor(np.pi)))
(Tensor(0.), Tensor(2.))

erfc
>>> special.erfc(tensor([0.0, 30.0]))[0]
Tensor(1.)

erfcinv
>>> special.erfcinv(special.erfc(tensor([0.5])))
Tensor([0.5])

erfcx
>>> special.erfcx(tensor([0.0]))
Tensor([1.])

erfinv
>>> special.erfinv(special.erf(tensor([0.5])))
Tensor([0.5])

expit
>>> vjp(special.expit, tensor(0.0))
(Tensor(0.5), Tensor(0.25))

expm1
>>> special.expm1(tensor([1e-12]))
Tensor([1.e-12])

exprel
>>> vjp(special.exprel, tensor(0.0))
(Tensor(1.), Tensor(0.5))

gamma
>>> special.gamma(tensor([5.0]))
Tensor([24.])

gammainc
>>> special.gammainc(1.0, tensor([np.log(2.0)]))
Tensor([0.5])

gammaincc
>>> special.gammaincc(1.0, tensor([np.log(4.0)]))
Tensor([0.25])

gammainccinv
>>> special.gammainccinv(1.0, tensor([0.25])) / np.log(4.0)
Tensor([1.])

gammaincinv
>>> special.gammaincinv(1.0, tensor([0.5])) / np.log(2.0)
Tensor([1.])

gammaln
>>> np.exp(special.gammaln(tensor([5.0])))
Tensor([24.])

i0
>>> special.i0(tensor([0.0]))
Tensor([1.])

i0e
>>> special.i0e(tensor([0.0]))
Tensor([1.])

i1
>>> vjp(special.i1, tensor(0.0))
(Tensor(0.), Tensor(0.5))

i1e
>>> vjp(special.i1e, tensor(0.0))
(Tensor(0.), Tensor(0.5))

iv
>>> special.iv(0, tensor([1.0])) / special.i0(1.0)
Tensor([1.])

j0
>>> special.j0(tensor([0.0]))
Tensor([1.])

j1
>>> vjp(special.j1, tensor(0.0))
(Tensor(0.), Tensor(0.5))

jv
>>> special.jv(1, tensor([2.0])) / special.j1(2.0)
Tensor([1.])

kl_div
>>> special.kl_div(tensor([2.0]), 1.0) - 2 * np.log(2.0)
Tensor([-1.])

log1p
>>> special.log1p(tensor([1e-12]))
Tensor([1.e-12])

log_expit
>>> special.log_expit(tensor([-1000.0]))
Tensor([-1000.])

log_ndtr
>>> np.exp(special.log_ndtr(tensor([0.0])))
Tensor([0.5])

log_softmax
>>> np.exp(special.log_softmax(np.log(tensor([1.0, 3.0]))))
Tensor([0.25, 0.75])

loggamma
>>> np.exp(special.loggamma(tensor([5.0])))
Tensor([24.])

logit
>>> special.logit(special.expit(tensor([0.5, -2.0])))
Tensor([ 0.5, -2. ])

multigammaln
>>> special.multigammaln(tensor([2.0]), 1) == special.gammaln(2.0)
Tensor([ True])

ndtr
>>> vjp(special.ndtr, tensor(0.0), np.sqrt(tensor(2 * np.pi)))
(Tensor(0.5), Tensor(1.))

ndtri
>>> special.ndtri(tensor([0.5]))
Tensor([0.])

polygamma
>>> special.polygamma(1, tensor([1.0])) * 6 / np.pi**2
Tensor([1.])

rel_entr
>>> special.rel_entr(tensor([2.0, 0.0]), [2.0, 1.0])
Tensor([0., 0.])

softmax
>>> special.softmax(np.log(tensor([1.0, 3.0])))
Tensor([0.25, 0.75])

xlog1py
>>> special.xlog1py(tensor([0.0]), -1.0)
Tensor([0.])

xlogy
>>> special.xlogy(tensor([0.0, 1.0]), [0.0, 1.0])
Tensor([0., 0.])

zeta
>>> special.zeta(2, tensor([1.0])) * 6 / np.pi**2
Tensor([1.])
""")

METHODS = _read("""
abs_
>>> tensor([-2.0]).abs_()
Tensor([2.])

absolute_
>>> tensor([-2.0]).absolute_()
Tensor([2.])

acos_
>>> tensor([1.0]).acos_()
Tensor([0.])

acosh_
>>> tensor([2.0]).acosh_()
Tensor([1.3169579])

all
>>> tensor([[1, 0], [1, 1]]).all(axis=1)
Tensor([False,  True])

any
>>> tensor([[0, 0], [1, 0]]).any(axis=1)
Tensor([False,  True])

arccos_
>>> tensor([1.0]).arccos_()
Tensor([0.])

arccosh_
>>> tensor([2.0]).arccosh_()
Tensor([1.3169579])

arcsin_
>>> tensor([0.5]).arcsin_()
Tensor([0.52359878])

arcsinh_
>>> tensor([0.5]).arcsinh_()
Tensor([0.48121183])

arctan2_
>>> tensor([1.0]).arctan2_(tensor([1.0]))
Tensor([0.78539816])

arctan_
>>> tensor([0.5]).arctan_()
Tensor([0.46364761])

arctanh_
>>> tensor([0.5]).arctanh_()
Tensor([0.54930614])

argmax
>>> tensor([1.0, 3.0, 2.0]).argmax()
Tensor(1)

argmin
>>> tensor([[1.0, 3.0], [2.0, 0.0]]).argmin(axis=1)
Tensor([0, 1])

argpartition
>>> tensor([3.0, 1.0, 2.0]).argpartition(1)[1]
Tensor(2)

argsort
>>> tensor([3.0, 1.0, 2.0]).argsort()
Tensor([1, 2, 0])

asin_
>>> tensor([0.5]).asin_()
Tensor([0.52359878])

asinh_
>>> tensor([0.5]).asinh_()
Tensor([0.48121183])

astype
>>> tensor([1.0, 2.5]).astype("float32")
Tensor([1. , 2.5], dtype=float32)

atan2_
>>> tensor([1.0]).atan2_(tensor([1.0]))
Tensor([0.78539816])

atan_
>>> tensor([0.5]).atan_()
Tensor([0.46364761])

atanh_
>>> tensor([0.5]).atanh_()
Tensor([0.54930614])

bitwise_and_
>>> tensor([6]).bitwise_and_(3)
Tensor([2])

bitwise_left_shift_
>>> tensor([6]).bitwise_left_shift_(1)
Tensor([12])

bitwise_not_
>>> tensor([0, 5]).bitwise_not_()
Tensor([-1, -6])

bitwise_or_
>>> tensor([6]).bitwise_or_(3)
Tensor([7])

bitwise_right_shift_
>>> tensor([6]).bitwise_right_shift_(1)
Tensor([3])

bitwise_xor_
>>> tensor([6]).bitwise_xor_(3)
Tensor([5])

ceil_
>>> tensor([1.5]).ceil_()
Tensor([2.])

choose
>>> tensor([0, 1]).choose([[1.0, 2.0], [10.0, 20.0]])
Tensor([ 1., 20.])

clip
>>> tensor([-2.0, 0.5, 3.0]).clip(0.0, 1.0)
Tensor([0. , 0.5, 1. ])

compress
>>> tensor([1.0, 2.0, 3.0]).compress([True, False, True])
Tensor([1., 3.])

conj
>>> tensor([1 + 2j]).conj()
Tensor([1.-2.j])

conj_physical_
>>> tensor([1 + 2j]).conj_physical_()
Tensor([1.-2.j])

conjugate
>>> tensor([1 + 2j]).conjugate()
Tensor([1.-2.j])

copy
>>> x = tensor([1.0, 2.0])
>>> y = x.copy()
>>> y += 1
>>> x
Tensor([1., 2.])

copysign_
>>> tensor([2.0]).copysign_(-1.0)
Tensor([-2.])

cos_
>>> tensor([0.5]).cos_()
Tensor([0.87758256])

cosh_
>>> tensor([0.5]).cosh_()
Tensor([1.12762597])

cumprod
>>> tensor([2.0, 3.0, 4.0]).cumprod()
Tensor([ 2.,  6., 24.])

cumsum
>>> tensor([2.0, 3.0, 4.0]).cumsum()
Tensor([2., 5., 9.])

deg2rad_
>>> tensor([180.0]).deg2rad_()
Tensor([3.14159265])

diagonal
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).diagonal()
Tensor([1., 4.])

digamma_
>>> tensor([1.0]).digamma_()
Tensor([-0.57721566])

dot
>>> tensor([1.0, 2.0]).dot([3.0, 4.0])
Tensor(11.)

erf_
>>> tensor([0.5]).erf_()
Tensor([0.52049988])

erfc_
>>> tensor([0.5]).erfc_()
Tensor([0.47950012])

erfinv_
>>> tensor([0.5]).erfinv_()
Tensor([0.47693628])

exp2_
>>> tensor([3.0]).exp2_()
Tensor([8.])

exp_
>>> tensor([0.5]).exp_()
Tensor([1.64872127])

expm1_
>>> tensor([1e-12]).expm1_()
Tensor([1.e-12])

fill
>>> x = tensor([1.0, 2.0])
>>> x.fill(0.5)
>>> x
Tensor([0.5, 0.5])

fix_
>>> tensor([-1.5]).fix_()
Tensor([-1.])

flat
>>> x = tensor([[1.0, 2.0], [3.0, 4.0]])
>>> x.flat[3] = 9.0
>>> x
Tensor([[1., 2.],
        [3., 9.]])

flatten
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).flatten()
Tensor([1., 2., 3., 4.])

float_power_
>>> tensor([3.0]).float_power_(2)
Tensor([9.])

floor_
>>> tensor([1.5]).floor_()
Tensor([1.])

floor_divide_
>>> tensor([7.0]).floor_divide_(2.0)
Tensor([3.])

fmod_
>>> tensor([-7.0]).fmod_(3.0)
Tensor([-1.])

gcd_
>>> tensor([12]).gcd_(8)
Tensor([4])

heaviside_
>>> tensor([-1.0, 0.0, 2.0]).heaviside_(0.5)
Tensor([0. , 0.5, 1. ])

hypot_
>>> tensor([3.0]).hypot_(4.0)
Tensor([5.])

i0_
>>> tensor([0.5]).i0_()
Tensor([1.06348337])

imag
>>> tensor([1 + 2j]).imag
Tensor([2.])

lcm_
>>> tensor([4]).lcm_(6)
Tensor([12])

ldexp_
>>> tensor([1.5]).ldexp_(2)
Tensor([6.])

lgamma_
>>> tensor([4.0]).lgamma_()
Tensor([1.79175947])

log10_
>>> tensor([100.0]).log10_()
Tensor([2.])

log1p_
>>> tensor([1e-12]).log1p_()
Tensor([1.e-12])

log2_
>>> tensor([8.0]).log2_()
Tensor([3.])

log_
>>> tensor([1.0]).log_()
Tensor([0.])

logical_and_
>>> tensor([True, True]).logical_and_(tensor([True, False]))
Tensor([ True, False])

logical_not_
>>> tensor([True, False]).logical_not_()
Tensor([False,  True])

logical_or_
>>> tensor([True, False]).logical_or_(tensor([False, False]))
Tensor([ True, False])

logical_xor_
>>> tensor([True, True]).logical_xor_(tensor([True, False]))
Tensor([False,  True])

max
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).max(axis=0)
Tensor([3., 4.])

mean
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=0)
Tensor([2., 3.])

min
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).min(axis=0)
Tensor([1., 2.])

mT
>>> tensor([[[1.0, 2.0]]]).mT
Tensor([[[1.],
         [2.]]])

mul_
>>> tensor([2.0, 3.0]).mul_(10.0)
Tensor([20., 30.])

multiply_
>>> tensor([2.0, 3.0]).multiply_(10.0)
Tensor([20., 30.])

neg_
>>> tensor([2.0]).neg_()
Tensor([-2.])

negative_
>>> tensor([2.0]).negative_()
Tensor([-2.])

nextafter_
>>> tensor([1.0]).nextafter_(2.0) - 1
Tensor([2.22044605e-16])

nonzero
>>> tensor([0.0, 5.0, 7.0]).nonzero()
(Tensor([1, 2]),)

partition
>>> x = tensor([3.0, 1.0, 2.0])
>>> x.partition(1)
>>> x[1]
Tensor(2.)

pow_
>>> tensor([3.0]).pow_(2)
Tensor([9.])

prod
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).prod(axis=0)
Tensor([3., 8.])

put
>>> x = tensor([1.0, 2.0, 3.0])
>>> x.put([0, 2], [10.0, 30.0])
>>> x
Tensor([10.,  2., 30.])

rad2deg_
>>> tensor([3.141592653589793]).rad2deg_()
Tensor([180.])

ravel
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).ravel()
Tensor([1., 2., 3., 4.])

real
>>> tensor([1 + 2j]).real
Tensor([1.])

reciprocal_
>>> tensor([4.0]).reciprocal_()
Tensor([0.25])

remainder_
>>> tensor([-7.0]).remainder_(3.0)
Tensor([2.])

repeat
>>> tensor([1.0, 2.0]).repeat(2)
Tensor([1., 1., 2., 2.])

reshape
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(4)
Tensor([1., 2., 3., 4.])

round
>>> tensor([1.26, -0.34]).round(1)
Tensor([ 1.3, -0.3])

searchsorted
>>> tensor([1.0, 2.0, 3.0]).searchsorted(2.5)
Tensor(2)

sgn_
>>> tensor([-2.0]).sgn_()
Tensor([-1.])

sigmoid_
>>> tensor([0.5]).sigmoid_()
Tensor([0.62245933])

sign_
>>> tensor([-2.0]).sign_()
Tensor([-1.])

sin_
>>> tensor([0.5]).sin_()
Tensor([0.47942554])

sinc_
>>> tensor([0.5]).sinc_()
Tensor([0.63661977])

sinh_
>>> tensor([0.5]).sinh_()
Tensor([0.52109531])

sort
>>> x = tensor([3.0, 1.0, 2.0])
>>> x.sort()
>>> x
Tensor([1., 2., 3.])

sqrt_
>>> tensor([9.0]).sqrt_()
Tensor([3.])

square_
>>> tensor([3.0]).square_()
Tensor([9.])

squeeze
>>> tensor([[1.0, 2.0]]).squeeze()
Tensor([1., 2.])

std
>>> tensor([1.0, 3.0]).std()
Tensor(1.)

sum
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).sum(axis=0)
Tensor([4., 6.])

swapaxes
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).swapaxes(0, 1)
Tensor([[1., 3.],
        [2., 4.]])

T
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).T
Tensor([[1., 3.],
        [2., 4.]])

take
>>> tensor([10.0, 20.0, 30.0]).take([2, 0])
Tensor([30., 10.])

tan_
>>> tensor([0.5]).tan_()
Tensor([0.54630249])

tanh_
>>> tensor([0.5]).tanh_()
Tensor([0.46211716])

to
>>> tensor([1.0]).to("cpu").device
'cpu'

to_device
>>> tensor([1.0]).to_device("cpu").device
'cpu'

trace
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).trace()
Tensor(5.)

transpose
>>> tensor([[1.0, 2.0], [3.0, 4.0]]).transpose()
Tensor([[1., 3.],
        [2., 4.]])

trunc_
>>> tensor([-1.5]).trunc_()
Tensor([-1.])

var
>>> tensor([1.0, 3.0]).var()
Tensor(1.)

xlogy_
>>> tensor([0.0, 2.0]).xlogy_(tensor([0.0, 1.0]))
Tensor([0., 0.])
""")
