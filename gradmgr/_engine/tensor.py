"""Tensor: an array, its gradient, and a private link to the recorder that tracks it.

The operators and NumPy-like methods are bound onto the class by `gradmgr.ops`,
where each is declared once; here are the fields, shape and dtype, and the conversions to and from other types.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._arrays.listening import computed, listener
from gradmgr._engine import write_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradmgr._engine.tensor_members import TensorMembers  # a stub: what is bound onto Tensor at import
else:
    TensorMembers = object


class Tensor(TensorMembers):
    """A NumPy or CuPy array whose operations a GradManager can record.

    Made by `gradmgr.tensor` (copies) and `gradmgr.asarray` (shares); calling the class is the
    same as `tensor`. A Tensor is a value: a slice, a transpose or a `detach()` never changes
    because another tensor was written to. It hashes by identity, like a parameter, and compares
    elementwise, like an array.

    Raises:
        TypeError: `data` is not of numbers, or `dtype` does not name a dtype.
        ValueError: lists differ in length, or `device` is unknown.

    >>> t = Tensor([1.0, 2.0])
    >>> (t * t).tolist()
    [1.0, 4.0]
    """

    # _rec, _node_id: a recorder that tracks this tensor, and its node id there. _overflow_ids: the node ids of further
    # recorders. _hooks: of a tensor that was attached. _grad, _hooks and _overflow_ids are left unset by the generated
    # op functions: each store costs. _view_of: see below.
    __slots__ = ("__weakref__", "_array", "_grad", "_hooks", "_node_id", "_overflow_ids", "_rec", "_view_of")

    _array: Any
    _guarded: type  # see write_lock
    _unguarded: type
    _read_array: Any
    _rec: Any
    _node_id: Any
    _grad: Tensor | None
    _overflow_ids: dict[Any, Any]
    _hooks: Any
    _check_uncut: Callable[..., None]  # see `conversion`
    _check_saved: Callable[[str], None]
    # What NumPy would have in place of this tensor. None: what an operation returned, an array, or without axes a
    # number, which no augmented assignment changes. (): an array that was made as such. Anything else: a view of
    # tensors, see `views`.
    _view_of: tuple[Any, ...] | None

    def __init__(self, data: Any, dtype: Any = None, device: str | None = None) -> None:
        self._array = _fresh(data, dtype, device)
        self._rec = None
        self._view_of = ()
        heard = listener()
        if heard is not None:
            heard.note_new(self)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        write_lock.add_guarded_class(cls)

    __hash__ = object.__hash__

    # Whether it is a `RowSparse`, of which only some rows are stored.
    is_sparse = False

    # ------------------------------------------------------------ shape, dtype, gradient

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes.

        >>> import gradmgr
        >>> gradmgr.tensor([[1.0, 2.0]]).shape
        (1, 2)
        """
        return self._array.shape  # type: ignore[no-any-return]  # arrays are Any: NumPy's or CuPy's

    @shape.setter
    def shape(self, value: Any) -> NoReturn:
        raise AttributeError("the shape of a Tensor cannot be set: write t.reshape(shape), which returns another one")

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements.

        >>> import gradmgr
        >>> gradmgr.tensor([1.0, 2.0]).dtype
        dtype('float64')
        """
        return self._array.dtype  # type: ignore[no-any-return]  # as above

    @dtype.setter
    def dtype(self, value: Any) -> NoReturn:
        raise AttributeError("the dtype of a Tensor cannot be set: write t.astype(dtype), which returns another one")

    @property
    def ndim(self) -> int:
        """Number of axes.

        >>> import gradmgr
        >>> gradmgr.tensor([[1.0, 2.0]]).ndim
        2
        """
        return self._array.ndim  # type: ignore[no-any-return]  # as above

    @property
    def size(self) -> int:
        """Number of elements.

        >>> import gradmgr
        >>> gradmgr.tensor([[1.0, 2.0]]).size
        2
        """
        return int(self._array.size)

    @property
    def itemsize(self) -> int:
        """Bytes per element.

        >>> import gradmgr
        >>> gradmgr.tensor([1.0, 2.0]).itemsize
        8
        """
        return int(self._array.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements.

        >>> import gradmgr
        >>> gradmgr.tensor([1.0, 2.0]).nbytes
        16
        """
        return int(self._array.nbytes)

    @property
    def device(self) -> str:
        """Where the array lives: "cpu" or "cuda:0".

        >>> import gradmgr
        >>> gradmgr.tensor(1.0).device
        'cpu'
        """
        return libraries.device_of(self._array)

    @device.setter
    def device(self, value: Any) -> NoReturn:
        raise AttributeError("the device of a Tensor cannot be set: write t.to(device), which returns another one")

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `GradManager.backward` accumulated here, or None.

        Raises:
            TypeError: on assigning anything but None or a Tensor of this tensor's dtype and device.
            ValueError: on assigning a Tensor of another shape, or the tensor itself.

        >>> import gradmgr
        >>> x = gradmgr.tensor(3.0)
        >>> with gradmgr.GradManager().attach(x) as gm:
        ...     gm.backward(x * x)
        >>> x.grad
        Tensor(6.)
        """
        heard = listener()
        if heard is not None:
            heard.meet_grad(self)
        try:
            return self._grad
        except AttributeError:
            return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        heard = listener()
        if heard is not None:
            heard.meet_grad(self)
        if value is not None:
            self._check_grad(value)
            # vmap looks at its end whether it stayed there.
            if not value.is_sparse and value._array.__class__ is batched.Batched:
                value._array.level.note_gradient(self, None if self.grad is value else self.grad)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def _check_grad(self, value: object) -> None:
        if not isinstance(value, Tensor):
            raise errors.DtypeError(
                f"the .grad of {describe(self)} must be a Tensor or None; found {type(value).__name__}; "
                "wrap an array with gradmgr.tensor(...)"
            )
        if value is self:
            raise ValueError(f"the .grad of {describe(self)} cannot be that tensor itself; assign its clone()")
        if value.shape != self.shape:
            raise errors.ShapeError(
                f"the .grad of {describe(self)} must have its shape {self.shape}; found shape {value.shape}"
            )
        if value.dtype != self.dtype:
            raise errors.DtypeError(
                f"the .grad of {describe(self)} must have its dtype {self.dtype}; found {value.dtype}; "
                f"convert it with .astype({str(self.dtype)!r})"
            )
        if value.device != self.device:
            raise errors.DtypeError(
                f"the .grad of {describe(self)} must live on {self.device}; found {value.device}; "
                f"move it with .to({self.device!r})"
            )

    def __len__(self) -> int:
        if self._array.ndim == 0:
            raise TypeError("len() of unsized object: a 0-d Tensor")
        return len(self._array)

    def __repr__(self) -> str:
        leaves(self, "the text of a Tensor")
        if batched.is_batched(self._array):
            return f"Tensor({self._array!r})"
        values = _host(self._array)
        body = np.array2string(values, separator=", ", prefix="Tensor(", threshold=1000)
        usual = values.dtype in (np.float64, np.int64, np.bool_, np.complex128) and values.size > 0
        dtype = "" if usual else f", dtype={values.dtype}"
        device = "" if self.device == "cpu" else f", device={self.device!r}"
        return f"Tensor({body}{dtype}{device})"

    def __format__(self, spec: str) -> str:
        leaves(self, "the text of a Tensor")
        if not spec:
            return str(self)
        if self.size != 1:
            raise TypeError(f"format {spec!r} is for one number; found {describe(self)}; format its elements")
        return format(_host(self._array).item(), spec)

    def __str__(self) -> str:
        leaves(self, "the text of a Tensor")
        return repr(self) if batched.is_batched(self._array) else str(_host(self._array))

    # ------------------------------------------------------------ conversions

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a read-only NumPy array: a view on the CPU, a copy from a GPU.

        A later in-place write to the tensor does not change an array taken before.

        >>> import gradmgr
        >>> gradmgr.tensor([1.0, 2.0]).numpy()
        array([1., 2.])
        """
        cut(self, "numpy()")
        leaves(self, "numpy() of a Tensor")
        if libraries.device_of(self._array) != "cpu":
            return np.asarray(self._array.get())
        view = np.asarray(self._array).view()
        view.flags.writeable = False
        return view

    def cupy(self) -> Any:
        """Return the values as a CuPy array, a copy; from the CPU they are moved to the current GPU.

        Raises:
            RuntimeError: CuPy is not installed, or there is no GPU.
        """
        cut(self, "cupy()")
        leaves(self, "cupy() of a Tensor")
        if libraries.device_of(self._array) != "cpu":
            return self._array.copy()
        return libraries.import_cupy("Tensor.cupy()").asarray(self._array)

    def item(self, *args: int) -> Any:
        """Return one element as a Python number; without arguments the tensor must have one element.

        Raises:
            ValueError: the tensor has several elements and no index is given.
            IndexError: the index is out of bounds.

        >>> import gradmgr
        >>> gradmgr.tensor([1.0, 2.0]).item(1)
        2.0
        """
        if not args:
            check_one_number(self, "item()", ValueError)
        cut(self, "item()")
        leaves(self, "item() of a Tensor")
        return _host(self._array).item(*args)

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers.

        >>> import gradmgr
        >>> gradmgr.tensor([[1.0, 2.0]]).tolist()
        [[1.0, 2.0]]
        """
        cut(self, "tolist()")
        leaves(self, "tolist() of a Tensor")
        return _host(self._array).tolist()

    def detach(self) -> Tensor:
        """Return the same values as a new tensor that no manager tracks.

        >>> import gradmgr
        >>> x = gradmgr.tensor(3.0)
        >>> with gradmgr.GradManager().attach(x) as gm:
        ...     gm.backward(x * x.detach())
        >>> x.grad
        Tensor(3.)
        """
        made = wrap(self._array)
        cut(self, "detach()", made)
        return made

    # The derivative of what makes an integer is 0: nothing is cut. What would cut a gradient is in `conversion`.

    def __int__(self) -> int:
        check_one_number(self, "int()", TypeError)
        heard = listener()
        return int(self._array) if heard is None else heard.guard_of(int, self)

    def __floor__(self) -> int:
        check_one_number(self, "math.floor()", TypeError)
        return math.floor(self._array)  # type: ignore[no-any-return]  # of an array, whose types are not known

    def __ceil__(self) -> int:
        check_one_number(self, "math.ceil()", TypeError)
        return math.ceil(self._array)  # type: ignore[no-any-return]  # of an array, whose types are not known

    def __trunc__(self) -> int:
        check_one_number(self, "math.trunc()", TypeError)
        return math.trunc(self._array)  # type: ignore[no-any-return]  # of an array, whose types are not known

    def __bool__(self) -> bool:
        heard = listener()
        return bool(self._array) if heard is None else heard.guard_of(operator.truth, self)

    def __index__(self) -> int:
        heard = listener()
        return _index_of(self._array) if heard is None else heard.guard_of(_index_of, self)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_saved("a pickle")
        leaves(self, "a pickle of a Tensor")
        return _restore, (np.array(_host(self._array)), self.device)

    def _like(self, array: Any) -> Tensor:
        """Return a tensor of this class around an array, that no recorder tracks."""
        return wrap(array)


write_lock.add_guarded_class(Tensor)
_new = object.__new__


def wrap(array: Any) -> Tensor:
    """Return a Tensor that shares this array and that no recorder tracks."""
    heard = listener()
    made = _new(Tensor)
    made._array = array if heard is None else heard.untold(array)
    made._rec = None
    made._view_of = None
    return made


def created(array: Any) -> Tensor:
    """Return a Tensor around an array that a creation function has made of plain values, as `wrap` does."""
    made = wrap(array)
    heard = listener()
    if heard is not None:
        heard.note_new(made)
    return made


def variable(array: Any) -> Tensor:
    """Return what `created` does, as a Tensor that `+=` writes in place even if it has no axes."""
    made = created(array)
    made._view_of = ()
    return made


def alike(t: Tensor) -> Tensor:
    """Return a Tensor of the same array that no recorder tracks, and that is written to as this one."""
    made = wrap(t._array)
    made._view_of = t._view_of
    return made


def is_number(t: Tensor) -> bool:
    """Return True if NumPy would have a number in place of this tensor, which no `+=` changes."""
    return t._view_of is None and t._array.ndim == 0


def bare(value: Any) -> Any:
    """Return a Tensor's array itself, anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    heard = listener()
    if heard is not None:
        heard.meet(value)
    return value._array


def raw(value: Any) -> Any:
    """Return a Tensor's array to compute on, anything else as it is; a listener is told of what is computed."""
    if not isinstance(value, Tensor):
        return value
    heard = listener()
    return value._array if heard is None else heard.told_array_of(value)


def check_one_number(t: Tensor, asked: str, error: type[Exception]) -> None:
    if t._array.size != 1 and not batched.is_batched(t._array):
        how = "take an element, as t[0], or all of them by tolist() or numpy()"
        raise error(f"{asked} is for a Tensor of one number; found {describe(t)}; {how}")


def leaves(t: Tensor, what: str) -> None:
    """Tell a listener that the values of a tensor leave for Python."""
    heard = listener()
    if heard is not None:
        heard.leave(what, t._array)


def cut(t: Tensor, what: str, result: Any = None) -> None:
    """Log, where the recording of a tensor keeps a trace log, that its values go on without history."""
    rec = t._rec
    if rec is not None and rec.trace_log is not None:
        rec.trace_log.record_cut(what, t, result)


def describe(t: Tensor, name: str | None = None) -> str:
    """Name a tensor in an error: what the user called it, its shape and dtype."""
    called = f"Tensor {name!r}" if name else "a Tensor"
    return f"{called} of shape {t.shape} and dtype {t.dtype}"


def _host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(libraries.to_device(array, "cpu"))


def _index_of(array: Any) -> int:
    return operator.index(_host(array))


def _fresh(data: Any, dtype: Any, device: str | None) -> Any:
    if isinstance(data, Tensor):
        data._check_uncut("a new Tensor", "t.clone() returns a copy that keeps it, t.detach() one without history")
        data = data._array
    return computed(libraries.make_array, data, dtype, device, copy=True)


def _restore(values: np.ndarray[Any, Any], device: str) -> Tensor:
    return variable(libraries.to_device(values, device))


def tensor(data: Any, dtype: Any = None, device: str | None = None, *, requires_grad: bool = False) -> Tensor:
    """Return a new Tensor holding a copy of `data`.

    Args:
        data: an array, a Tensor (its values are copied, its history is not), nested lists, a number.
        dtype: NumPy dtype; by default NumPy's choice for `data`.
        device: "cpu" or "cuda:0"; by default where `data` lives.
        requires_grad: exists for programs written for torch; must be False. `GradManager.attach` takes its place.

    Raises:
        DeviceError: a GPU was asked for and there is none, or CuPy is not installed.
        TypeError: the data are not numbers, or `requires_grad` is True.

    >>> import gradmgr
    >>> w = gradmgr.tensor([[1, 2], [3, 4]], dtype="float32")
    >>> w.shape, w.dtype
    ((2, 2), dtype('float32'))
    """
    if requires_grad:
        raise TypeError(f"tensor: requires_grad=True is not supported; {errors.HOW_TO_REQUIRE_GRAD}")
    try:
        return variable(_fresh(data, dtype, device))
    except errors.REJECTIONS as error:
        errors.put_name(error, "tensor")
        raise


def from_dlpack(source: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Return a Tensor that shares the memory of any object that supports DLPack.

    Raises:
        ValueError, BufferError: as `numpy.from_dlpack` or `cupy.from_dlpack`.
        DeviceError: the memory is a GPU's and CuPy is not installed.

    >>> import numpy, gradmgr
    >>> gradmgr.from_dlpack(numpy.arange(3)).tolist()
    [0, 1, 2]
    """
    libraries.check_plain(source)
    kind, _ = source.__dlpack_device__()
    on_host = int(kind) == 1  # kDLCPU
    library = np if on_host else libraries.import_cupy("from_dlpack of GPU memory")
    array = library.from_dlpack(source)
    return variable(computed(libraries.make_array, array, None, device, copy=copy))
