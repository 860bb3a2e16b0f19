"""Functions of JAX's arrays that gradmgr computes, and functions of Tensors that JAX computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr import errors, functional
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr.interop._flat import FlatCall, check_untracked
from gradmgr.interop._foreign import Arrays, Compute, wrapped


def _import_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise errors.MissingDependencyError(
            "gradmgr.interop needs JAX, which is not installed: pip install jax"
        ) from error
    return jax


# ---------------------------------------------------------------- gradmgr's functions for JAX


def jax_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of JAX's arrays of one of gradmgr's Tensors; JAX calls it back on the host.

    JAX differentiates through it in reverse mode, to any order, in `jit` and `vmap` too; gradmgr computes the
    derivatives of this part. Values are copied in and out. Where JAX traces it (under `jit`, `vmap` and the like), JAX
    must know the shapes of the results before there are values: the function is then called once with ones, unit
    matrices and zeros of integers.

    Args:
        func: takes Tensors where arrays of JAX and NumPy are given, also in nested lists, tuples and dicts, and
            anything else as it is; returns a Tensor, or containers of them. It must be a pure function, whose shapes
            do not depend on values where JAX traces it.

    Returns:
        A function of the same arguments. Forward mode (`jax.jvp`, `jacfwd`) raises, as for every `jax.custom_vjp`.

    Raises:
        MissingDependencyError: JAX is not installed.

    >>> import gradmgr.numpy as np, jax
    >>> from gradmgr import interop
    >>> softplus = interop.jax_function(lambda x: np.log1p(np.exp(x)))
    >>> slope = jax.grad(lambda x: softplus(x).sum())(jax.numpy.array([0.0, 1.0]))
    >>> [round(number, 4) for number in slope.tolist()]
    [0.5, 0.7311]
    """
    if not callable(func):
        raise TypeError(f"jax_function takes a function of Tensors; found {type(func).__name__}")
    jax = _import_jax()

    def is_array(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufcV")

    @functools.wraps(func, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        flat = FlatCall(func, args, kwargs, is_array)

        def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
            return flat(tensors, lambda leaf: isinstance(leaf, Tensor), "Tensors of gradmgr")

        results = _JaxCall(jax, compute, flat.name).function()(*flat.arrays)
        return flat.as_returned(results)

    return call


class _JaxCall:
    """A function of Tensors, which returns a tuple of them, called by JAX."""

    def __init__(self, jax: Any, compute: Compute, name: str) -> None:
        self._jax = jax
        self._compute = compute
        self._name = name

    def function(self) -> Compute:
        """Return the function of JAX's arrays."""
        jax = self._jax

        @jax.custom_vjp  # type: ignore[untyped-decorator]  # of a library that may not be installed
        def call(*xs: Any) -> tuple[Any, ...]:
            return self._called(tuple(map(jax.numpy.asarray, xs)))

        def forward(*xs: Any) -> Any:
            return call(*xs), tuple(map(jax.numpy.asarray, xs))  # a Python number has no shape

        def backward(xs: Any, gs: Any) -> tuple[Any, ...]:
            return self._gradients(xs, gs)

        call.defvjp(forward, backward)
        return call  # type: ignore[no-any-return]  # of JAX, which may be absent

    def _called(self, xs: Sequence[Any]) -> tuple[Any, ...]:
        if not any(isinstance(x, self._jax.core.Tracer) for x in xs):
            return tuple(map(self._jax.numpy.asarray, self._compute_arrays(xs)))
        shapes = self._result_shapes(xs)
        call_back = functools.partial(self._compute_checked, shapes)
        return self._jax.pure_callback(call_back, shapes, *xs, vmap_method="sequential")  # type: ignore[no-any-return]  # of JAX, which may be absent

    def _result_shapes(self, xs: Sequence[Any]) -> tuple[Any, ...]:
        try:
            # Not staged, where the function calls JAX itself.
            with np.errstate(all="ignore"), self._jax.ensure_compile_time_eval():
                made = self._compute(*[wrap(_example(x.shape, np.dtype(x.dtype))) for x in xs])
        except Exception as error:
            error.add_note(
                f"JAX traces {self._name} before there are values; to find the shapes of its results, it was called "
                "with ones, unit matrices and zeros of integers, which it must take"
            )
            raise
        self._check_untracked(made)  # here, as JAX may call back in a thread where no manager records
        return tuple([self._jax.ShapeDtypeStruct(y.shape, self._dtype(y)) for y in made])

    def _dtype(self, y: Tensor) -> Any:
        """Return the dtype of a result in JAX, which has no float64 unless that is enabled."""
        return self._jax.dtypes.canonicalize_dtype(y.dtype)

    def _compute_checked(self, shapes: Sequence[Any], *xs: Any) -> tuple[Any, ...]:
        made = self._compute_arrays(xs)
        for y, promised in zip(made, shapes, strict=True):
            if y.shape != promised.shape:
                raise errors.ShapeError(
                    f"{self._name}: a result has shape {y.shape}; it had {promised.shape} when JAX traced the function "
                    "(jit, vmap and the like), which needs shapes that do not depend on values"
                )
        return made

    def _compute_arrays(self, xs: Sequence[Any]) -> tuple[Any, ...]:
        made = self._compute(*[wrap(np.array(x)) for x in xs])
        self._check_untracked(made)
        return tuple([y.numpy().astype(self._dtype(y), copy=True) for y in made])

    def _check_untracked(self, made: Sequence[Tensor]) -> None:
        for y in made:
            check_untracked(y, self._name)

    def _gradients(self, xs: Sequence[Any], gs: Sequence[Any]) -> tuple[Any, ...]:
        varied = [k for k, x in enumerate(xs) if libraries.is_differentiable(np.dtype(x.dtype))]
        chosen = [j for j, g in enumerate(gs) if libraries.is_differentiable(np.dtype(g.dtype))]

        def vjp(*given: Tensor) -> tuple[Tensor, ...]:
            points, us = given[: len(xs)], given[len(xs) :]

            def differentiable(*values: Tensor) -> tuple[Tensor, ...]:
                filled = list(points)
                for k, value in zip(varied, values, strict=True):
                    filled[k] = value
                made = self._compute(*filled)
                return tuple([made[j] for j in chosen])

            us = tuple(map(_conjugate, us))  # JAX's derivatives by complex numbers are the conjugates of ours
            _, found = functional.vjp(differentiable, tuple([points[k] for k in varied]), us, create_graph=True)
            return tuple(map(_conjugate, found))

        gradients = iter(_JaxCall(self._jax, vjp, f"vjp of {self._name}").function()(*xs, *[gs[j] for j in chosen]))
        float0 = self._jax.dtypes.float0  # of the gradients of integers
        return tuple([next(gradients) if k in varied else np.zeros(x.shape, float0) for k, x in enumerate(xs)])


def _conjugate(t: Tensor) -> Tensor:
    return t.conj() if t.dtype.kind == "c" else t


def _example(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return values that most functions take: not 0, of which there is no logarithm, nor a singular matrix."""
    if not libraries.is_differentiable(dtype):
        return np.zeros(shape, dtype)  # which is an index, too
    example = np.ones(shape, dtype)
    if example.ndim > 1:
        example[...] = np.eye(shape[-2], shape[-1])
    return example


# ---------------------------------------------------------------- JAX's functions for gradmgr


def from_jax(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of gradmgr's Tensors of one of JAX's arrays, which may be compiled by `jax.jit`.

    It is one operation for the managers that track its arguments; JAX computes its derivatives, to any order, in
    reverse and in forward mode, and under `vmap`. Values are copied on the way in and out. JAX computes in float32
    unless `jax_enable_x64` is set: gradients of float64 Tensors are then float32 numbers.

    Args:
        func: takes JAX's arrays where Tensors and arrays are given, also in nested lists, tuples and dicts, and
            anything else as it is; returns an array of JAX, or containers of them. It must be a pure function.

    Returns:
        A function of the same arguments; its results are Tensors, those of integers without gradient.

    Raises:
        MissingDependencyError: JAX is not installed.

    >>> import gradmgr, jax
    >>> from gradmgr import interop
    >>> softplus = interop.from_jax(jax.jit(jax.nn.softplus))
    >>> x = gradmgr.tensor([0.0, 1.0], dtype="float32")
    >>> with gradmgr.GradManager().attach(x) as gm:
    ...     gm.backward(softplus(x).sum())
    >>> x.grad.round(4)
    Tensor([0.5   , 0.7311], dtype=float32)
    """
    if not callable(func):
        raise TypeError(f"from_jax takes a function of JAX's arrays; found {type(func).__name__}")
    return wrapped(func, _JaxLibrary(_import_jax()))


class _JaxLibrary:
    """What JAX does for a function of its arrays; see `Library`."""

    name = "JAX"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self._jax.Array)

    def from_array(self, array: Any) -> Any:
        return self._jax.numpy.array(array.astype(array.dtype.newbyteorder("="), copy=False))

    def to_array(self, foreign: Any) -> Any:
        return np.array(foreign)

    def values_and_pullback(
        self, compute: Compute, xs: Arrays, needed: Sequence[bool]
    ) -> tuple[Arrays, Callable[[Arrays], Arrays]]:
        varied = [k for k, need in enumerate(needed) if need]
        (_, made), pull = self._differentiated(compute, xs, varied)
        return made, pull

    def _differentiated(self, compute: Compute, xs: Arrays, varied: Sequence[int]) -> tuple[Any, Any]:
        """Return the differentiable results and all of them, and the pullback of the former."""
        kept, pull, made = self._jax.vjp(self._of(compute, xs, varied), *[xs[k] for k in varied], has_aux=True)
        conjugate = self._jax.numpy.conj  # JAX's derivatives by complex numbers are the conjugates of ours

        def pullback(gs: Arrays) -> Arrays:
            given = tuple([conjugate(g.astype(y.dtype)) for g, y in zip(gs, kept, strict=True)])
            return tuple(map(conjugate, pull(given)))

        return (kept, made), pullback

    def _of(self, compute: Compute, xs: Sequence[Any], varied: Sequence[int]) -> Compute:
        """Return the differentiable results, and all of them, as a function of some inputs."""

        def call(*values: Any) -> tuple[Any, ...]:
            given = list(xs)
            for k, value in zip(varied, values, strict=True):
                given[k] = value
            made = compute(*given)
            inexact = self._jax.numpy.inexact
            return tuple([y for y in made if self._jax.numpy.issubdtype(y.dtype, inexact)]), tuple(made)

        return call

    def vjp_of(self, compute: Compute, count: int, needed: Sequence[int]) -> Compute:
        def vjp(*given: Any) -> tuple[Any, ...]:
            _, pull = self._differentiated(compute, given[:count], needed)
            return pull(given[count:])  # type: ignore[no-any-return]  # of JAX, which may be absent

        return vjp

    def jvp_of(self, compute: Compute, count: int, varied: Sequence[int]) -> Compute:
        def jvp(*given: Any) -> tuple[Any, ...]:
            points = tuple([given[k] for k in varied])
            tangents = tuple([t.astype(x.dtype) for t, x in zip(given[count:], points, strict=True)])
            function = self._of(compute, given[:count], varied)
            return self._jax.jvp(function, points, tangents, has_aux=True)[1]  # type: ignore[no-any-return]  # of JAX, which may be absent

        return jvp

    def batched(self, compute: Compute, in_dims: tuple[int | None, ...]) -> Compute:
        return self._jax.vmap(compute, in_axes=in_dims)  # type: ignore[no-any-return]  # of JAX, which may be absent
