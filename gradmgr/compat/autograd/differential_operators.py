"""autograd's functions of functions, on `gradmgr`'s reverse and forward mode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of
from gradmgr._engine.tensor import bare
from gradmgr._transforms import checkpoint as _checkpoints
from gradmgr.compat.autograd import core
from gradmgr.compat.autograd._primitive import holds_traced
from gradmgr.compat.autograd._recording import Recording, value_and_tangent, zeros_like
from gradmgr.compat.autograd._vspace import vspace
from gradmgr.compat.autograd.wrap_util import unary_to_nary

__all__ = [
    "checkpoint",
    "deriv",
    "egrad",
    "elementwise_grad",
    "grad",
    "grad_and_aux",
    "grad_named",
    "hessian",
    "hessian_tensor_product",
    "hessian_vector_product",
    "holomorphic_grad",
    "hvp",
    "jacobian",
    "make_ggnvp",
    "make_hvp",
    "make_jvp",
    "make_jvp_reversemode",
    "make_vjp",
    "multigrad_dict",
    "tensor_jacobian_product",
    "value_and_grad",
    "vector_jacobian_product",
]

Function = Callable[..., Any]

make_vjp = unary_to_nary(core.make_vjp)
make_jvp = unary_to_nary(core.make_jvp)


def _of_real_scalar(name: str, fun: Function, x: Any) -> tuple[Any, Any]:
    """Return the value of a function and its gradient."""
    recording = Recording(fun, x)
    value = recording.value
    array = _array(value)
    if array.size != 1 or array.dtype.kind not in "fV":  # bfloat16 is of kind V
        raise errors.DtypeError(
            f"{name} applies to functions that return one real number; found {type(value).__name__} of shape "
            f"{array.shape} and dtype {array.dtype}: use jacobian, elementwise_grad or holomorphic_grad"
        )
    return value, recording.gradient()


def _array(value: Any) -> Any:
    value = bare(value)
    return libraries.as_array(value)


@unary_to_nary
def grad(fun: Function, x: Any) -> Any:
    """Return a function of the same arguments that gives the gradient by argument `argnum`.

    The gradient has the form of the argument: an array, a number, or a container. With a tuple for `argnum` it is a
    tuple.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import grad
    >>> grad(np.tanh)(1.0).round(4), grad(lambda a, b: a * b, argnum=(0, 1))(2.0, 3.0)
    (np.float64(0.42), (np.float64(3.0), np.float64(2.0)))

    Raises:
        TypeError: the function's value is not one real number; or the argument is an int.
    """
    return _of_real_scalar("grad", fun, x)[1]


@unary_to_nary
def value_and_grad(fun: Function, x: Any) -> Any:
    """Return a function that gives the value and the gradient, as SciPy's `minimize(jac=True)` takes them.

    >>> from gradmgr.compat.autograd import value_and_grad
    >>> value_and_grad(lambda x: x**2)(3.0)
    (np.float64(9.0), np.float64(6.0))

    Raises:
        TypeError: as `grad`.
    """
    return _of_real_scalar("value_and_grad", fun, x)


@unary_to_nary
def elementwise_grad(fun: Function, x: Any) -> Any:
    """Return a function that gives the sum of the rows of the Jacobian: its diagonal, if it is diagonal.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import elementwise_grad
    >>> elementwise_grad(lambda x: x**2)(np.array([1.0, 2.0]))
    array([2., 4.])

    Raises:
        TypeError: the function's value is complex.
    """
    recording = Recording(fun, x)
    space = vspace(recording.value)
    if space.iscomplex:
        raise errors.DtypeError("elementwise_grad applies to functions with real values; this one's are complex")
    return recording.vjp(space.ones(), last=True)


egrad = elementwise_grad


@unary_to_nary
def deriv(fun: Function, x: Any) -> Any:
    """Return a function that gives the derivative along a vector of ones, by forward mode.

    Raises:
        TypeError: the argument holds nothing to differentiate by, as an int does not.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import deriv
    >>> deriv(lambda x: np.array([x, x**2]))(3.0)
    array([1., 6.])
    """
    return value_and_tangent(fun, x, vspace(x).ones())[1]


@unary_to_nary
def jacobian(fun: Function, x: Any) -> Any:
    """Return a function that gives the Jacobian, of shape value.shape + argument.shape.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import jacobian
    >>> jacobian(lambda x: x * np.sum(x))(np.array([1.0, 2.0]))
    array([[4., 1.],
           [2., 5.]])

    Raises:
        TypeError: the function's value or its argument is a container.
    """
    recording = Recording(fun, x)
    if isinstance(x, (list, tuple, dict)) or isinstance(recording.value, (list, tuple, dict)):
        raise errors.DtypeError("jacobian applies to functions of one array with one array as value; found a container")
    space = vspace(recording.value)
    rows = [recording.vjp(unit) for unit in space.standard_basis()]
    shape = space.shape + np.shape(_array(x))
    return gnp.reshape(gnp.stack(rows), shape) if rows else np.zeros(shape)


@unary_to_nary
def hessian(fun: Function, x: Any) -> Any:
    """Return a function that gives the Hessian, the Jacobian of the gradient.

    Raises:
        TypeError: the function's value or its argument is a container, or the argument holds no floats.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import hessian
    >>> hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """
    return jacobian(jacobian(fun))(x)


@unary_to_nary
def holomorphic_grad(fun: Function, x: Any) -> Any:
    """Return a function that gives the complex derivative of a holomorphic function.

    Raises:
        TypeError: the function's value is not one number, or the argument holds no floats.

    >>> from gradmgr.compat.autograd import holomorphic_grad
    >>> holomorphic_grad(lambda z: z**2)(1 + 2j)
    np.complex128(2+4j)
    """
    if _array(x).dtype.kind != "c":
        errors.warn("Input to holomorphic_grad is not complex", UserWarning)
    return grad(lambda x: gnp.real(fun(x)))(x)


def grad_named(fun: Function, argname: str) -> Function:
    """Return the gradient by the argument of this name, which must be passed by position.

    Raises:
        TypeError: `fun` is not a function.
        ValueError: it has no argument of this name.

    >>> from gradmgr.compat.autograd import grad_named
    >>> grad_named(lambda x, y: x * y**2, "y")(2.0, 3.0)
    np.float64(12.0)
    """
    errors.check_function(fun, "grad_named")
    names = list(inspect.signature(fun).parameters)
    if argname not in names:
        raise ValueError(f"grad_named: the function has no argument {argname!r}; it has {', '.join(names)}")
    return grad(fun, names.index(argname))  # type: ignore[no-any-return]  # of a function of the program


@unary_to_nary
def make_hvp(fun: Function, x: Any) -> Any:
    """Return a function that gives (hvp, gradient): hvp(v) is the product of the Hessian at the arguments with v.

    Raises:
        TypeError: the function's value is not one real number, or the argument holds no floats.
        ValueError: in hvp(v), v has another shape than the argument.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import make_hvp
    >>> hvp, gradient = make_hvp(lambda x: np.sum(x**3))(np.array([1.0, 2.0]))
    >>> hvp(np.array([1.0, 10.0])), gradient
    (array([  6., 120.]), array([ 3., 12.]))
    """
    return core.make_vjp(grad(fun), x)


def hessian_tensor_product(fun: Function, argnum: int = 0) -> Function:
    """Return a function of (*args, tensor) that gives the product of the Hessian with a tensor.

    Raises:
        TypeError: `fun` is not a function, or its value is not one real number.
        ValueError: in a call, the tensor has another shape than the argument.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import hessian_vector_product
    >>> hessian_vector_product(lambda x: np.sum(x**3))(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    """
    gradient = grad(fun, argnum)

    def product(*args: Any, **kwargs: Any) -> Any:
        *args_of_fun, tensor = args
        return gnp.tensordot(gradient(*args_of_fun, **kwargs), tensor, np.ndim(_array(tensor)))

    return grad(product, argnum)  # type: ignore[no-any-return]  # of a function of the program


hessian_vector_product = hvp = hessian_tensor_product


def tensor_jacobian_product(fun: Function, argnum: int = 0) -> Function:
    """Return a function of (*args, tensor) that gives the product of a tensor with the Jacobian.

    Raises:
        TypeError: `fun` is not a function.
        ValueError: in a call, the tensor has another shape than the function's value.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import tensor_jacobian_product
    >>> tensor_jacobian_product(lambda x: x**2)(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([ 2., 40.])
    """
    errors.check_function(fun, "tensor_jacobian_product")

    def product(*args: Any, **kwargs: Any) -> Any:
        *args_of_fun, tensor = args
        return gnp.tensordot(tensor, fun(*args_of_fun, **kwargs), axes=np.ndim(_array(tensor)))

    return jacobian(product, argnum)  # type: ignore[no-any-return]  # of a function of the program


vector_jacobian_product = tensor_jacobian_product


@unary_to_nary
def make_jvp_reversemode(fun: Function, x: Any) -> Any:
    """Return a function that gives jvp(v), computed as the vjp of the vjp, for functions without a forward rule.

    Raises:
        TypeError: the argument holds nothing to differentiate by, as an int does not.
        ValueError: in jvp(v), v has another shape than the argument.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import make_jvp_reversemode
    >>> make_jvp_reversemode(lambda x: x**2)(np.array([1.0, 2.0]))(np.array([1.0, 10.0]))
    array([ 2., 40.])
    """
    recording = Recording(fun, x)
    return core.make_vjp(recording.vjp, vspace(recording.value).zeros())[0]


def _half_square(x: Any) -> Any:
    return gnp.sum(x**2, axis=-1) / 2


def make_ggnvp(f: Function, g: Function = _half_square, f_argnum: int = 0) -> Function:
    """Return a function that gives ggnvp(v), the product of the generalised Gauss-Newton matrix of g(f(x)) with v.

    The matrix is J' H J, of the Jacobian J of f and the Hessian H of g.

    Raises:
        TypeError: `f` is not a function, or the value of `g` is not one real number.
        ValueError: in ggnvp(v), v has another shape than the argument.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd import make_ggnvp
    >>> matrix = np.array([[1.0, 2.0], [0.0, 1.0]])
    >>> make_ggnvp(lambda x: matrix @ x)(np.zeros(2))(np.array([1.0, 0.0]))  # the first column of matrix.T @ matrix
    array([1., 2.])
    """
    errors.check_function(f, "make_ggnvp")

    def at(f: Function, x: Any) -> Any:
        recording = Recording(f, x)
        hessian_of_g, gradient = core.make_vjp(grad(g), recording.value)
        f_jvp, _ = core.make_vjp(recording.vjp, vspace(gradient).zeros())
        return lambda v: recording.vjp(hessian_of_g(f_jvp(v)))

    return unary_to_nary(at)(f, f_argnum)  # type: ignore[no-any-return]  # of a function of the program


@unary_to_nary
def grad_and_aux(fun: Function, x: Any) -> Any:
    """Return a function that gives the gradient of the first of two results, and the second.

    Raises:
        TypeError: the function does not return two values, or the argument holds no floats.

    >>> from gradmgr.compat.autograd import grad_and_aux
    >>> grad_and_aux(lambda x: (x**2, "note"))(3.0)
    (np.float64(6.0), 'note')
    """
    aux: list[Any] = []

    def first(x: Any) -> Any:
        made = fun(x)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise TypeError(f"grad_and_aux applies to functions that return (value, aux); found {type(made).__name__}")
        value, more = made
        aux.append(more)
        return value, more

    recording = Recording(first, x)
    value, more = recording.value
    weights = (np.ones(np.shape(_array(value))), *map(zeros_like, leaves_of(more)))
    return recording.vjp(weights, last=True), more


def multigrad_dict(fun: Function) -> Function:
    """Return a function that gives a dict of the gradients by all arguments, by their names.

    Raises:
        TypeError: `fun` is not a function, or a call has not its arguments.

    >>> from gradmgr.compat.autograd import multigrad_dict
    >>> multigrad_dict(lambda a, b=2.0: a * b)(3.0)
    {'a': np.float64(2.0), 'b': np.float64(3.0)}
    """
    errors.check_function(fun, "multigrad_dict")
    signature = inspect.signature(fun)

    def of_arguments(arguments: dict[str, Any]) -> Any:
        bound = inspect.BoundArguments(signature, arguments)
        return fun(*bound.args, **bound.kwargs)

    @functools.wraps(fun, updated=())
    def gradients(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found: dict[str, Any] = grad(of_arguments)(dict(bound.arguments))
        return found

    return gradients


def checkpoint(fun: Function) -> Function:
    """Return a function that keeps no values in between for backward, which computes them again.

    Raises:
        TypeError: `fun` is not a function.

    >>> from gradmgr.compat.autograd import checkpoint, grad
    >>> grad(checkpoint(lambda x: x**3))(2.0)
    np.float64(12.0)
    """
    errors.check_function(fun, "checkpoint")

    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not holds_traced([args, kwargs]):
            return fun(*args, **kwargs)
        return _checkpoints.checkpoint(fun, *args, **kwargs)

    return call
