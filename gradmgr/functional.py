"""Derivatives of functions: torch.autograd.functional's, `grad` in the manner of JAX, and a door to SciPy.

Each records with a manager of its own, on handles of the inputs: no `.grad`, hook, callback or manager
of the user's is touched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.forward import Forward
from gradmgr._engine.history.modes import inference_mode
from gradmgr._engine.mutation import as_type
from gradmgr._engine.recorder import current, enter, is_tracked, leave, recorders, snapshot
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, raw, wrap
from gradmgr._transforms.grad import marks_before, pulled
from gradmgr._transforms.vmap import map_units
from gradmgr.manager import GradManager
from gradmgr.ops.convert import to
from gradmgr.ops.join import concatenate, stack
from gradmgr.ops.shape import reshape, transpose

__all__ = ["Flattened", "grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vhp", "vjp"]

Function = Callable[..., Any]
Tensors = Tensor | tuple[Tensor, ...]
Found = list[Any]  # Tensors, arrays, or None


# ---------------------------------------------------------------- arguments


class _Call:
    """One call of a function of this module: its name for errors, its inputs, what is asked of it.

    A context manager, in which the derivative is computed.
    """

    def __init__(self, name: str, func: Function, inputs: Any, create_graph: bool, strict: bool) -> None:
        if isinstance(create_graph, Tensor):
            raise TypeError(f"{name}: create_graph is True or False; pass several inputs as one tuple, inputs=(x, y)")
        self.name = name
        self.func = func
        self.create_graph = create_graph
        self.strict = strict
        self.one_input = isinstance(inputs, Tensor)
        self.given = self._tensors(inputs, "inputs")
        for k, x in enumerate(self.given):
            if not libraries.is_differentiable(x.dtype):
                raise errors.DtypeError(
                    f"{name}: input {k} has dtype {x.dtype}; only floating and complex Tensors have derivatives: "
                    "convert it with .astype('float64'), or leave it out of inputs (a lambda may hold it)"
                )
        self.xs: list[Tensor] = []  # handles of the inputs, while it runs
        self.outs: list[Tensor] = []
        self.one_output = False
        self.outside: list[Any] = []  # the recorders that are to know the results
        self._apart: Any = None  # what is to be left at the end
        self._witness: Tape | None = None  # where the result must depend on the inputs

    def _tensors(self, given: Any, what: str) -> list[Tensor]:
        many = list(given) if isinstance(given, (tuple, list)) else [given]
        if not many:
            raise TypeError(f"{self.name}: {what} is empty; give a Tensor or a tuple of them")
        for k, t in enumerate(many):
            if not isinstance(t, Tensor):
                which = f"element {k}" if isinstance(given, (tuple, list)) else "it"
                raise TypeError(
                    f"{self.name}: {what} must be a Tensor or a tuple of Tensors; {which} is {type(t).__name__}"
                )
        return many

    # ------------------------------------------------------------ running

    def __enter__(self) -> None:
        """Let nobody outside hear what is computed unless `create_graph` asks for it; make handles of the inputs."""
        if not self.create_graph:
            if current() is not None:
                self._apart = inference_mode()
                self._apart.__enter__()
            self.xs = [wrap(x._array) for x in self.given]
            return
        self.xs = [_handle(x) for x in self.given]
        self.outside = recorders(current())
        if self.strict:
            self._apart = _Inner().attach(self.xs)
            self._apart.record()
            self._witness = self._apart._open_tape()

    def __exit__(self, *error: Any) -> None:
        if self._apart is not None:
            self._apart.__exit__(*error)

    def computed(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Call the function, and check what it returns."""
        given = self.func(*xs)
        self.one_output = isinstance(given, Tensor)
        return self._tensors(given, "what func returns")

    # ------------------------------------------------------------ strict

    def check_used(self, tape: Tape, outs: Sequence[Tensor], leaves: Sequence[Tensor], what: str = "output") -> None:
        """Raise if strictness is asked for and an output does not depend on an input."""
        if not self.strict:
            return
        for j, y in enumerate(outs):
            node_id = tape.node_id_of(y)
            reached = set() if node_id is None else marks_before(tape, [node_id])
            for k, x in enumerate(leaves):
                if tape.leaves[x] not in reached:
                    raise errors.NotRecordedError(
                        f"{self.name}: {what} {j} of func does not depend on input {k}, {describe(x)}, which "
                        "strict=True forbids; strict=False gives zeros"
                    )

    def check_derivatives(self, found: Sequence[Any], what: str = "the derivative") -> None:
        """Raise if strictness is asked for and a derivative by an input is the same whatever the inputs are."""
        if self._witness is not None:
            _check_varies(self.name, self._witness, found, what)

    # ------------------------------------------------------------ results

    def results(self, found: Found) -> Any:
        """Return derivatives by the inputs in the form of the inputs; `found` is emptied."""
        return self._given_out(found, self.given, self.one_input)

    def tangents(self, found: Found) -> Any:
        """Return derivatives of the outputs in the form of the outputs; `found` is emptied."""
        return self._given_out(found, self.outs, self.one_output)

    def _given_out(self, found: Found, like: Sequence[Tensor], one: bool) -> Any:
        filled = [_zeros(t) if g is None else g for g, t in zip(found, like, strict=True)]
        found.clear()
        made = _new(filled if self.create_graph else list(map(raw, _drained(filled))))
        return made[0] if one else tuple(made)

    def outputs(self) -> Any:
        """Return the outputs as `func` returned them."""
        outs = [_handle(y) if self.create_graph else wrap(y._array) for y in self.outs]
        return outs[0] if self.one_output else tuple(outs)

    def vectors(self, v: Any, like: Sequence[Tensor], place: str) -> list[Any]:
        """Check the vector that a derivative is multiplied with; where it may be left out, return ones."""
        if v is None:
            if len(like) != 1 or like[0].size != 1 or like[0].dtype.kind == "c":
                raise ValueError(
                    f"{self.name}: v may be left out only where {place} is one Tensor of one real number; found "
                    f"{', '.join(map(describe, like))}; pass v of the same shape"
                )
            return [libraries.namespace(like[0]._array).ones_like(like[0]._array)]
        vs = list(v) if isinstance(v, (tuple, list)) else [v]
        if len(vs) != len(like):
            raise ValueError(f"{self.name}: v holds {len(vs)} Tensors; {place} holds {len(like)}: one for each")
        return [self._vector(u, t, k, place) for k, (u, t) in enumerate(zip(vs, like, strict=True))]

    def _vector(self, v: Any, t: Tensor, k: int, place: str) -> Any:
        if not (isinstance(v, Tensor) or libraries.is_array(v)):
            raise TypeError(f"{self.name}: v must hold Tensors or arrays; number {k} is {type(v).__name__}")
        if v.shape != t.shape:
            raise errors.ShapeError(
                f"{self.name}: v number {k} has shape {v.shape}; it must have that of {place}, {t.shape}"
            )
        if (v.dtype.kind == "c" and t.dtype.kind != "c") or v.dtype.kind not in "biufcV":
            raise errors.DtypeError(f"{self.name}: v number {k} has dtype {v.dtype}; {place} has {t.dtype}")
        if libraries.root(raw(v)) is not libraries.root(t._array):
            raise errors.MixedArraysError(
                f"{self.name}: v number {k} lives on {libraries.device_of(raw(v))}, {place} on {t.device}; move v"
            )
        v = v if self.create_graph else raw(v)
        return v if v.dtype == t.dtype else as_type(v, t.dtype)


def _handle(t: Tensor) -> Tensor:
    """Return a tensor of its own that all who record know as they know `t`: func may write to it in place."""
    handle = snapshot(t, recorders(current()))
    return handle if isinstance(handle, Tensor) else wrap(handle)


def _drained(values: list[Any]) -> Iterator[Any]:
    """Yield what a list holds and let go of it, as who holds an array counts."""
    values.reverse()
    while values:
        yield values.pop()


def _new(found: Found) -> list[Tensor]:
    """Return Tensors of the user's own, known to whom it may be; `found` is emptied."""
    known = recorders(current())
    made = []
    for g in _drained(found):
        handle = snapshot(g, known)
        g = None  # who else holds the array is asked next
        if not isinstance(handle, Tensor):
            handle = wrap(handle)
            if not memory.is_private(handle):  # it may be the vector that was given
                handle._array = handle._array.copy()
        made.append(handle)
    return made


def _zeros(t: Tensor) -> Any:
    return libraries.namespace(t._array).zeros_like(t._array)


def _check_varies(name: str, witness: Tape, found: Sequence[Any], what: str) -> None:
    for k, g in enumerate(found):
        if not (isinstance(g, Tensor) and witness.node_id_of(g) is not None):
            raise errors.NotRecordedError(
                f"{name}: {what} by input {k} does not depend on the inputs (func is linear in it), so that it cannot "
                "be differentiated again, which strict=True forbids; strict=False gives zeros"
            )


def _one_real(name: str, outs: Sequence[Tensor], one: bool = True) -> Tensor:
    """Return what a function of one real number gave."""
    (y, *more) = outs
    if more or not one or y.size != 1 or y.dtype.kind == "c" or not libraries.is_differentiable(y.dtype):
        found = ", ".join(map(describe, outs))
        raise ValueError(
            f"{name}: func must return one Tensor of one real number; found {found}; reduce it, as with .sum()"
        )
    return y


# ---------------------------------------------------------------- recording and pushing


class _Inner(GradManager):
    """The manager of a derivative taken here; what func itself asks of it, by `gradmgr.grad`, does not end it."""

    may_end = False

    def attach_each(self, leaves: Sequence[Tensor]) -> _Inner:
        """Attach Tensors that are known to be differentiable: in half of the time."""
        for x in leaves:
            self._attach_one(x, None, [])
        return self

    def _run_backward(self, tape: Tape, seeds: Any, retain: bool, *args: Any) -> None:
        super()._run_backward(tape, seeds, not self.may_end, *args)


class _Pullback:
    """A function recorded at a point, to be pulled back any number of times; a context manager."""

    def __init__(self, compute: Callable[[list[Tensor]], Any], xs: Sequence[Tensor]) -> None:
        self.leaves = [_handle(x) for x in xs]
        self._compute = compute
        self._manager = _Inner().attach_each(self.leaves)

    def __enter__(self) -> _Pullback:
        self._manager.record()
        self.tape = self._manager._open_tape()
        try:
            self.made = self._compute(self.leaves)
        except BaseException:
            self._manager.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._manager.release()

    def pull(self, ys: Sequence[Tensor], us: Sequence[Any], *, last: bool = False) -> Found:
        """Return the gradients of the inputs, None where there is none; with `last` the history is freed on the way."""
        known = [(y, u) for y, u in zip(ys, us, strict=True) if self.tape.node_id_of(y) is not None]
        if not known:
            return [None] * len(self.leaves)
        self._manager.may_end = last
        return pulled(self.tape, self._manager, [y for y, _ in known], self.leaves, [u for _, u in known], retain=True)


class _Pushing:
    """Handles of tensors that have these tangents, and the level that pushes them on; a context manager."""

    def __init__(self, xs: Sequence[Tensor], vs: Sequence[Any]) -> None:
        self._outside = recorders(current())
        self._level = Forward()
        self.leaves = [_handle(x) for x in xs]
        for x, v in zip(self.leaves, vs, strict=True):
            if v is not None:
                self._level.watch(x, v)

    def __enter__(self) -> _Pushing:
        enter(self._level)
        return self

    def __exit__(self, *exc: object) -> None:
        leave(self._level)
        self._level.close()

    def tangents(self, outs: Sequence[Tensor]) -> Found:
        """Return the tangents of what was computed, None where there is none."""
        found = [self._level.node_id_of(y) for y in outs]
        return [None if t is None else snapshot(t, self._outside) for t in found]


# ---------------------------------------------------------------- products


def vjp(
    func: Function, inputs: Tensors, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """Return the outputs of a function and the product of a vector with its Jacobian.

    Args:
        func: takes Tensors, as many as `inputs`, and returns a Tensor or a tuple of them.
        inputs: a Tensor or a tuple of them.
        v: Tensors or arrays of the shapes of the outputs; None where there is one output of one real number.
        create_graph: let the managers and levels that stand outside know the results; else they are constants.
        strict: raise where an output does not depend on an input, instead of giving zeros; with `create_graph`
            also where the result does not depend on the inputs.

    Returns:
        The outputs, as `func` returned them, and the products, in the form, shapes and dtypes of `inputs`.

    Raises:
        TypeError: inputs or outputs are no Tensors, or hold no floating or complex numbers.
        ValueError: `v` does not fit the outputs.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.vjp(lambda x: x**3, x, gradmgr.tensor([1.0, 10.0]))
    (Tensor([1., 8.]), Tensor([  3., 120.]))
    """
    call = _Call("vjp", func, inputs, create_graph, strict)
    with call:
        with _Pullback(call.computed, call.xs) as back:
            call.outs = outs = back.made
            call.check_used(back.tape, outs, back.leaves)
            found = back.pull(outs, call.vectors(v, outs, "the output"), last=True)
        call.check_derivatives(found)
    return call.outputs(), call.results(found)


def jvp(
    func: Function, inputs: Tensors, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """Return the outputs of a function and the product of its Jacobian with a vector, by forward mode.

    Args:
        func: takes Tensors, as many as `inputs`, and returns a Tensor or a tuple of them.
        inputs: a Tensor or a tuple of them.
        v: Tensors or arrays of the shapes of `inputs`; None where that is one Tensor of one real number.
        create_graph: let the managers and levels that stand outside know the results; else they are constants.
        strict: as in `vjp`.

    Returns:
        The outputs, as `func` returned them, and the products, in the form, shapes and dtypes of the outputs.

    Raises:
        TypeError: inputs or outputs are no Tensors, or hold no floating or complex numbers.
        ValueError: `v` does not fit the inputs.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.jvp(lambda x: x**3, x, gradmgr.tensor([1.0, 10.0]))
    (Tensor([1., 8.]), Tensor([  3., 120.]))
    """
    call = _Call("jvp", func, inputs, create_graph, strict)
    with call:
        call.outs, found = _pushed(call, call.computed, call.vectors(v, call.given, "the input"))
        call.check_derivatives(found)
    return call.outputs(), call.tangents(found)


def _pushed(call: _Call, compute: Callable[[list[Tensor]], Any], vs: Sequence[Any]) -> tuple[Any, Found]:
    """Return what a function computes of handles of the inputs, and the tangents."""
    with _Pushing(call.xs, vs) as pushing:
        if call.strict:
            with _Pullback(compute, pushing.leaves) as back:
                outs = back.made
                call.check_used(back.tape, outs, back.leaves)
        else:
            outs = compute(pushing.leaves)
        return outs, pushing.tangents(outs)


def vhp(
    func: Function, inputs: Tensors, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """Return the output of a scalar function and the product of a vector with its Hessian, by two reverse modes.

    Args:
        func: takes Tensors, as many as `inputs`, and returns one Tensor of one real number.
        inputs: a Tensor or a tuple of them.
        v: Tensors or arrays of the shapes of `inputs`; None where that is one Tensor of one real number.
        create_graph: as in `vjp`.
        strict: raise where the output does not depend on an input, or its gradient by one not on the inputs.

    Returns:
        The output, and the product in the form, shapes and dtypes of `inputs`. Of complex inputs it is the
        derivative of the gradient, dL/dx + i dL/dy, along `v`.

    Raises:
        TypeError, ValueError, RuntimeError: as `vjp`; the output is not one real number.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.vhp(lambda x: (x**3).sum(), x, gradmgr.tensor([1.0, 10.0]))
    (Tensor(9.), Tensor([  6., 120.]))
    """
    call = _Call("vhp", func, inputs, create_graph, strict)
    return _symmetric(call, v)


def _symmetric(call: _Call, v: Any) -> tuple[Tensors, Tensors]:
    with call:
        vs = call.vectors(v, call.given, "the input")
        gradient = _Gradient(call)
        with _Pullback(gradient.computed, call.xs) as back:
            if call.strict:
                _check_varies(call.name, back.tape, back.made, "the gradient")
            found = back.pull(_filled(back.made, call.given), vs, last=True)
        call.check_derivatives(found)
    return call.outputs(), call.results(found)


def hvp(
    func: Function, inputs: Tensors, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensors, Tensors]:
    """Return the output of a scalar function and the product of its Hessian with a vector, by forward over reverse.

    The same product as `vhp`, since a Hessian is symmetric.

    Args:
        func: takes Tensors, as many as `inputs`, and returns one Tensor of one real number.
        inputs: a Tensor or a tuple of them.
        v: Tensors or arrays of the shapes of `inputs`; None where that is one Tensor of one real number.
        create_graph: as in `vjp`.
        strict: as in `vhp`.

    Returns:
        The output, and the product in the form, shapes and dtypes of `inputs`; complex inputs as in `vhp`.

    Raises:
        TypeError, ValueError, RuntimeError: as `vjp`; the output is not one real number.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.hvp(lambda x: (x**3).sum(), x, gradmgr.tensor([1.0, 10.0]))
    (Tensor(9.), Tensor([  6., 120.]))
    """
    call = _Call("hvp", func, inputs, create_graph, strict)
    if strict:  # what depends on what is known to a tape
        return _symmetric(call, v)
    with call:
        vs = call.vectors(v, call.given, "the input")
        gradient = _Gradient(call)
        _, found = _pushed(call, lambda xs: _filled(gradient.computed(xs), xs), vs)
    return call.outputs(), call.results(found)


class _Gradient:
    """The gradient of the scalar function of a call, as a function; the call is told of the output."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def computed(self, xs: Sequence[Tensor]) -> Found:
        """Return the gradients at handles of the inputs, None where there is none."""
        call, outside = self._call, recorders(current())
        with _Pullback(call.computed, xs) as back:
            y = _one_real(call.name, back.made, call.one_output)
            call.check_used(back.tape, back.made, back.leaves)
            call.outs = [_raised(snapshot(y, call.outside))]
            return [None if g is None else snapshot(g, outside) for g in back.pull([y], [None], last=True)]


def _raised(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else wrap(value)


def _filled(found: Found, like: Sequence[Tensor]) -> list[Tensor]:
    return [_raised(_zeros(t) if g is None else g) for g, t in zip(found, like, strict=True)]


# ---------------------------------------------------------------- whole matrices


def jacobian(
    func: Function,
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of a function: the derivative of every number of its outputs by every one of its inputs.

    Args:
        func: takes Tensors, as many as `inputs`, and returns a Tensor or a tuple of them.
        inputs: a Tensor or a tuple of them.
        create_graph: let the managers and levels that stand outside know the result; else it is a constant.
        strict: as in `vjp`.
        vectorize: take all rows, or columns, at once, by `vmap`, instead of one after the other.
        strategy: "reverse-mode" takes a row at a time and calls `func` once; "forward-mode" a column at a time,
            and is the faster where there are fewer inputs than outputs. With `vectorize` it calls `func` once
            for each Tensor of `inputs`, else once for each number in them.

    Returns:
        For one output and one input a Tensor of shape `output.shape + input.shape`; where the outputs or the
        inputs are a tuple, a tuple of such; where both are, a tuple for each output of one for each input.
        Forward mode gives the dtype of the output, reverse mode that of the input.

        Of a complex output it is the derivative along the real axis of the input: f' where f is holomorphic.
        Of a real output by a complex input it is the gradient, dL/dx + i dL/dy.

    Raises:
        TypeError: inputs or outputs are no Tensors, or hold no floating or complex numbers.
        ValueError: `strategy` is none of the two.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.jacobian(lambda x: x * x.sum(), x)
    Tensor([[4., 1.],
            [2., 5.]])
    """
    _check_strategy("jacobian", "strategy", strategy)
    call = _Call("jacobian", func, inputs, create_graph, strict)
    with call:
        blocks = _matrix(call, call.computed, vectorize, strategy, "output")
        for row in blocks if strict else ():
            call.check_derivatives(row)
    rows = [call.results(row) for row in blocks]
    return rows[0] if call.one_output else tuple(rows)


def _check_strategy(name: str, argument: str, strategy: str) -> None:
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ValueError(f"{name}: {argument} is 'reverse-mode' or 'forward-mode'; found {strategy!r}")


def hessian(
    func: Function,
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian of a scalar function: the Jacobian of its gradient.

    Args:
        func: takes Tensors, as many as `inputs`, and returns one Tensor of one real number.
        inputs: a Tensor or a tuple of them, real.
        create_graph: as in `jacobian`.
        strict: as in `vhp`.
        vectorize: take all rows, or columns, at once, by `vmap`, instead of one after the other.
        outer_jacobian_strategy: how the gradient is differentiated: "reverse-mode" calls `func` once, for
            "forward-mode" see `jacobian`.

    Returns:
        For one input a Tensor of shape `input.shape + input.shape`; for a tuple of them a tuple of tuples.

    Raises:
        TypeError: an input is complex: its second derivatives are no one complex number for each pair of elements.
            Pass real and imaginary parts as two inputs, or take `hvp`.
        ValueError: the output is not one real number; `outer_jacobian_strategy` is none of the two.
        RuntimeError: what `strict` forbids.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gradmgr.functional.hessian(lambda x: (x**3).sum() + x[0] * x[1], x)
    Tensor([[ 6.,  1.],
            [ 1., 12.]])
    """
    _check_strategy("hessian", "outer_jacobian_strategy", outer_jacobian_strategy)
    call = _Call("hessian", func, inputs, create_graph, strict)
    for k, x in enumerate(call.given):
        if x.dtype.kind == "c":
            raise errors.DtypeError(
                f"hessian: input {k} is complex, {x.dtype}, and has no one complex second derivative for each pair of "
                "elements; pass real and imaginary parts as two inputs, or take hvp"
            )
    gradient = _Gradient(call)

    with call:
        blocks = _matrix(
            call,
            lambda xs: _filled(gradient.computed(xs), xs),
            vectorize,
            outer_jacobian_strategy,
            "the gradient by input",
        )
        for row in blocks if strict else ():
            call.check_derivatives(row)
    rows = [call.results(row) for row in blocks]
    return rows[0] if call.one_input else tuple(rows)


def _matrix(
    call: _Call, compute: Callable[[list[Tensor]], Any], vectorize: bool, strategy: str, what: str
) -> list[Found]:
    """Return the blocks of a Jacobian: for each output, of each input."""
    backward = strategy == "reverse-mode"
    if backward or call.strict:  # strictness asks a tape what depends on what
        with _Pullback(compute, call.xs) as back:
            if call.strict and what != "output":
                _check_varies(call.name, back.tape, back.made, "the gradient")
            call.check_used(back.tape, back.made, back.leaves, what)
            if backward:
                return [_Rows(back, y, vectorize).blocks(call.xs) for y in back.made]
    columns = [_Columns(call, compute, k, vectorize).blocks() for k in range(len(call.xs))]
    return [list(row) for row in zip(*columns, strict=True)]


def _basis(t: Tensor) -> Any:
    """Return the unit arrays of a tensor's shape, along a first axis."""
    a = t._array
    return libraries.namespace(a).eye(t.size, dtype=a.dtype).reshape((t.size, *t.shape))


class _Rows:
    """The rows of a Jacobian that belong to one output."""

    def __init__(self, back: _Pullback, y: Tensor, vectorize: bool) -> None:
        self._back = back
        self._y = y
        self._vectorize = vectorize

    def blocks(self, xs: Sequence[Tensor]) -> Found:
        """Return the Jacobian by each input, None where there is none."""
        y = self._y
        if self._back.tape.node_id_of(y) is None:
            return [_no_block(y, x, x.dtype) for x in xs]
        stacks = self._stacked(1)
        if y.dtype.kind == "c":
            stacks = [
                None if g is None or h is None else g.real + h.real * 1j
                for g, h in zip(stacks, self._stacked(1j), strict=True)
            ]
        return [
            _no_block(y, x, x.dtype) if g is None else _shape_of(g, (*y.shape, *x.shape))
            for g, x in zip(stacks, xs, strict=True)
        ]

    def _stacked(self, factor: complex) -> Found:
        """Return for each input the gradients by the unit arrays of the output times a factor, along a first axis."""
        if not self._y.size:
            return [None] * len(self._back.leaves)
        return _each(lambda u: self._back.pull([self._y], [u]), self._y, factor, self._vectorize)


def _each(derivative: Callable[[Any], Found], t: Tensor, factor: complex, vectorize: bool) -> Found:
    """Stack what is found for each unit array of a tensor's shape, times a factor; None for one is None for all."""
    units = _basis(t) if factor == 1 else _basis(t) * factor
    if not vectorize:
        columns = zip(*[derivative(unit) for unit in units], strict=True)
        return [None if column[0] is None else _stacked(column) for column in columns]
    return map_units(derivative, units, identity=t.ndim == 1 and factor == 1)


def _stacked(parts: Sequence[Any]) -> Any:
    if any(isinstance(part, Tensor) for part in parts):
        return stack(parts)
    return libraries.namespace(parts[0]).stack(parts)


def _shape_of(t: Any, shape: tuple[int, ...]) -> Any:
    return t if t.shape == shape else reshape(t, shape)


def _last(t: Any) -> Any:
    """Move the first axis to the end."""
    axes = (*range(1, t.ndim), 0)
    return transpose(t, axes) if isinstance(t, Tensor) and is_tracked(t) else raw(t).transpose(axes)


def _no_block(y: Tensor, x: Tensor, dtype: Any) -> Any:
    """Return zeros of the dtype that derivatives of `y` by `x` have which are made in this one."""
    if "c" in (y.dtype.kind, x.dtype.kind):
        dtype = np.result_type(dtype, np.complex64)
    return libraries.namespace(x._array).zeros((*y.shape, *x.shape), dtype)


class _Columns:
    """The columns of a Jacobian that belong to one input."""

    def __init__(self, call: _Call, compute: Callable[[list[Tensor]], Any], k: int, vectorize: bool) -> None:
        self._call = call
        self._compute = compute
        self._k = k
        self._vectorize = vectorize
        self._outs: list[Tensor] = []

    def blocks(self) -> Found:
        """Return the Jacobian of each output."""
        x = self._call.xs[self._k]
        if not x.size:
            outs = self._compute([_handle(t) for t in self._call.xs])
            return [_no_block(y, x, y.dtype) for y in outs]
        stacks = _each(self._pushed, x, 1, self._vectorize)
        if x.dtype.kind == "c" and any(y.dtype.kind != "c" for y in self._outs):
            along = _each(self._pushed, x, 1j, self._vectorize)
            stacks = [
                t if t is None or y.dtype.kind == "c" else t + u * 1j
                for t, u, y in zip(stacks, along, self._outs, strict=True)
            ]
        return [
            _no_block(y, x, y.dtype) if t is None else _shape_of(_last(t), (*y.shape, *x.shape))
            for t, y in zip(stacks, self._outs, strict=True)
        ]

    def _pushed(self, unit: Any) -> Found:
        vs = [unit if k == self._k else None for k in range(len(self._call.xs))]
        with _Pushing(self._call.xs, vs) as pushing:
            self._outs = self._compute(pushing.leaves)
            return pushing.tangents(self._outs)


# ---------------------------------------------------------------- functions of containers


def grad(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return the function that computes the gradient of a scalar function, in the manner of JAX.

    Arguments may be Tensors, plain arrays, numbers, or nested lists, tuples, dicts and dataclasses of them.
    Every floating or complex leaf of the chosen arguments is differentiated; `func` receives it as a Tensor.
    Other leaves (integers, strings, None) and other arguments reach `func` as they are. `grad`s nest, and
    managers outside hear what is computed.

    Args:
        func: returns one real number as a Tensor; with `has_aux` a pair of that and anything.
        argnums: which positional argument to differentiate by, or several; negative ones count from the end.
        has_aux: whether `func` returns a pair.

    Returns:
        A function of the arguments of `func` that returns the gradient in the form of the chosen argument, or a
        tuple of such for several; with `has_aux` a pair of that and what `func` returned beside. The gradient
        of a Tensor is a Tensor, of a plain array an array, of a number a NumPy scalar; each a Tensor where a
        manager outside knows it. In the place of a leaf that is not differentiated stands None.

    Raises:
        TypeError: at the call: `func` returns no Tensor, or an argument holds nothing to differentiate by.
        ValueError: at the call: `func` returns more than one number, or there is no such argument.

    >>> import numpy, gradmgr, gradmgr.numpy as np
    >>> gradmgr.functional.grad(lambda p: np.sum(np.sin(p["w"])) * p["n"])({"w": numpy.zeros(2), "n": 3})
    {'w': array([3., 3.]), 'n': None}
    >>> gradmgr.functional.grad(gradmgr.functional.grad(lambda x: x**3))(2.0)
    np.float64(12.0)
    """
    both = value_and_grad(func, argnums, has_aux)

    @functools.wraps(func, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return the function that computes a scalar function's value and gradient; see `grad`.

    With plain arrays it fits SciPy: `scipy.optimize.minimize(value_and_grad(f), x0, jac=True)`.

    Args:
        func: as in `grad`.
        argnums: as in `grad`.
        has_aux: as in `grad`.

    Returns:
        A function that returns (value, gradient); with `has_aux` ((value, aux), gradient). The value is a Tensor,
        but a NumPy scalar where what is differentiated holds no Tensor and no manager outside knows the value.

    Raises:
        TypeError, ValueError: as `grad`.

    >>> import numpy, gradmgr
    >>> gradmgr.functional.value_and_grad(lambda x: (x * x).sum())(numpy.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    """
    if not callable(func):
        raise TypeError(f"value_and_grad takes a function; found {type(func).__name__}")
    many = _argnums(argnums)

    @functools.wraps(func, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        return _Differentiated(func, args, kwargs, many, has_aux).value_and_grad(one=not isinstance(argnums, Sequence))

    return both


def _argnums(argnums: int | Sequence[int]) -> list[int]:
    many = list(argnums) if isinstance(argnums, Sequence) else [argnums]
    if not many or any(isinstance(k, bool) or not isinstance(k, (int, np.integer)) for k in many):
        raise TypeError(f"argnums is an int or a tuple of them; found {argnums!r}")
    return many


class _Differentiated:
    """One call of a function made by `grad`."""

    def __init__(
        self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: list[int], has_aux: bool
    ) -> None:
        self._func = func
        self._name = f"the gradient of {getattr(func, '__name__', 'func')}"
        self._args = args
        self._kwargs = kwargs
        self._has_aux = has_aux
        self._places = [self._place(k) for k in argnums]
        if len(set(self._places)) < len(self._places):
            raise ValueError(f"{self._name}: argnums {argnums} names an argument twice")
        self._leaves = [leaf for k in self._places for leaf in self._leaves_of(k)]
        self._xs = [_as_tensor(leaf) for leaf in self._leaves if _is_differentiable(leaf)]
        self._plain = not any(isinstance(leaf, Tensor) for leaf in self._leaves if _is_differentiable(leaf))

    def _place(self, k: int) -> int:
        count = len(self._args)
        if not -count <= k < count:
            raise ValueError(
                f"{self._name}: argnums asks for argument {k}, and {count} positional arguments were given; "
                "what is differentiated is passed by position"
            )
        return int(k) % count

    def _leaves_of(self, k: int) -> list[Any]:
        leaves = leaves_of(self._args[k])
        for leaf in leaves:
            dtype = getattr(leaf, "dtype", None)
            if isinstance(dtype, np.dtype) and dtype.kind in "fc" and not libraries.is_differentiable(dtype):
                raise errors.DtypeError(f"{self._name}: argument {k} holds {dtype}, which cannot be differentiated")
        if not any(map(_is_differentiable, leaves)):
            found = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})
            raise errors.DtypeError(
                f"{self._name}: argument {k} holds nothing to differentiate by, only {', '.join(found) or 'nothing'}; "
                "pass floating numbers, such as 3.0 for 3"
            )
        return leaves

    def value_and_grad(self, one: bool) -> Any:
        """Return ((value, aux) or value, gradient)."""
        outside = recorders(current())
        with _Pullback(self._compute, self._xs) as back:
            y, aux = back.made
            value = snapshot(y, outside)
            found = [None if g is None else snapshot(g, outside) for g in back.pull([y], [None], last=True)]
        found = [_zeros(x) if g is None else g for g, x in zip(found, self._xs, strict=True)]
        gradients = iter(_new(found))
        filled = iter([_like(next(gradients), leaf) if _is_differentiable(leaf) else None for leaf in self._leaves])
        trees = [rebuilt(self._args[k], filled) for k in self._places]
        value = value.reshape(())[()] if self._plain and not isinstance(value, Tensor) else _raised(value)
        return ((value, aux) if self._has_aux else value), (trees[0] if one else tuple(trees))

    def _compute(self, handles: list[Tensor]) -> tuple[Tensor, Any]:
        given = iter(handles)
        leaves = iter([next(given) if _is_differentiable(leaf) else leaf for leaf in self._leaves])
        args = list(self._args)
        for k in self._places:
            args[k] = rebuilt(args[k], leaves)
        made = self._func(*args, **self._kwargs)
        aux = None
        if self._has_aux:
            if not (isinstance(made, (tuple, list)) and len(made) == 2):
                raise TypeError(f"{self._name}: with has_aux=True func returns a pair, (value, aux)")
            made, aux = made
        if not isinstance(made, Tensor):
            raise TypeError(
                f"{self._name}: func must return a Tensor; found {type(made).__name__}: float(), .item() and .numpy() "
                "leave the history behind, as does what was computed without the arguments"
            )
        return _one_real(self._name, [made]), aux


def _is_differentiable(leaf: Any) -> bool:
    if isinstance(leaf, Tensor) or libraries.is_array(leaf):
        return libraries.is_differentiable(leaf.dtype)
    return isinstance(leaf, (float, complex))


def _as_tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    return wrap(leaf if libraries.is_array(leaf) else np.asarray(leaf))


def _like(made: Tensor, leaf: Any) -> Any:
    """Return a Tensor in the form of a leaf, unless somebody outside follows it."""
    if isinstance(leaf, Tensor) or is_tracked(made):
        return made
    if libraries.is_array(leaf) and not isinstance(leaf, np.generic):
        return libraries.namespace(made._array).asarray(made._array)  # a 0-d result may be a NumPy scalar
    return made._array[()]


# ---------------------------------------------------------------- SciPy


class Flattened:
    """A function of nested containers as functions of one vector, as SciPy's optimisers and solvers take them.

    Args:
        func: called with containers like `params`, and what further arguments the solver hands on. It returns one
            real number as a Tensor, to minimise; or, for least squares and roots, Tensors in any containers.
        params: nested lists, tuples, dicts and dataclasses. Floating and complex leaves (Tensors, arrays, numbers)
            are what is varied, and reach `func` as Tensors of their dtype and device. In the vector a complex
            number is a pair of real ones.
        frozen: leaves of `params`, the objects themselves, that stay as they are.

    Attributes:
        x0: the values in `params`, a contiguous float64 vector.

    Raises:
        TypeError: `params` holds nothing to vary.
        ValueError: something in `frozen` is no leaf of `params`.

    >>> import gradmgr, gradmgr.numpy as np
    >>> from scipy.optimize import minimize
    >>> params = {"centre": gradmgr.tensor([3.0, -1.0], dtype="float32"), "scale": 2.0}
    >>> problem = gradmgr.functional.Flattened(
    ...     lambda p: np.sum((p["centre"] - 1.0) ** 2) + p["scale"] ** 2, params
    ... )
    >>> found = minimize(problem.value_and_grad, problem.x0, jac=True, hessp=problem.hessp, method="trust-krylov")
    >>> problem.unflatten(found.x.round(6))["centre"]
    Tensor([1., 1.], dtype=float32)
    """

    def __init__(self, func: Function, params: Any, frozen: Sequence[Any] = ()) -> None:
        if not callable(func):
            raise TypeError(f"Flattened takes a function and its parameters; found {type(func).__name__}")
        self._func = func
        self._params = params
        self._leaves = leaves_of(params)
        for k, t in enumerate(frozen):
            if not any(t is leaf for leaf in self._leaves):
                raise ValueError(f"Flattened: frozen holds, as number {k}, something that is no leaf of params")
        self._varied = [_is_differentiable(leaf) and not any(leaf is t for t in frozen) for leaf in self._leaves]
        self._like = [_as_tensor(leaf) for leaf, varied in zip(self._leaves, self._varied, strict=True) if varied]
        if not self._like:
            raise TypeError("Flattened: params holds no floating or complex leaf that could be varied")
        sizes = [t.size * (2 if t.dtype.kind == "c" else 1) for t in self._like]
        self._ends = np.cumsum(sizes).tolist()
        self.x0 = np.concatenate([_real_vector(t._array) for t in self._like])

    # ------------------------------------------------------------ between the two forms

    def flatten(self, params: Any) -> np.ndarray[Any, Any]:
        """Return the vector of containers like those given at first.

        Raises:
            ValueError: they differ from those in form or shapes.
        """
        leaves = leaves_of(params)
        shapes = [np.shape(raw(leaf)) for leaf, varied in zip(leaves, self._varied, strict=False) if varied]
        if len(leaves) != len(self._leaves) or shapes != [t.shape for t in self._like]:
            raise errors.ShapeError(
                f"flatten: params must be like those given at first, with leaves of shapes "
                f"{[t.shape for t in self._like]}; found {shapes}"
            )
        chosen = [leaf for leaf, varied in zip(leaves, self._varied, strict=True) if varied]
        return np.concatenate([_real_vector(_as_tensor(leaf)._array) for leaf in chosen])

    def unflatten(self, x: Any) -> Any:
        """Return containers with the values of a vector: Tensors, arrays and numbers where `params` has such.

        Raises:
            ValueError: the vector has another length.
        """
        with inference_mode():
            made = iter(self._parts(self._vector(x, "unflatten")))
        leaves = [_like(next(made), leaf) if v else leaf for leaf, v in zip(self._leaves, self._varied, strict=True)]
        return rebuilt(self._params, iter(leaves))

    def _vector(self, x: Any, asked: str) -> Tensor:
        values = np.array(raw(x), dtype=np.float64)  # a copy: a solver may go on writing to its own
        if values.shape != self.x0.shape:
            raise errors.ShapeError(f"{asked}: the vector must have shape {self.x0.shape}; found {values.shape}")
        return wrap(values)

    def _parts(self, x: Tensor) -> list[Tensor]:
        starts = [0, *self._ends[:-1]]
        return [_shaped(x[start:end], t) for start, end, t in zip(starts, self._ends, self._like, strict=True)]

    def _computed(self, x: Tensor, args: tuple[Any, ...]) -> Any:
        made = iter(self._parts(x))
        leaves = [next(made) if v else leaf for leaf, v in zip(self._leaves, self._varied, strict=True)]
        return self._func(rebuilt(self._params, iter(leaves)), *args)

    def _outputs(self, x: Tensor, args: tuple[Any, ...]) -> Tensor:
        """Return all numbers of the outputs as one float64 vector."""
        return _flat(self._computed(x, args))

    def _scalar(self, asked: str, args: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
        def computed(x: Tensor) -> Tensor:
            y = self._computed(x, args)
            if not isinstance(y, Tensor):
                raise TypeError(f"Flattened.{asked}: func must return a Tensor; found {type(y).__name__}")
            return _as_reals(_one_real(f"Flattened.{asked}", [y]))

        return computed

    # ------------------------------------------------------------ what SciPy calls

    def value(self, x: Any, *args: Any) -> Any:
        """Return the output at a vector: a float where it is one real number, else a float64 vector of all of it."""
        with inference_mode():
            made = self._computed(self._vector(x, "value"), args)
            if isinstance(made, Tensor) and made.ndim == 0 and made.dtype.kind != "c":
                return float(made)
            return np.array(_flat(made)._array)

    def value_and_grad(self, x: Any, *args: Any) -> tuple[float, np.ndarray[Any, Any]]:
        """Return the output and its gradient at a vector, a float and a float64 vector: for `jac=True`.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        y, g = vjp(self._scalar("value_and_grad", args), self._vector(x, "value_and_grad"))
        return float(raw(y)[0]), raw(g)

    def grad(self, x: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the gradient at a vector, a float64 vector.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        return self.value_and_grad(x, *args)[1]

    def hessp(self, x: Any, p: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the product of the Hessian at a vector with another, a float64 vector.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        _, product = vhp(self._scalar("hessp", args), self._vector(x, "hessp"), self._vector(p, "hessp"))
        made: np.ndarray[Any, Any] = raw(product)
        return made

    def hess(self, x: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the Hessian at a vector, a float64 matrix.

        Raises:
            TypeError, ValueError: the output is not one real number.
        """
        made: np.ndarray[Any, Any] = raw(hessian(self._scalar("hess", args), self._vector(x, "hess"), vectorize=True))
        return made

    def jac(self, x: Any, *args: Any) -> np.ndarray[Any, Any]:
        """Return the Jacobian at a vector, a float64 matrix: for `scipy.optimize.least_squares` and `root`.

        Rows are in the order of `value`.
        """
        point = self._vector(x, "jac")
        made: np.ndarray[Any, Any] = raw(jacobian(lambda t: self._outputs(t, args), point, vectorize=True))
        return made


def _real_vector(a: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array as reals, a complex number as a pair, on the host in float64."""
    values = np.asarray(libraries.to_device(a, "cpu"))
    if values.dtype.kind == "c":
        return np.ascontiguousarray(values, np.complex128).reshape(-1).view(np.float64)
    return values.astype(np.float64).reshape(-1)


def _as_reals(t: Tensor) -> Tensor:
    """Do the same, recorded."""
    if t.dtype.kind == "c":
        t = stack([t.real, t.imag], axis=-1)
    t = reshape(t, (-1,))
    return _cast(t if t.device == "cpu" else to(t, "cpu"), np.dtype(np.float64))


def _flat(made: Any) -> Tensor:
    parts = leaves_of(made)
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(f"Flattened: func must return Tensors; found {type(part).__name__}")
    flat = [_as_reals(part) for part in parts]
    return flat[0] if len(flat) == 1 else concatenate(flat)


def _shaped(values: Tensor, like: Tensor) -> Tensor:
    """Give a part of a vector the form of a leaf, recorded."""
    if like.dtype.kind == "c":
        pairs = reshape(values, (*like.shape, 2))
        values = pairs[..., 0] + pairs[..., 1] * 1j
    else:
        values = reshape(values, like.shape)
    values = _cast(values, like.dtype)
    return values if like.device == "cpu" else to(values, like.device)


def _cast(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    return t if t.dtype == dtype else as_type(t, dtype)
