"""Checkpoints: a function's intermediate values are not kept but computed again in backward.

While the function runs, every entry that it makes on a tape is swallowed. What is remembered of them is one
number, which tells whether a second run does the same, and the values that came from outside. Then the tape
gets one entry for all, and one for each value made inside that somebody still holds: the results, what
was written to in place, what was stored elsewhere. They are known by their place in the sequence.

In backward the function runs again, on new tensors of the old values, with the tape listening; the entries it
makes now are pulled at once, from the same gradients in the same order as if they had been kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.refcounts import NODE_ID_AS_KEY, count_keys
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.history import modes
from gradmgr._engine.history.saved_values import is_of_saved_tensors_hooks, with_node_ids
from gradmgr._engine.hooks import name_of
from gradmgr._engine.observers import Entry, Observer, _observers, observers, observing
from gradmgr._engine.op import INPUTS, METADATA, PULLS, Grads, Owned
from gradmgr._engine.recorder import (
    Recorder,
    Stack,
    above,
    activated,
    again_under,
    beside,
    current,
    interceptors_of,
    recorders,
    snapshot,
)
from gradmgr._engine.tape import Tape, _pull_all, metadata_of, op_name
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr._transforms.randomness import Replay, given_sources, global_sources, sources_in

__all__ = ["checkpoint", "checkpoint_sequential"]

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

# ---------------------------------------------------------------- what a run does


class _Account:
    """What one run of a function notes on one tape: its values in order, those from outside, and what it did."""

    __slots__ = ("facts", "inside", "log", "outside", "strict", "sum")

    def __init__(self, strict: bool, debug: bool) -> None:
        self.inside: dict[Any, int] = {}  # the marks made, by their place
        self.outside: dict[Any, int] = {}
        self.facts: dict[Any, tuple[Any, ...]] = {}  # mark, shape and dtype of what came from outside
        self.strict = strict  # whether shapes and dtypes count
        self.sum = 0
        self.log: list[str] | None = [] if debug else None

    def add(self, e: Entry) -> None:
        """Take down an entry."""
        sources = tuple([None if node_id is None else self._place(node_id) for node_id in INPUTS[e[0]](e)])
        known = metadata_of(e) if self.strict else ()
        shapes = tuple([(shape, dtype) for _, shape, dtype in known])
        self.sum = hash((self.sum, e[0], sources, shapes))
        for fact in known:
            if fact[0] in self.outside:
                self.facts[fact[0]] = fact
        if self.log is not None:
            of = ", ".join([_told(place) for place in sources if place is not None])
            on = ", ".join([f"{shape} {dtype}" for shape, dtype in shapes])
            self.log.append(f"{len(self.inside)}: {op_name(e)} of {of}{on and ': '}{on}")
        self.inside[e[1]] = len(self.inside)

    def _place(self, node_id: Any) -> int:
        place = self.inside.get(node_id)
        return ~self.outside.setdefault(node_id, len(self.outside)) if place is None else place

    def held_by_others(self) -> list[tuple[int, Any]]:
        """Return the values made inside that something still knows, with their places before them."""
        return [(k, node_id) for references, k, node_id in count_keys(self.inside) if references > NODE_ID_AS_KEY]


def _told(place: int) -> str:
    return f"number {place}" if place >= 0 else f"outer value {~place}"


class _Swallow(Observer):
    """Lets the tapes that recorded when a function was called note nothing of what it does."""

    rank = -1

    def __init__(self, tapes: Iterable[Tape], strict: bool, debug: bool) -> None:
        self.accounts = {tape: _Account(strict, debug) for tape in tapes}

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        account = self.accounts.get(tape)
        if account is None:
            return e  # of a manager that the function itself uses
        if e[0] == "attach":
            raise errors.CheckpointError(
                "attach() of a value computed inside a checkpointed function, to a manager that records outside of it; "
                "attach the function's result, or use a manager of its own inside"
            )
        account.add(e)
        return None

    def backward_started(self, tape: Any) -> None:
        if tape in self.accounts:
            raise errors.CheckpointError(
                "backward() inside a checkpointed function, of a manager that records outside of it: what the function "
                "does is not kept; call it outside, or use a manager of its own inside"
            )


def is_to_run_again() -> bool:
    """Tell whether this is inside a checkpointed function, and so done again in backward."""
    return any(isinstance(each, _Swallow) for each in observers())


class _Count(Observer):
    """Takes down what the second run does, before anything else hears of it."""

    rank = -1

    def __init__(self, tape: Tape, account: _Account) -> None:
        self.tape = tape
        self.account = account

    def observe(self, tape: Any, e: Entry) -> Entry:
        if tape is self.tape:
            self.account.add(e)
        return e


class _Divert(Observer):
    """Takes what the second run notes, when all others have heard it, off the tape."""

    rank = 1

    def __init__(self, tape: Tape, keep: bool) -> None:
        self.tape = tape
        self.keep = keep  # on the tape too, as derivatives of the derivative need
        self.entries: list[Entry] = []

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        if tape is not self.tape:
            return e
        self.entries.append(e)
        return e if self.keep else None


# ---------------------------------------------------------------- the call


class _Place:
    """Stands among the arguments for a kept value."""

    __slots__ = ("is_tensor", "k")

    def __init__(self, k: int, is_tensor: bool) -> None:
        self.k = k
        self.is_tensor = is_tensor


class _Call:
    """One checkpointed call: all that is needed to do it again, but for the kept values."""

    __slots__ = (
        "arguments",
        "debug",
        "function",
        "interceptors",
        "leaves",
        "name",
        "replay",
        "second",
        "settings",
        "strict",
    )

    def __init__(
        self, function: Callable[..., Any], second: AbstractContextManager[Any], strict: bool, debug: bool
    ) -> None:
        self.function = function
        self.name = name_of(function)
        self.second = second  # entered around the second run
        self.strict = strict
        self.debug = debug
        self.settings = modes._modes.get()
        self.interceptors = [w for w in interceptors_of(current()) if w.counts]  # what they do is part of the function
        self.replay: Replay | None = None
        self.leaves: list[tuple[Tensor, Any]] = []  # attached tensors that it read from outside its arguments
        self.arguments: Any = ((), {})

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any], known: list[Recorder]) -> tuple[Any, ...]:
        """Keep the arguments; return the values of the Tensors and arrays among them, as these recorders know them."""
        values: list[Any] = []
        places: dict[int, _Place] = {}
        leaves = []
        for leaf in leaves_of((args, kwargs)):
            is_tensor = isinstance(leaf, Tensor)
            if is_tensor or (libraries.is_array(leaf) and not isinstance(leaf, np.generic)):
                if id(leaf) not in places:
                    places[id(leaf)] = _Place(len(values), is_tensor)
                    values.append(snapshot(leaf, known))
                leaf = places[id(leaf)]
            leaves.append(leaf)
        self.arguments = rebuilt((args, kwargs), iter(leaves))
        return tuple(values)

    def restored(self, values: tuple[Any, ...]) -> Any:
        """Return args and kwargs: new containers of new Tensors."""
        made: dict[int, Any] = {}

        def restore(leaf: Any) -> Any:
            if not isinstance(leaf, _Place):
                return leaf
            if leaf.k not in made:
                value = values[leaf.k]
                known = with_node_ids(value._array, value) if isinstance(value, Tensor) else wrap(value)
                made[leaf.k] = known if leaf.is_tensor else value
            return made[leaf.k]

        return rebuilt(self.arguments, map(restore, leaves_of(self.arguments)))

    def remember_leaves(self, tapes: Iterable[Tape], accounts: dict[Tape, _Account], arguments: list[Any]) -> None:
        """Take down which attached tensors the function read without being given them."""
        given = {id(leaf) for leaf in arguments}
        for tape in tapes:
            outside = accounts[tape].outside
            self.leaves += [
                (t, t._array) for t, node_id in tape.leaves.items() if node_id in outside and id(t) not in given
            ]

    def check_leaves(self) -> None:
        """Raise where one of them was written to."""
        for t, array in self.leaves:
            if t._array is not array:
                raise errors.CheckpointError(
                    f"checkpoint: {describe(t)}, which {self.name} reads without being given it, was written to "
                    "between the call and backward(); pass it as an argument, whose value is kept, or write to it "
                    "afterwards"
                )


class _Again:
    """Does a call again, for one tape."""

    __slots__ = ("_call", "_count", "_log", "_places", "_sum", "_tape", "facts")

    def __init__(self, tape: Tape, call: _Call, account: _Account, places: list[int]) -> None:
        self._tape = tape
        self._call = call
        self._places = places  # of the results in the sequence
        self._sum = account.sum
        self._count = len(account.inside)
        self._log = account.log
        self.facts = tuple(account.facts.values())

    def pull(self, bundle: Any, outside: tuple[Any, ...], values: Any, g: Any, grads: Grads, owned: Owned) -> None:
        """Run the function again and pull what it notes."""
        tape, walker = self._tape, self._tape.walker
        hooks = {} if tape.annotations is None else tape.annotations.hooks
        before = {node_id: hooks[node_id].joined(None) for node_id in outside if node_id in hooks}
        create_graph = walker is not None and walker.create_graph
        entries, account = self._entries(outside, values, create_graph)
        inside = list(account.inside)
        node_ids = [inside[place] for place in self._places]
        for k, part in g.items():
            grads[node_ids[k]] = part
        done = None if walker is None else walker.found_again(bundle, node_ids)
        if walker is not None:
            walker.pull(entries, grads, owned)
        elif tape.annotations:  # hooks that only the second run has hung up
            tape.pull_hooked(entries, grads, owned)
        else:
            _pull_all(entries, grads, owned)
        if done is not None:
            done()
        if not create_graph:  # else the derivative that was recorded depends on these values
            _drop_notes(tape, account)
        if tape.annotations is not None:  # what was hung up in the second run was so in the first
            for node_id in outside:
                tape.annotations.hooks.pop(node_id, None)
            tape.annotations.hooks.update(before)

    def _entries(self, outside: Any, values: Any, create_graph: bool) -> tuple[list[Entry], _Account]:
        tape, call = self._tape, self._call
        call.check_leaves()
        account = _Account(call.strict, call.debug)
        divert = _Divert(tape, create_graph)
        args, kwargs = call.restored(values)
        replay = call.replay.again() if call.replay is not None else nullcontext()
        with (
            _with_settings(call.settings, create_graph),
            activated(again_under(call.interceptors, beside(above(tape.outer, tape), current()))),
            observing(_Count(tape, account)),
            observing(divert),
            replay,
            call.second,
        ):
            call.function(*args, **kwargs)
        if account.sum != self._sum or len(account.inside) != self._count or tuple(account.outside) != outside:
            raise errors.CheckpointError(self._what_differs(account))
        return divert.entries, account

    def _what_differs(self, account: _Account) -> str:
        text = (
            f"checkpoint: {self._call.name} did not do in backward what it did when it was called: {self._count} "
            f"operations were recorded then, {len(account.inside)} now"
        )
        if len(account.inside) == self._count:
            text += ", but others, of other values, or of other shapes or dtypes"
        if self._log is None or account.log is None or account.log == self._log:
            return (
                f"{text}. A tensor that it reads without being given it was attached, or written to, in between; or it "
                "draws from a random generator that could not be found (pass generators=); or it depends on something "
                "else that changed. debug=True tells which operation differs"
            )
        both = zip([*self._log, "nothing more"], [*account.log, "nothing more"], strict=False)
        then, now = next((one, other) for one, other in both if one != other)
        return f"{text}. The first to differ was\n    {then}\nand is now\n    {now}"


@contextmanager
def _with_settings(settings: Any, keep_hooks: bool) -> Iterator[None]:
    """Let the modes hold that held in the first run, and no hooks on saved tensors that were entered since."""
    token = modes._modes.set(settings)
    heard = _observers.set(tuple([each for each in observers() if keep_hooks or not is_of_saved_tensors_hooks(each)]))
    try:
        yield
    finally:
        _observers.reset(heard)
        modes._modes.reset(token)


def _pull(e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
    _, bundle, outside, again, values = e
    again.pull(bundle, outside, values, g, grads, owned)


def _pull_failed(e: Entry, g: Any, grads: Grads, owned: Owned) -> None:
    raise errors.CheckpointError(
        f"a value made inside {e[2]}, a checkpointed function, is used after that function raised; what it "
        "did is not kept, and cannot be done again"
    )


PULLS["checkpoint"] = _pull
INPUTS["checkpoint"] = lambda e: tuple(e[2])
METADATA["checkpoint"] = lambda e: tuple(e[3].facts)
PULLS["checkpoint.failed"] = _pull_failed
INPUTS["checkpoint.failed"] = lambda e: ()


def _tapes_here(state: Any) -> list[Tape]:
    """Return the tapes that listen, but those below forward mode: they record tangents, which a second run has not."""
    groups = state.groups if isinstance(state, Stack) else () if state is None else ((state,),)
    found: list[Tape] = []
    for group in reversed(groups):
        tapes = [rec for rec in group if isinstance(rec, Tape)]
        if len(tapes) < len(group):
            break
        found += [tape for tape in tapes if tape.open]
    return found


def _drop_notes(tape: Tape, account: _Account) -> None:
    """Forget the hooks on values made inside. Apart, as a variable left over from the loop would hold the last one."""
    if tape.annotations is not None:
        for node_id in account.inside:
            tape.annotations.drop(node_id)


def _note(call: _Call, swallow: _Swallow, values: tuple[Any, ...]) -> None:
    """Note the call, and each of its values that somebody still holds, on every tape."""
    for tape, account in swallow.accounts.items():
        if not tape.open:
            continue
        _drop_notes(tape, account)  # they are hung up again in the second run
        held = account.held_by_others()
        if not held:
            continue
        bundle = object()
        again = _Again(tape, call, account, [place for place, _ in held])
        tape.entries.append(("checkpoint", bundle, tuple(account.outside), again, values))
        for k, (_, node_id) in enumerate(held):
            tape.entries.append(("result", node_id, bundle, k, call))
        if len(tape.entries) > tape.limit:
            tape.sweep()


def _note_failure(call: _Call, swallow: _Swallow) -> None:
    for tape, account in swallow.accounts.items():
        if tape.open:
            for _, node_id in account.held_by_others():
                tape.entries.append(("checkpoint.failed", node_id, call.name))


def _no_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    /,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Contexts = _no_contexts,
    determinism_check: Literal["default", "none"] = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    generators: Any = (),
    **kwargs: Any,
) -> Any:
    """Compute `function(*args, **kwargs)`, keeping for derivatives only its arguments: the rest is computed again.

    The values and gradients are those of a plain call, to the bit, and derivatives of any order can be taken. Where
    nobody records it is a plain call; so it is for managers below a level of `forward_ad`.

    In backward the function runs again, so it must do the same. It may write in place, return whatever it
    likes, use attached tensors that it is not given, other managers and checkpoints; but what it reads
    besides its arguments must not have changed. Where that shows in what is recorded it raises; where an array or a
    number has changed that nobody tracks, it does not show. Effects outside (counters, running means) happen twice.

    Random numbers are the same again if they come from NumPy's or Python's global functions, or from a generator
    (`numpy.random.Generator`, `RandomState`, `random.Random`) in the arguments, in what the function closes
    over or names, or in attributes of the object it belongs to. Where an argument lives on a GPU, CuPy's global
    functions draw inside from a stream of their own, seeded from the outer one; CuPy's generators cannot be replayed.

    Args:
        function: what to call.
        args: its arguments. Of Tensors, also in lists, tuples, dicts and dataclasses, the present value is kept.
        use_reentrant: accepted for torch's sake; there is one implementation, which does what both promise.
        context_fn: returns two context managers: around the call, and around what is computed again.
        determinism_check: "default" compares shapes and dtypes of both runs too, "none" what is done to which values.
        debug: tell in the error of a function that did something else which operation differs; costs memory.
        early_stop: accepted for torch's sake; the function always runs to its end.
        preserve_rng_state: draw the same random numbers again.
        generators: one generator or several that the function uses and that would not be found.
        kwargs: its arguments by name.

    Returns:
        What the function returns.

    Raises:
        TypeError: `function` cannot be called; something in `generators` is no generator.
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
    if not callable(function):
        raise TypeError(f"checkpoint takes a function; found {type(function).__name__}")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"checkpoint: determinism_check is 'default' or 'none'; found {determinism_check!r}")
    given = given_sources(generators)
    first, second = context_fn()
    state = current()
    tapes = _tapes_here(state)
    if not tapes:
        with first:
            return function(*args, **kwargs)
    call = _Call(function, second, determinism_check == "default", debug)
    values = call.keep(args, kwargs, recorders(state))
    if preserve_rng_state:
        on_gpu = any(libraries.root(getattr(value, "_array", value)) is not np for value in values)
        call.replay = Replay([*global_sources(), *sources_in(function, args, kwargs), *given], on_gpu)
    swallow = _Swallow(tapes, call.strict, debug)
    try:
        with call.replay.first() if call.replay is not None else nullcontext(), first, observing(swallow, tapes):
            result = function(*args, **kwargs)
    except BaseException:
        _note_failure(call, swallow)
        raise
    call.remember_leaves(tapes, swallow.accounts, leaves_of((args, kwargs)))
    _note(call, swallow, values)
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
        functions: each takes what the one before returns.
        segments: how many, at most as many as there are functions.
        input: what the first takes.
        use_reentrant: accepted for torch's sake.
        options: what else `checkpoint` takes by name.

    Returns:
        What the last function returns.

    Raises:
        TypeError: `segments` is no integer; something in `functions` cannot be called; an unknown option.
        ValueError: there are no functions, or not that many.

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
        value = checkpoint(_segment(chain, start, start + size), value, use_reentrant=use_reentrant, **options)
    return _segment(chain, size * (count - 1), len(chain))(value)


# What checkpoint_sequential hands on.
_OPTIONS = frozenset(
    ("context_fn", "debug", "determinism_check", "early_stop", "generators", "preserve_rng_state"),
)


def _segment(chain: list[Callable[..., Any]], start: int, end: int) -> Callable[[Any], Any]:
    part = chain[start:end]

    def run(value: Any) -> Any:
        for function in part:
            value = function(value)
        return value

    run.__qualname__ = f"the segment of functions {start} to {end - 1}"
    run.__module__ = ""  # not taken for a library's function, in which no generator is looked for
    return run
