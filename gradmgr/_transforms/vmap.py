"""vmap: a function of one example, run on a whole batch at once.

Inside, the mapped tensors hold batched arrays, which have the shape of one example (`_arrays.batched`). To hide the
mapped axis and to make it visible again are ops of the table, so outer managers and outer forward mode differentiate
through them.

A tensor that an outer recorder tracks, and that is the same for all examples, must receive the sum of
the gradients of the examples. Where such a tensor meets a batched one, an interceptor replaces it by the
result of an op whose adjoint is that sum. A recorder that was entered inside keeps its node id of the
tensor: it computes the gradient of each example.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import (
    Batched,
    Level,
    batch,
    broadcast_over_examples,
    highest_level,
    innermost,
    is_batched_at,
    sum_over_examples,
    unbatch,
)
from gradmgr._arrays.listening import told
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import (
    Context,
    Intercepting,
    current,
    interceptors_of,
    is_tracked,
    rebind,
    recorders,
    run_in,
)
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.op import Function, linear
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tensor import Tensor, bare, describe, wrap
from gradmgr._engine.wrong_calls import explained
from gradmgr._transforms.outside import taken_from_outside
from gradmgr.ops.join import concatenate

__all__ = ["vmap"]

R = TypeVar("R")

# The two ops of each pair are each other's adjoints.
batch_op: Function = linear("vmap_in", batch, lambda g, level, axis: unbatch_op(g, level, axis))
unbatch_op: Function = linear("vmap_out", unbatch, lambda g, level, axis: batch_op(g, level, axis))
broadcast_op: Function = linear("vmap_share", broadcast_over_examples, lambda g, level: sum_op(g, level))
sum_op: Function = linear(
    "vmap_total",
    lambda a, level: sum_over_examples(a, level, libraries.add_up),
    lambda g, level: broadcast_op(g, level),
)


class _VmapInterceptor(Interceptor):
    """One running vmap: broadcasts the tensors that outer recorders track to its examples."""

    __slots__ = ("depth", "level", "outer", "refuses_draws")

    depth: int

    follows_backward = False
    affects_results = batches = True

    def __init__(self, size: int, like: Any, refuses_draws: str = "") -> None:
        super().__init__()
        self.refuses_draws = refuses_draws
        state = current()
        depths = [w.depth for w in interceptors_of(state) if isinstance(w, _VmapInterceptor)]
        self.depth = 1 + max(depths) if depths else 1
        self.level = Level(size, self.depth, libraries.namespace(innermost(bare(like))))
        self.outer = recorders(state)

    def reopened(self) -> _VmapInterceptor:
        made = object.__new__(_VmapInterceptor)
        made.open, made.depth, made.level, made.outer = True, self.depth, self.level, self.outer
        made.refuses_draws = self.refuses_draws
        return made

    def before_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the inputs that are the same for all examples, where others are batched."""
        if not self.outer or not self._any_batched(inputs, params):
            return inputs
        return tuple([self._broadcast(t) if isinstance(t, Tensor) else t for t in inputs])

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        """Raise if an input is batched and a result is not: gradients would be wrong."""
        if result.__class__ is Batched and result.level is self.level:
            return  # the most frequent case
        for t in inputs:
            if is_batched_at(t._array if isinstance(t, Tensor) else t, self.level):
                break
        else:
            return
        for part in result if result.__class__ is tuple else (result,):
            if libraries.is_differentiable(part.dtype) and not is_batched_at(part, self.level):
                raise errors.BatchedValueError(
                    f"{op.name} inside vmap gave one result for all examples, of arguments that differ between "
                    "examples; call it without vmap, in a loop"
                )

    def _any_batched(self, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> bool:
        level = self.level
        if any(is_batched_at(t._array if isinstance(t, Tensor) else t, level) for t in inputs):
            return True
        return highest_level(params) is not None and any(is_batched_at(b, level) for b in _batched_in(params))

    def _broadcast(self, t: Tensor) -> Tensor:
        if is_batched_at(t._array, self.level) or not any(
            rec.open and rec.node_id_of(t) is not None for rec in self.outer
        ):
            return t
        state = current()
        shared: Tensor = run_in(self._outer_context(state), broadcast_op, t, self.level)
        for rec in recorders(state):
            node_id = rec.node_id_of(t) if rec.open and rec not in self.outer else None
            if node_id is not None:
                rec.track(shared, node_id)
        return shared

    def _outer_context(self, state: Any) -> Any:
        """Return the context with only the outer recorders, and the interceptors outside of this vmap."""
        if not isinstance(state, Context):
            return state
        interceptors = state.interceptors[: state.interceptors.index(self)] if self in state.interceptors else ()
        return state.narrowed(self.outer.__contains__).with_interceptors(interceptors)


class _Mapping(Intercepting):
    """One call of a mapped function. At its end, tensors that are the same for all examples are so again.

    Attributes:
        changed: one of these tensors to which values were written that differ between examples, or None.
        given_gradient: one that was given a gradient that differs between examples, and still had it, or None.
    """

    __slots__ = ("_level", "_values_before", "changed", "given_gradient")

    def __init__(self, mapping: _VmapInterceptor, shared: list[Tensor]) -> None:
        super().__init__(mapping)
        self._level = mapping.level
        self._values_before = [(t, snapshot(t, mapping.outer)) for t in shared]
        self.changed: Tensor | None = None
        self.given_gradient: Tensor | None = None

    def _close(self, opened: Any) -> None:
        super()._close(opened)
        for t, value_before in self._values_before:
            if is_batched_at(t._array, self._level):
                self.changed = t
                rebind(t, value_before if isinstance(value_before, Tensor) else wrap(value_before))
        if any(self._has_gradient(t) for t, _ in self._level.given_gradients()):
            gc.collect()  # what was made inside is gone then, though objects refer to each other
            for t, before in self._level.given_gradients():
                if self._has_gradient(t):
                    self.given_gradient = t
                    t.grad = before

    def _has_gradient(self, t: Tensor) -> bool:
        """Tell whether a tensor that is the same for all examples has a gradient that is not."""
        grad = t.grad
        return grad is not None and is_batched_at(grad._array, self._level) and not is_batched_at(t._array, self._level)


def _restore_written(level: Level, func: Any) -> Tensor | None:
    """Give tensors from outside to which values of examples were written their values again; return one of them.

    Others are still alive where a history, for example, holds a function that refers to them.
    """
    before = {id(t): value for t, value in level.written_tensors() if is_batched_at(t._array, level)}
    changed = taken_from_outside(func, [t for t, _ in level.written_tensors() if id(t) in before])
    for t in changed:
        value = before[id(t)]
        rebind(t, value if isinstance(value, Tensor) else wrap(value))
    return changed[0] if changed else None


def _batched_in(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _batched_in(value)
        elif isinstance(value, Batched):
            yield value


# ---------------------------------------------------------------- which axis of which tensor


def _parts_of(value: Any) -> list[Any] | None:
    """Return the parts of a container, each of which may have its own dim; None for anything else."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else None


def _dims_for(dims: Any, value: Any, fail: Callable[[], Exception]) -> list[Any]:
    """Return a dim for every leaf; one dim serves a whole container."""
    parts, given = _parts_of(value), _parts_of(dims)
    if given is None:
        if dims is not None and (isinstance(dims, bool) or not isinstance(dims, (int, np.integer))):
            raise fail()
        return [dims] * len(leaves_of(value))
    if parts is None or len(parts) != len(given) or isinstance(value, dict) != isinstance(dims, dict):
        raise fail()
    if isinstance(value, dict):
        if set(value) != set(dims):
            raise fail()
        given = [dims[key] for key in value]
    return [dim for part, d in zip(parts, given, strict=True) for dim in _dims_for(d, part, fail)]


# ---------------------------------------------------------------- vmap


@explained
def vmap(
    func: Callable[..., R],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., R]:
    """Return a function that maps `func`, written for one example, over an axis of its arguments.

    `func` sees tensors without that axis; what it computes is computed for all examples at once. vmaps
    nest, and derivatives may be taken of and within them: `vmap(grad(loss), in_dims=(None, 0, 0))`
    gives the gradient of each example.

    Inside, a value that differs between examples cannot be converted (`float(x)`, `x.numpy()`) or branched
    on (`if x > 0`), and no array may have a shape that depends on it (`x[x > 0]`); each raises. A NumPy
    function without its own rule is called once for each example. Do not write in place to a tensor that was
    made outside, `w += x`, values that differ between examples, nor leave such gradients in its `.grad`: an error is
    raised at the end, and the tensor and its `.grad` are as before.

    Args:
        func: takes and returns tensors, or lists, tuples and dicts of them. It is given plain arrays
            that are mapped as tensors.
        in_dims: the axis to map over, of all arguments or, in containers of the form of the arguments (or
            of their outer part), of each; None for an argument that is the same for all. Keyword arguments
            are the same for all.
        out_dims: the position of the axis in each result; None for a result that is the same for all.
        randomness: how numbers are handled that `func` draws from NumPy's generators: "same" gives one
            draw to all examples; "different" runs `func` once for each example; "error" raises if NumPy's
            global generator was drawn from, or where a function of `nn` draws. Not seen, and the same for all,
            are other draws from a `Generator` of your own, and the normal number that `numpy.random.normal`
            keeps from one call for the next, where the first of the two calls was outside.
        chunk_size: how many examples to run at once; all by default.

    Returns:
        A function of the arguments of `func` with the axis. Its results are Tensors, or plain arrays
        where no Tensor was given.

    Raises:
        ValueError: `in_dims` or `out_dims` does not fit, no argument is mapped, mapped axes differ in
            length, or `func` returns something that is not a tensor.
        RuntimeError: `func` asks for one value of a batched tensor; `randomness` is none of the three, or says
            "error" and random numbers are drawn (RandomnessError); values or gradients that differ between examples
            are left in a tensor that is the same for all (BatchedWriteError).

    >>> import gradmgr, gradmgr.numpy as np
    >>> from gradmgr import vmap
    >>> x = gradmgr.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> vmap(lambda row: np.dot(row, row))(x)
    Tensor([ 5., 25., 61.])
    """
    errors.check_function(func, "vmap")
    if randomness not in ("error", "different", "same"):
        raise errors.RandomnessError(f"vmap: randomness is 'error', 'different' or 'same'; found {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"vmap: chunk_size is at least 1, or None for all examples at once; found {chunk_size}")
    call = _VmapCall(func, in_dims, out_dims, randomness, chunk_size)

    @functools.wraps(func, updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return call.run(args, kwargs)

    return mapped


class _VmapCall:
    """The arguments of `vmap`, and one call of the function it returned."""

    def __init__(
        self, func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None
    ) -> None:
        self.func = func
        self.name = getattr(func, "__name__", repr(func))
        self.in_dims = in_dims
        self.out_dims = out_dims
        self.randomness = randomness
        self.chunk_size = 1 if randomness == "different" else chunk_size

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, dims = leaves_of(args), self._input_dims(args)
        size = self._batch_size(leaves, dims)
        had_tensor = any(isinstance(leaf, Tensor) for leaf in (*leaves, *leaves_of(kwargs)))
        if self.chunk_size is None or self.chunk_size >= size > 0 or size == 0:
            structure, made, _ = self._run_batch(args, leaves, dims, kwargs, size)
        else:
            structure, made, _ = self._run_in_chunks(args, leaves, dims, kwargs, size)
        results = [self._unwrapped(y, had_tensor) for y in made]
        return rebuilt(structure, iter(results))

    def _unwrapped(self, y: Any, had_tensor: bool) -> Any:
        if isinstance(y, Tensor) and not had_tensor and not is_tracked(y):
            return y._array
        return y if isinstance(y, Tensor) else wrap(y)

    # ------------------------------------------------------------ arguments

    def _input_dims(self, args: tuple[Any, ...]) -> list[Any]:
        dims = self.in_dims
        if isinstance(dims, bool) or not isinstance(dims, (int, np.integer, tuple)):
            raise ValueError(
                f"vmap({self.name}): in_dims is an int, or a tuple with an entry for each argument; found {dims!r}"
            )
        if not args:
            raise ValueError(f"vmap({self.name}) was called without arguments; it maps over positional arguments")

        def fail() -> Exception:
            return ValueError(
                f"vmap({self.name}): in_dims={dims!r} does not have the form of the arguments, {_structure(args)}; "
                "give an int or None for each argument, or containers like the arguments'"
            )

        return _dims_for(dims, args, fail)

    def _batch_size(self, leaves: list[Any], dims: list[Any]) -> int:
        sizes = []
        for k, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
            if dim is None:
                continue
            if not (isinstance(leaf, Tensor) or (libraries.is_array(leaf))):
                raise ValueError(
                    f"vmap({self.name}): in_dims is {dim} for input {k}, a {type(leaf).__name__}, which has no axes "
                    "to map over; use None for it"
                )
            libraries.check_plain(leaf, f"vmap({self.name})")
            if not -leaf.ndim <= dim < leaf.ndim:
                bounds = f"it must be at least {-leaf.ndim} and less than {leaf.ndim}"
                raise ValueError(
                    f"vmap({self.name}): in_dims is {dim} for input {k}, which has shape {leaf.shape}; "
                    f"{bounds if leaf.ndim else 'use None for it'}"
                )
            sizes.append(leaf.shape[dim])
        if not sizes:
            raise ValueError(f"vmap({self.name}): in_dims is None for every input; at least one must be mapped")
        if any(size != sizes[0] for size in sizes):
            raise ValueError(f"vmap({self.name}): the mapped axes must be of one length; found {sizes}")
        return int(sizes[0])

    # ------------------------------------------------------------ running

    def _run_in_chunks(
        self, args: Any, leaves: list[Any], dims: list[Any], kwargs: dict[str, Any], size: int
    ) -> tuple[Any, list[Any], list[Any]]:
        step = self.chunk_size or size
        runs = []
        for start in range(0, size, step):
            part = slice(start, min(size, start + step))
            part_of_leaves = [
                leaf if dim is None else _slice(leaf, dim, part) for leaf, dim in zip(leaves, dims, strict=True)
            ]
            runs.append(self._run_batch(args, part_of_leaves, dims, kwargs, part.stop - part.start))
        structure, first, dims_out = runs[0]
        made = []
        for k, place in enumerate(dims_out):
            parts = [run[1][k] for run in runs]
            made.append(first[k] if place is None else concatenate(parts, axis=place))
        return structure, made, dims_out

    def _run_batch(
        self, args: Any, leaves: list[Any], dims: list[Any], kwargs: dict[str, Any], size: int
    ) -> tuple[Any, list[Any], list[Any]]:
        """Run on all these examples; return the result, its leaves, and the dim of each leaf's axis."""
        first = next(leaf for leaf, dim in zip(leaves, dims, strict=True) if dim is not None)
        mapping = _VmapInterceptor(size, first, self.name if self.randomness == "error" else "")
        level = mapping.level
        inputs = [leaf if dim is None else _batched(leaf, level, dim) for leaf, dim in zip(leaves, dims, strict=True)]
        shared = [
            t for t in (*inputs, *leaves_of(kwargs)) if isinstance(t, Tensor) and not is_batched_at(t._array, level)
        ]
        running = _Mapping(mapping, shared)
        try:
            made = running.run(self._call_func, rebuilt(args, iter(inputs)), kwargs)
        except BaseException:
            _restore_written(level, self.func)
            raise
        if running.changed is not None:
            raise self._written_error(running.changed)
        if running.given_gradient is not None:
            raise errors.BatchedWriteError(
                f"vmap({self.name}): the .grad of {describe(running.given_gradient)}, which is the same for all "
                "examples, was set to gradients that differ between examples; return them, by gradmgr.functional.grad "
                "or by `g, w.grad = w.grad, None` inside, or map over the tensor"
            )
        outs, dims_out = leaves_of(made), self._result_dims(made)
        results = [self._unbatched_result(y, level, place) for y, place in zip(outs, dims_out, strict=True)]
        structure = rebuilt(made, iter([None] * len(outs)))
        del made, outs  # what was made inside is gone then
        if level.written_tensors() and (changed := _restore_written(level, self.func)) is not None:
            raise self._written_error(changed)
        return structure, results, dims_out

    def _written_error(self, t: Tensor) -> Exception:
        return errors.BatchedWriteError(
            f"vmap({self.name}): {describe(t)}, which is the same for all examples, was written to in place with "
            "values that differ between examples; write x = x + y instead of x += y, or map over it"
        )

    def _call_func(self, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.randomness != "error":
            return self.func(*args, **kwargs)
        before = _global_random_state()
        made = self.func(*args, **kwargs)
        if _global_random_state() != before:
            raise errors.RandomnessError(
                f"vmap({self.name}): random numbers were drawn from NumPy's global generator; say randomness='same' "
                "for one draw for all examples, or 'different' for one for each"
            )
        return made

    # ------------------------------------------------------------ results

    def _result_dims(self, made: Any) -> list[Any]:
        outs = self.out_dims
        kinds = leaves_of(outs)
        if any(dim is not None and (isinstance(dim, bool) or not isinstance(dim, (int, np.integer))) for dim in kinds):
            raise ValueError(f"vmap({self.name}): out_dims holds ints and None, in containers; found {outs!r}")

        def fail() -> Exception:
            return ValueError(
                f"vmap({self.name}): out_dims={outs!r} does not have the form of the results, {_structure(made)}; "
                "give an int for all, or containers like the results'"
            )

        if isinstance(outs, tuple) and len(outs) == 1 and _parts_of(made) is None:
            outs = outs[0]
        return _dims_for(outs, made, fail)

    def _unbatched_result(self, y: Any, level: Level, place: Any) -> Any:
        if not (isinstance(y, Tensor) or (libraries.is_array(y) and hasattr(y, "ndim"))):
            raise ValueError(
                f"vmap({self.name}): the function must return Tensors; found {type(y).__name__}; "
                "return constants another way, or as tensors"
            )
        differs = is_batched_at(y._array if isinstance(y, Tensor) else y, level)
        if place is None:
            if differs:
                raise ValueError(
                    f"vmap({self.name}): out_dims is None for a result of shape {y.shape} that differs between "
                    "examples; say where its axis is to stand"
                )
            return y if isinstance(y, Tensor) else wrap(y)
        if not -y.ndim - 1 <= place <= y.ndim:
            raise IndexError(
                f"vmap({self.name}): out_dims is {place} for a result of shape {y.shape}, without the mapped axis; it "
                f"must be at least {-y.ndim - 1} and at most {y.ndim}"
            )
        return _unbatched(y if isinstance(y, Tensor) else wrap(y), level, place % (y.ndim + 1))


_MT19937_BYTES = 4 * 624 + 4  # its state in memory: 624 words of 32 bits and a position


def _global_random_state() -> Any:
    """Return the state of NumPy's global generator, to tell whether numbers were drawn from it.

    It is read at its documented address, as numpy.random.get_state() takes 90 us, more than the rest of a small vmap.
    The second normal number that NumPy keeps when it draws the first is not part of it: only get_state() tells of it.
    """
    import ctypes  # deferred, as it takes time and is rarely needed

    generators: Any = np.random  # before 2.5 its stubs do not export this public function
    bits = generators.get_bit_generator()
    if type(bits).__name__ == "MT19937":
        return ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES)
    return repr(bits.state)


def map_units(func: Callable[[Any], list[Any]], units: Any, *, identity: bool) -> list[Any]:
    """Map a function over the unit arrays of a shape. It is called once, so random numbers are drawn once for all.

    Args:
        func: takes an array and returns Tensors, arrays, and None if there is no result.
        units: a plain array of unit arrays, or multiples, along its first axis.
        identity: whether they make the identity matrix, the product with which need not be computed.

    Returns:
        What `func` returned, its results stacked along a first axis.
    """
    mapping = _VmapInterceptor(len(units), units)
    level = mapping.level
    if identity and units.__class__ is np.ndarray:
        units.flags.writeable = False  # a rule that wrote to it would not find it in products
        level.identity = units
    try:
        made = Intercepting(mapping).run(func, batch(units, level, 0))
    finally:
        level.identity = None  # tensors that are kept may refer to the level
    return [None if y is None else _unbatched(told(y), level, 0) for y in made]


def _unbatched(y: Any, level: Level, place: int) -> Any:
    """Return a result, a Tensor or an array, with the examples as an ordinary axis."""
    differs = is_batched_at(bare(y), level)
    return unbatch_op(y if differs else broadcast_op(y, level), level, place)


def _batched(leaf: Any, level: Level, dim: int) -> Tensor:
    t = leaf if isinstance(leaf, Tensor) else wrap(leaf)
    entered: Tensor = batch_op(t, level, dim % t.ndim)
    return entered


def _slice(leaf: Any, dim: int, part: slice) -> Any:
    return leaf[(slice(None),) * (dim % leaf.ndim) + (part,)]


def _structure(value: Any) -> str:
    """Show a container with a star for each leaf."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_structure(part)}" for key, part in value.items()) + "}"
    parts = _parts_of(value)
    if parts is None:
        return "*"
    inner = ", ".join(map(_structure, parts))
    return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(parts) == 1 else ''})"
