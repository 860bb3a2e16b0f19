"""Checkpoints: a function's intermediate values are not kept but computed again in backward.

While the function runs, none of its entries is added to a tape. Only a hash of them is kept, which tells whether
a second run does the same, and the node ids of the values from outside. Then the tape gets one entry for the
call, and one for each value made inside that is still referenced: the results, what was written to in place, what
was stored elsewhere. Each is identified by its position in the sequence of entries.

In backward the function runs again, on new tensors of the old values, recorded by the tape; the vjps of the
entries it makes now are called at once, with the same gradients in the same order as if they had been kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import run_atomically
from gradmgr._arrays.captured import CapturedArray, inner_of
from gradmgr._arrays.refcounts import NODE_ID_AS_KEY, count_keys
from gradmgr._engine.backward_pass import compute_vjps, context_of_pass, run_hooked
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import Context, current, interceptors_of, recorders, set_current
from gradmgr._engine.entry import Kind, declare_kind, ids_in_tuple, input_ids, input_metadata, no_inputs, op_name
from gradmgr._engine.history import modes
from gradmgr._engine.history.saved_values import is_of_saved_tensors_hooks, with_node_ids
from gradmgr._engine.hooks import name_of
from gradmgr._engine.observers import Entry, Observer, observers, observing, set_observers
from gradmgr._engine.ownership import Grads, Ownership
from gradmgr._engine.recorder import Recorder, snapshot
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe, is_number, wrap
from gradmgr._transforms.randomness import Replay, given_sources, global_sources, sources_in

__all__ = ["checkpoint", "checkpoint_sequential"]

R = TypeVar("R")
Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

# ---------------------------------------------------------------- what a run records


class _RunLog:
    """What one run of a function records on one tape: its values in order, those from outside, and a hash."""

    __slots__ = ("hash", "inside", "lines", "metadata", "outside", "strict")

    def __init__(self, strict: bool, debug: bool) -> None:
        self.inside: dict[Any, int] = {}  # the node ids made, with their positions
        self.outside: dict[Any, int] = {}  # the node ids from outside, with their order
        self.metadata: dict[Any, tuple[Any, ...]] = {}  # node id, shape and dtype of values from outside
        self.strict = strict  # whether the hash includes shapes and dtypes
        self.hash = 0
        self.lines: list[str] | None = [] if debug else None

    def add(self, e: Entry) -> None:
        """Add an entry."""
        sources = tuple([None if node_id is None else self._position(node_id) for node_id in input_ids(e)])
        metadata = input_metadata(e) if self.strict else ()
        shapes = tuple([(shape, dtype) for _, shape, dtype in metadata])
        self.hash = hash((self.hash, e[0], sources, shapes))
        for row in metadata:
            if row[0] in self.outside:
                self.metadata[row[0]] = row
        if self.lines is not None:
            of = ", ".join([_describe_position(position) for position in sources if position is not None])
            on = ", ".join([f"{shape} {dtype}" for shape, dtype in shapes])
            self.lines.append(f"{len(self.inside)}: {op_name(e)} of {of}{on and ': '}{on}")
        self.inside[e[1]] = len(self.inside)

    def _position(self, node_id: Any) -> int:
        """Return the position of a value made inside; ~k for the k-th value from outside."""
        position = self.inside.get(node_id)
        return ~self.outside.setdefault(node_id, len(self.outside)) if position is None else position

    def referenced_values(self) -> list[tuple[int, Any]]:
        """Return the values made inside that something else still refers to, with their positions before them."""
        return [(k, node_id) for references, k, node_id in count_keys(self.inside) if references > NODE_ID_AS_KEY]


def _describe_position(position: int) -> str:
    return f"number {position}" if position >= 0 else f"outer value {~position}"


class _FirstRunObserver(Observer):
    """Keeps the entries of the first run off the tapes that record it, and adds them to run logs."""

    rank = -1

    def __init__(self, tapes: Iterable[Tape], strict: bool, debug: bool) -> None:
        self.logs = {tape: _RunLog(strict, debug) for tape in tapes}

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        log = self.logs.get(tape)
        if log is None:
            return e  # of a manager that the function itself uses
        if e[0] == "attach":
            raise errors.CheckpointError(
                "attach() of a value computed inside a checkpointed function, to a manager that records outside of it; "
                "attach the function's result, or use a manager of its own inside"
            )
        log.add(e)
        return None

    def backward_started(self, tape: Any, grads: Grads) -> None:
        if tape in self.logs:
            raise errors.CheckpointError(
                "backward() inside a checkpointed function, of a manager that records outside of it: what the function "
                "does is not kept; call it outside, or use a manager of its own inside"
            )


def is_in_checkpoint() -> bool:
    """Tell whether this code runs in a checkpointed function, and so will run again in backward."""
    return any(isinstance(observer, _FirstRunObserver) for observer in observers())


class _SecondRunLogger(Observer):
    """Adds the entries of the second run to a run log, before other observers see them."""

    rank = -1

    def __init__(self, tape: Tape, log: _RunLog) -> None:
        self.tape = tape
        self.log = log

    def observe(self, tape: Any, e: Entry) -> Entry:
        if tape is self.tape:
            self.log.add(e)
        return e


class _SecondRunCollector(Observer):
    """Collects the entries of the second run, after other observers, in place of the tape."""

    rank = 1

    def __init__(self, tape: Tape, keep: bool) -> None:
        self.tape = tape
        self.keep = keep  # add them to the tape too, as derivatives of the derivative need
        self.entries: list[Entry] = []

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        if tape is not self.tape:
            return e
        self.entries.append(e)
        return e if self.keep else None


# ---------------------------------------------------------------- the call


class _KeptArgument:
    """Takes the place of a Tensor or array among the arguments; value `k` of those kept."""

    __slots__ = ("is_number", "is_tensor", "k")

    def __init__(self, k: int, leaf: Any) -> None:
        self.k = k
        self.is_tensor = isinstance(leaf, Tensor)
        self.is_number = self.is_tensor and is_number(leaf)


class _Call:
    """One checkpointed call: all that is needed to run it again, except the kept values."""

    __slots__ = (
        "arguments",
        "debug",
        "function",
        "interceptors",
        "leaves",
        "modes",
        "name",
        "replay",
        "second_context",
        "strict",
    )

    def __init__(
        self, function: Callable[..., Any], second_context: AbstractContextManager[Any], strict: bool, debug: bool
    ) -> None:
        self.function = function
        self.name = name_of(function)
        self.second_context = second_context  # entered around the second run
        self.strict = strict
        self.debug = debug
        self.modes = modes._modes.get()
        self.interceptors = [
            interceptor for interceptor in interceptors_of(current()) if interceptor.affects_results
        ]  # what these do is part of the function
        self.replay: Replay | None = None
        self.leaves: list[tuple[Tensor, Any]] = []  # attached tensors that it read and that are no arguments
        self.arguments: Any = ((), {})

    def keep_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tracking: list[Recorder]
    ) -> tuple[Any, ...]:
        """Keep the arguments; return the values of the Tensors and arrays among them, as these recorders track them."""
        values: list[Any] = []
        kept: dict[int, _KeptArgument] = {}
        leaves = []
        for leaf in leaves_of((args, kwargs)):
            if isinstance(leaf, Tensor) or (libraries.is_array(leaf) and not isinstance(leaf, np.generic)):
                if id(leaf) not in kept:
                    kept[id(leaf)] = _KeptArgument(len(values), leaf)
                    values.append(snapshot(leaf, tracking))
                leaf = kept[id(leaf)]
            leaves.append(leaf)
        self.arguments = rebuilt((args, kwargs), iter(leaves))
        return tuple(values)

    def restore_arguments(self, values: tuple[Any, ...]) -> Any:
        """Return args and kwargs: new containers of new Tensors."""
        made: dict[int, Any] = {}

        def restore(leaf: Any) -> Any:
            if not isinstance(leaf, _KeptArgument):
                return leaf
            if leaf.k not in made:
                value = values[leaf.k]
                t = with_node_ids(value._array, value) if isinstance(value, Tensor) else wrap(value)
                t._view_of = None if leaf.is_number else ()
                made[leaf.k] = t if leaf.is_tensor else value
            return made[leaf.k]

        return rebuilt(self.arguments, map(restore, leaves_of(self.arguments)))

    def run_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the function a second time, with the same random numbers."""
        if self.replay is None:
            _call_in(self.second_context, self.function, args, kwargs)
        else:
            self.replay.run_again(_call_in, self.second_context, self.function, args, kwargs)

    def remember_leaves(self, logs: dict[Tape, _RunLog], arguments: list[Any]) -> None:
        """Remember which attached tensors the function read without being given them."""
        given = {id(leaf) for leaf in arguments}
        for tape, log in logs.items():
            self.leaves += [
                (t, t._array)
                for t, node_id in tape.leaves.copy().items()  # other threads may attach
                if node_id in log.outside and id(t) not in given
            ]

    def check_leaves(self) -> None:
        """Raise if one of the remembered leaves was written to."""
        for t, array in self.leaves:
            if t._array is array:
                continue
            if isinstance(array, CapturedArray) and inner_of(t._array) is inner_of(array):
                # A hook has run since, which may write to it in another call: each replay must look.
                call_whole(_check_leaf, t, array, self.name, changes=())
            else:
                _check_leaf(t, array, self.name)


def _check_leaf(t: Tensor, array: Any, name: str) -> None:
    """Raise if a tensor has another array than the one that a function of this name has read."""
    if t._array is not array:
        raise errors.CheckpointError(
            f"checkpoint: {describe(t)}, which {name} reads without being given it, was written to between the call "
            "and backward(); pass it as an argument, whose value is kept, or write to it afterwards"
        )


class _Rerun:
    """Runs a call again in backward, for one tape."""

    __slots__ = ("_call", "_count", "_hash", "_lines", "_positions", "_tape", "metadata")

    def __init__(self, tape: Tape, call: _Call, log: _RunLog, positions: list[int]) -> None:
        self._tape = tape
        self._call = call
        self._positions = positions  # of the results in the sequence
        self._hash = log.hash
        self._count = len(log.inside)
        self._lines = log.lines
        self.metadata = tuple(log.metadata.values())

    def compute_vjps(
        self, bundle: Any, outside: tuple[Any, ...], values: Any, g: Any, grads: Grads, owned: Ownership
    ) -> None:
        """Run the function again and call the vjps of its entries."""
        tape, observed = self._tape, self._tape.observed_pass
        hooks = {} if tape.annotations is None else tape.annotations.hooks
        before = {node_id: hooks[node_id].joined(None) for node_id in outside if node_id in hooks}
        create_graph = observed is not None and observed.create_graph
        entries, log = self._run(outside, values, create_graph)
        inside = list(log.inside)
        node_ids = [inside[position] for position in self._positions]
        for k, part in g.items():
            grads[node_ids[k]] = part
        end_move = None if observed is None else observed.move_to(bundle, node_ids)
        if observed is not None:
            observed.compute_vjps(entries, grads, owned)
        elif tape.annotations:  # hooks that only the second run has added
            run_hooked(tape, entries, grads, owned)
        else:
            compute_vjps(entries, grads, owned)
        if end_move is not None:
            end_move()
        if not create_graph:  # else the derivative that was recorded depends on these values
            _drop_annotations(tape, log)
        if tape.annotations is not None:  # hooks that the second run added were added by the first already
            for node_id in outside:
                tape.annotations.hooks.pop(node_id, None)
            tape.annotations.hooks.update(before)

    def _run(self, outside: Any, values: Any, create_graph: bool) -> tuple[list[Entry], _RunLog]:
        tape, call = self._tape, self._call
        call.check_leaves()
        log = _RunLog(call.strict, call.debug)
        collector = _SecondRunCollector(tape, create_graph)
        args, kwargs = call.restore_arguments(values)
        context = Context.of(context_of_pass(tape, True)).intercepted((*interceptors_of(current()), *call.interceptors))
        _AsInFirstRun(call.modes, context, [_SecondRunLogger(tape, log), collector], create_graph).run(
            call.run_again, args, kwargs
        )
        if log.hash != self._hash or len(log.inside) != self._count or tuple(log.outside) != outside:
            raise errors.CheckpointError(self._difference_message(log))
        return collector.entries, log

    def _difference_message(self, log: _RunLog) -> str:
        text = (
            f"checkpoint: {self._call.name} did not do in backward what it did when it was called: {self._count} "
            f"operations were recorded then, {len(log.inside)} now"
        )
        if len(log.inside) == self._count:
            text += ", but others, of other values, or of other shapes or dtypes"
        if self._lines is None or log.lines is None or log.lines == self._lines:
            return (
                f"{text}. A tensor that it reads without being given it was attached, or written to, in between; or it "
                "draws from a random generator that could not be found (pass generators=); or it depends on something "
                "else that changed. debug=True tells which operation differs"
            )
        pairs = zip([*self._lines, "nothing more"], [*log.lines, "nothing more"], strict=False)
        first_line, second_line = next((one, other) for one, other in pairs if one != other)
        return f"{text}. The first to differ was\n    {first_line}\nand is now\n    {second_line}"


class _AsInFirstRun(Scope):
    """In which a function runs again: in a context, with these observers and the modes of the first run.

    Hooks on saved tensors that were entered since are left out, unless `keep_hooks` is set.
    """

    def __init__(self, settings: Any, context: Context, added: list[Observer], keep_hooks: bool) -> None:
        kept = [observer for observer in observers() if keep_hooks or not is_of_saved_tensors_hooks(observer)]
        self._now = [(set_current, context.simplest()), (modes._modes.set, settings)]
        self._now.append((set_observers, (*kept, *added)))
        self._before = [(set_current, current()), (modes._modes.set, modes._modes.get())]
        self._before.append((set_observers, observers()))

    def _open(self, opened: Any) -> None:
        run_atomically(self._now)

    def _close(self, opened: Any) -> None:
        run_atomically(self._before)


def _vjp(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    _, bundle, outside, rerun, values = e
    rerun.compute_vjps(bundle, outside, values, g, grads, owned)


def _vjp_of_failed(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    raise errors.CheckpointError(
        f"a value made inside {e[2]}, a checkpointed function, is used after that function raised; what it "
        "did is not kept, and cannot be done again"
    )


declare_kind("checkpoint", Kind("checkpoint", ids_in_tuple, lambda e: tuple(e[3].metadata), runs="steps"), _vjp)
declare_kind("checkpoint.failed", Kind("checkpoint.failed", no_inputs), _vjp_of_failed)


def _tapes_to_checkpoint(state: Any) -> list[Tape]:
    """Return the recording tapes, without those outside forward mode: they record tangents, which a rerun does not."""
    groups = Context.of(state).groups
    found: list[Tape] = []
    for group in reversed(groups):
        tapes = [rec for rec in group if isinstance(rec, Tape)]
        if len(tapes) < len(group):
            break
        found += [tape for tape in tapes if tape.open]
    return found


def _drop_annotations(tape: Tape, log: _RunLog) -> None:
    """Drop the hooks on values made inside."""
    if tape.annotations is not None:
        for node_id in log.inside:
            tape.annotations.drop(node_id)


def _record(call: _Call, observer: _FirstRunObserver, values: tuple[Any, ...]) -> None:
    """Record the call, and each value made inside that is still referenced, on every tape."""
    for tape, log in observer.logs.items():
        if not tape.open:
            continue
        _drop_annotations(tape, log)  # the second run adds these hooks again
        referenced = log.referenced_values()
        if not referenced:
            continue
        bundle = object()
        rerun = _Rerun(tape, call, log, [position for position, _ in referenced])
        tape.entries.append(("checkpoint", bundle, tuple(log.outside), rerun, values))
        for k, (_, node_id) in enumerate(referenced):
            tape.entries.append(("checkpoint.result", node_id, bundle, k, call))
        if len(tape.entries) > tape.limit:
            tape.sweep()


def _record_failure(call: _Call, observer: _FirstRunObserver) -> None:
    for tape, log in observer.logs.items():
        if tape.open:
            for _, node_id in log.referenced_values():
                tape.entries.append(("checkpoint.failed", node_id, call.name))


def _call_in(
    context: AbstractContextManager[Any], function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    with context:
        return function(*args, **kwargs)


def _null_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., R],
    /,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Contexts = _null_contexts,
    determinism_check: Literal["default", "none"] = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    generators: Any = (),
    **kwargs: Any,
) -> R:
    """Compute `function(*args, **kwargs)` and keep only its arguments for backward, which computes the rest again.

    The values and gradients are those of a plain call, to the bit, and derivatives of any order can be taken. Where
    nothing records it is a plain call, and so it is for managers outside a level of `forward_ad`.

    In backward the function runs again, so it must do the same. It may write in place, return any
    object, use attached tensors that it is not given, other managers and checkpoints; but what it reads
    besides its arguments must not have changed. A change that shows in what is recorded raises; a change of an
    untracked array or a number is not noticed. Effects outside (counters, running means) happen twice.

    Random numbers are the same again if they come from NumPy's or Python's global functions, or from a generator
    (`numpy.random.Generator`, `RandomState`, `random.Random`) in the arguments, in what the function closes
    over or uses by name, or in attributes of the object it is a method of. Where an argument lives on a GPU,
    CuPy's global functions draw inside from a separate stream, seeded from the outer one; CuPy's generators cannot
    be replayed.

    Args:
        function: the function to call.
        args: its arguments. Of Tensors, also in lists, tuples, dicts and dataclasses, the present value is kept.
        use_reentrant: accepted for compatibility with torch; there is one implementation, which does what both promise.
        context_fn: returns two context managers: around the call, and around what is computed again.
        determinism_check: "default" compares the operations, values, shapes and dtypes of both runs; "none" only the
            operations and their values.
        debug: if the second run differs, the error names the first operation that differs; costs memory.
        early_stop: accepted for compatibility with torch; the function always runs to its end.
        preserve_rng_state: draw the same random numbers again.
        generators: one generator or several that the function uses and that are not found as said above.
        kwargs: its arguments by name.

    Returns:
        What the function returns.

    Raises:
        TypeError: `function` cannot be called; something in `generators` is not a generator.
        ValueError: another `determinism_check`.
        RuntimeError: inside, a value is attached to, or backward called of, a manager that records outside, or
            generators are spawned of one from outside; in backward, that the function did something else, or that an
            attached tensor it is not given was written to.

    >>> import gradmgr, gradmgr.numpy as np
    >>> from gradmgr import checkpoint
    >>> def layer(x, w):
    ...     return np.maximum(x @ w, 0) ** 2
    >>> w = gradmgr.tensor([[1.0, 2.0], [0.5, 0.0]])
    >>> gm = gradmgr.GradManager().attach(w)
    >>> with gm:
    ...     y = checkpoint(layer, gradmgr.tensor([[1.0, 1.0]]), w)
    ...     gm.backward(y.sum())
    >>> w.grad.tolist()
    [[3.0, 4.0], [3.0, 4.0]]
    """
    errors.check_function(function, "checkpoint")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"checkpoint: determinism_check is 'default' or 'none'; found {determinism_check!r}")
    given = given_sources(generators)
    first, second = context_fn()
    state = current()
    tapes = _tapes_to_checkpoint(state)
    if not tapes:
        return _call_in(first, function, args, kwargs)
    call = _Call(function, second, determinism_check == "default", debug)
    values = call.keep_arguments(args, kwargs, recorders(state))
    if preserve_rng_state:
        on_gpu = any(libraries.root(getattr(value, "_array", value)) is not np for value in values)
        call.replay = Replay([*global_sources(), *sources_in(function, args, kwargs), *given], on_gpu)
    observer = _FirstRunObserver(tapes, call.strict, debug)
    run: Callable[..., R] = _call_in if call.replay is None else partial(call.replay.run_first, _call_in)
    try:
        result = run(first, observing(observer, tapes).run, (function, *args), kwargs)
    except BaseException:
        _record_failure(call, observer)
        raise
    call.remember_leaves(observer.logs, leaves_of((args, kwargs)))
    _record(call, observer, values)
    return result


def checkpoint_sequential(
    functions: Iterable[Callable[..., Any]],
    segments: int,
    input: Any,  # noqa: A002  # torch's name
    use_reentrant: bool | None = None,
    **options: Any,
) -> Any:
    """Compute functions one after another, in segments of which only the inputs are kept.

    With n functions and about sqrt(n) segments, memory grows as sqrt(n), and the forward work is done twice. The last
    segment is computed as it is: backward would begin by computing it again.

    Args:
        functions: each takes what the previous one returns.
        segments: the number of segments, at most that of functions.
        input: the argument of the first function.
        use_reentrant: accepted for compatibility with torch.
        options: other keyword arguments of `checkpoint`.

    Returns:
        What the last function returns.

    Raises:
        TypeError: `segments` is not an integer; something in `functions` cannot be called; an unknown option.
        ValueError: `segments` is not between 1 and the number of functions.

    >>> import gradmgr, gradmgr.numpy as np
    >>> from gradmgr import checkpoint_sequential
    >>> x = gradmgr.tensor([0.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     gm.backward(checkpoint_sequential([np.sin] * 100, 10, x))
    >>> x.grad
    Tensor([1.])
    """
    chain = list(functions)
    for k, function in enumerate(chain):
        if not callable(function):
            kind = type(function).__name__
            raise TypeError(f"checkpoint_sequential: element {k} of functions cannot be called: {kind}")
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise TypeError(f"checkpoint_sequential has no option {min(unknown)!r}; it takes {', '.join(sorted(_OPTIONS))}")
    if isinstance(segments, bool) or not hasattr(segments, "__index__"):
        raise TypeError(f"checkpoint_sequential: segments is a number of segments; found {type(segments).__name__}")
    count = int(segments)
    if not 1 <= count <= len(chain):
        raise ValueError(f"checkpoint_sequential: {len(chain)} functions cannot be cut into {count} segments")
    size = len(chain) // count
    value = input
    for start in range(0, size * (count - 1), size):
        value = checkpoint(_compose(chain, start, start + size), value, use_reentrant=use_reentrant, **options)
    return _compose(chain, size * (count - 1), len(chain))(value)


# The options that checkpoint_sequential passes to checkpoint.
_OPTIONS = frozenset(
    ("context_fn", "debug", "determinism_check", "early_stop", "generators", "preserve_rng_state"),
)


def _compose(chain: list[Callable[..., Any]], start: int, end: int) -> Callable[[Any], Any]:
    part = chain[start:end]

    def run(value: Any) -> Any:
        for function in part:
            value = function(value)
        return value

    run.__qualname__ = f"the segment of functions {start} to {end - 1}"
    run.__module__ = ""  # so that it does not count as a library's function, in which no generators are looked for
    return run
