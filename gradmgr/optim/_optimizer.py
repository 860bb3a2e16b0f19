"""Optimizer: parameter groups, steps, state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter, setitem
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import blocks, libraries
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._arrays.listening import listener
from gradmgr._engine import write_lock
from gradmgr._engine.capture_notes import call_whole, refuse_in_replay
from gradmgr._engine.context import current, recorders
from gradmgr._engine.gradients import clear
from gradmgr._engine.mutation import calls_to_forget
from gradmgr._engine.row_sparse import stored_rows
from gradmgr._engine.tensor import Tensor, bare, describe, wrap
from gradmgr._engine.turn_lock import new_turn_lock
from gradmgr._engine.views import check_kept
from gradmgr.optim._chunks import Array, Chunk, Plan, Run, Scratch, is_packable
from gradmgr.optim._numbers import Number, in_double, plain, tensors_in
from gradmgr.optim._recorded import check_has_no_tangent, gradients_of, open_recorders, recorded_step

Group = dict[str, Any]


# Attributes of torch's and MegEngine's optimisers that are not here, and what to use instead.
_ALTERNATIVES = MappingProxyType(
    {
        "backward": "backward(loss) of the GradManager, and then step()",
        "clear_grad": "zero_grad(), or clear_grad() of the GradManager",
        "minimize": "backward(loss) of the GradManager, and then step()",
        "state": "state_dict()['state'][k], where k is the number of a parameter",
    }
)


# How a step is computed: this is no part of what is saved.
_DIFFERENTIABLE = "differentiable"
# What torch's optimisers save that is not loaded: how a step is computed, and products that are computed again.
_TORCHS_OPTIONS = frozenset(("foreach", "capturable", _DIFFERENTIABLE, "fused"))
_TORCHS_STATES = frozenset(("mu_product",))


def _own_options(saved: Group, defaults: Group) -> Group:
    """Return the options of a saved group without those that are not loaded, at whatever they are there."""
    left_out = _TORCHS_OPTIONS if "decoupled_weight_decay" in defaults else _TORCHS_OPTIONS | {"decoupled_weight_decay"}
    return {key: value for key, value in saved.items() if key not in left_out}


def _saved_options(group: Group) -> Group:
    """Return the options of a group that are saved; of Tensors the values, as a Tensor is a value."""
    left_out = ("params", _DIFFERENTIABLE)
    return {key: _snapshot(value) for key, value in group.items() if key not in left_out}


def _snapshot(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_snapshot(part) for part in value])
    return value.detach() if isinstance(value, Tensor) else value


def _own_state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a parameter as it is kept here: with a count of steps, which torch's SGD does not save."""
    state = {
        name: np.asarray(value) if hasattr(value, "__array__") and not _is_ours(value) else value
        for name, value in saved.items()
        if value is not None and name not in _TORCHS_STATES
    }
    return {"step": 1, **state} if set(state) == {"momentum_buffer"} else state


def _is_ours(value: Any) -> bool:
    return isinstance(value, Tensor) or libraries.is_array(value)


def check_number(name: str, value: Any, *, low: float = 0.0, high: float = float("inf"), below: bool = False) -> None:
    """Raise unless `low <= value <= high`; with `below` unless `low <= value < high`."""
    try:
        number = float("" if isinstance(value, str) else bare(value))  # float() would accept some strings
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number; found {value!r}") from None
    if not (low <= number and (number < high if below else number <= high)):
        limit = "" if high == float("inf") and not below else f" and {'below' if below else 'at most'} {high:g}"
        raise ValueError(f"{name} must be at least {low:g}{limit}; found {value!r}")


def check_betas(betas: Any) -> None:
    """Raise unless `betas` are two numbers in [0, 1)."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"betas must be a pair of numbers; found {betas!r}")
    for k, beta in enumerate(betas):
        check_number(f"betas[{k}]", beta, high=1.0, below=True)


def options_of(arguments: Mapping[str, Any]) -> Group:
    """Return the options among the arguments of an optimiser's constructor, given as its `locals()`."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


def _check_is_iterable(params: Any) -> None:
    if isinstance(params, Tensor) or libraries.is_array(params):
        raise TypeError(
            f"an optimiser takes several parameters, as in [p] or model.parameters(); found one {type(params).__name__}"
        )
    if not isinstance(params, Iterable) or isinstance(params, str):
        from_a_module = hasattr(params, "parameters") or getattr(params, "__name__", "") == "parameters"
        advice = "; pass model.parameters()" if from_a_module else ""
        raise TypeError(f"an optimiser takes an iterable of Tensors first; found {type(params).__name__}{advice}")


def _named_parameters(params: Any) -> list[tuple[str | None, Any]]:
    """Return (name or None, parameter) pairs of a mapping by name, or an iterable of Tensors or of such pairs."""
    _check_is_iterable(params)
    if isinstance(params, Mapping):
        return [(str(name), p) for name, p in params.items()]
    pairs = [(None, p) if isinstance(p, Tensor) or not _is_pair(p) else tuple(p) for p in params]
    if len({name is None for name, _ in pairs}) > 1:
        raise ValueError("either all parameters are given as (name, Tensor) pairs, or none; found both")
    return pairs


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _calls_to_clear(p: Tensor) -> list[Call]:
    """Return the calls that fill the gradient of a parameter with zeros."""
    grad = p.grad  # read once, as other threads set it
    return [] if grad is None else _calls_to_fill(grad, 0)


def _calls_to_fill(t: Tensor, value: float) -> list[Call]:
    """Return the calls that write a number to all of a tensor, in place or in new memory; the lock must be held."""
    rows = stored_rows(t) if value == 0 else None
    if rows is not None:
        calls: list[Call] = [(setattr, t, "_array", rows.none())]
    elif write_lock.may_write(t):
        calls = [(t._array.fill, value), (setattr, t, "__class__", t._unguarded)]
    else:
        calls = [(setattr, t, "_array", libraries.namespace(t._array).full_like(t._array, value))]
    return calls + calls_to_forget(t, recorders(current()))


# Types whose values cannot change in place: an option of such a value changes only when it is assigned.
_IMMUTABLE = (float, int, bool, str, type(None), np.floating, np.integer, np.bool_)


def _is_immutable(value: Any) -> bool:
    return all(map(_is_immutable, value)) if type(value) is tuple else isinstance(value, _IMMUTABLE)


def _groups_of(optimizer: Optimizer) -> tuple[tuple[int, ...], ...]:
    """Return what tells that an optimiser has the same parameters in the same groups."""
    return tuple([tuple(map(id, group["params"])) for group in optimizer.param_groups])


def _lists_of(optimizer: Optimizer) -> Any:
    """Return what differs where an optimiser has another group, or one has another list."""
    groups = optimizer.param_groups
    if len(groups) == 1:  # without the frame of a comprehension, as each replay asks
        params = groups[0]["params"]
        return id(params), len(params)
    return [(id(params := group["params"]), len(params)) for group in groups]


_groups_of.look = _lists_of  # type: ignore[attr-defined]  # by which a Condition tests it first


class _Plans:
    """The plans of an algorithm for a group, and the option values they were made from."""

    __slots__ = ("first", "later", "names", "options")

    def __init__(self, options: Any, names: tuple[str, ...], first: Plan, later: Plan) -> None:
        self.options = options  # None if one is mutable, so that a change of it cannot be noticed
        self.names = names  # of the states kept for each parameter
        self.first = first  # the plan of a parameter's first step
        self.later = later


class Optimizer:
    """The base class of all optimisers, with their parameter groups.

    Args:
        params: Tensors, (name, Tensor) pairs, or a mapping from names; or a list of groups, each a dict
            with its parameters under "params" and options that override the defaults.
        defaults: the option values for groups that do not set them.

    Raises:
        TypeError: a parameter is not a Tensor, or has an integer dtype.
        ValueError: there are no parameters, one is given twice, or an option is out of range.

    A step leaves a parameter whose `.grad` is None unchanged: its value, its state and its step count.

    With `differentiable=True`, which most algorithms have, a step inside a recording is recorded, as a function of
    the parameters, their gradients, the states, and of options that are Tensors of one number, such as `lr`: what is
    computed of the new parameters has derivatives by all of these. A step that is not recorded has none: a gradient
    that comes to it in a backward pass is an error.

    From the first step on the small parameters of a group share one buffer; a program notices this only by its speed.

    >>> from gradmgr import tensor
    >>> from gradmgr.optim import SGD
    >>> w, b = tensor([1.0, 2.0]), tensor(0.5)
    >>> optimizer = SGD([{"params": [w]}, {"params": [b], "lr": 1.0}], lr=0.1)
    >>> w.grad, b.grad = tensor([10.0, 10.0]), tensor(0.25)
    >>> optimizer.step()
    >>> w, b
    (Tensor([0., 1.]), Tensor(0.25))
    """

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[Group] = []
        self._chunks: list[list[Chunk] | None] = []
        self._plans: list[_Plans | None] = []
        self._options = itemgetter(*self.defaults)
        self._scratch = Scratch()
        self._step_count = 0
        self._lock = new_turn_lock()  # threads that step one optimiser take turns
        _check_is_iterable(params)
        listed = params if isinstance(params, Mapping) else list(params)
        if any(isinstance(group, Mapping) for group in listed):
            for group in listed:
                self.add_param_group(group)
        else:
            self.add_param_group({"params": listed})

    def __getattr__(self, name: str) -> Any:  # called for names that Python did not find
        hint = f"; use {_ALTERNATIVES[name]}" if name in _ALTERNATIVES else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    # ------------------------------------------------------------ what an algorithm declares

    _nonnegative: tuple[str, ...] = ()  # the options that must be numbers of at least 0
    _packs = True  # whether small parameters may share a buffer
    _state: tuple[str, ...] = ()  # the names of the arrays that may be kept for each parameter

    def _check_options(self, group: Group) -> None:
        """Raise where an option of a group is out of range."""
        for name in self._nonnegative:
            check_number(name, group[name])
        if "betas" in self.defaults:
            check_betas(group["betas"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        """Return which states are kept for each parameter with these options."""
        return self._state

    def _initial_value(self, group: Group, name: str) -> Number:
        """Return the initial value of all numbers of a state."""
        return 0.0

    def _plan(self, group: Group) -> Plan:
        """Return how to compute a step with these options."""
        raise NotImplementedError

    def _first_plan(self, group: Group, plan: Plan) -> Plan:
        """Return how to compute a parameter's first step, given the plan of all later steps."""
        return plan

    # ------------------------------------------------------------ groups

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add a group of parameters with its own options.

        Raises:
            TypeError, ValueError: as for the constructor; nothing is then added.

        >>> from gradmgr import optim, tensor
        >>> optimizer = optim.SGD([tensor([1.0])], lr=0.1)
        >>> optimizer.add_param_group({"params": [tensor(0.5)], "lr": 1.0})
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.1, 1.0]
        """
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise TypeError(f"a parameter group is a dict with 'params'; found {param_group!r:.80}")
        unknown = [key for key in param_group if key not in (*self.defaults, "params", "initial_lr", "name")]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no option {unknown[0]!r}; it has {', '.join(self.defaults)}")
        given = param_group["params"]
        pairs = _named_parameters([given] if isinstance(given, Tensor) else given)
        group = {"params": [p for _, p in pairs], **self.defaults}
        group |= {key: value for key, value in param_group.items() if key != "params"}
        if pairs and pairs[0][0] is not None:
            group["param_names"] = [name for name, _ in pairs]
        self._check_params(pairs)
        self._check_options(group)
        run_atomically(
            [(self.param_groups.append, group), (self._chunks.append, None), (self._plans.append, None)],
        )

    def _check_params(self, pairs: list[tuple[str | None, Any]]) -> None:
        if not pairs:
            raise ValueError(
                "an optimiser was given no parameters: a generator may be used up already, or the model keeps its "
                "layers in a list, where only nn.ModuleList registers them"
            )
        seen = {id(p): f"group {k}" for k, group in enumerate(self.param_groups) for p in group["params"]}
        for k, (name, p) in enumerate(pairs):
            place = f"parameter {k}" if name is None else f"parameter {name!r}"
            if not isinstance(p, Tensor):
                how = "pass model.parameters()" if hasattr(p, "parameters") else "make one with gradmgr.tensor(...)"
                raise TypeError(f"{place} is not a Tensor; found {type(p).__name__}; {how}")
            if not libraries.is_differentiable(p.dtype):
                raise errors.DtypeError(f"{place}, {describe(p, name)}, cannot have a gradient; make it floating")
            check_kept(p, f"a step of {type(self).__name__}", "give u to the optimiser")
            if id(p) in seen:
                raise ValueError(f"{place}, {describe(p, name)}, is given twice: it is in {seen[id(p)]} already")
            seen[id(p)] = f"this group as {place}"

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or to zeros.

        >>> from gradmgr import optim, tensor
        >>> w = tensor([1.0])
        >>> w.grad = tensor([0.5])
        >>> optim.SGD([w], lr=0.1).zero_grad()
        >>> w.grad is None
        True
        """
        params = list(self._params())
        if isinstance(set_to_none, Tensor):
            raise TypeError("zero_grad(set_to_none) takes True or False, as it is for all parameters; found Tensor")
        if set_to_none:
            clear(params)
            return
        with write_lock.lock:
            calls: list[Call] = []
            for p in params:
                calls += _calls_to_clear(p)
            run_atomically(calls)

    # ------------------------------------------------------------ the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient; an error leaves all parameters unchanged.

        Floating-point errors raise no warning and show as inf or NaN in the values, as in a backward pass.
        Threads that step one optimiser take their steps one after another. A process forked amid a step of another
        thread finds it not taken or wholly taken, and can step itself.

        Args:
            closure: a function that computes the loss and the gradients again; it is called first.

        Returns:
            The result of the closure, or None.

        Raises:
            TypeError, ValueError: an option or a gradient is wrong; nothing is then changed.
            RecordingError: a parameter has a tangent in forward mode, and the step is not differentiable.
            UnsupportedFunctionError: a gradient is of rows, and the algorithm or a recorded step needs whole ones.

        >>> from gradmgr import optim, tensor
        >>> w = tensor([1.0])
        >>> w.grad = tensor([0.5])
        >>> optim.SGD([w], lr=0.1).step()
        >>> w
        Tensor([0.95])
        """
        if closure is not None and not callable(closure):
            raise TypeError(f"step takes a function that computes the loss, or None; found {type(closure).__name__}")
        loss = None if closure is None else closure()
        capture = listener()
        if capture is None:
            self._take_turn()
        else:
            self._capture_turn(capture)
        return loss

    def _params(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _take_turn(self) -> None:
        with self._lock:
            self._take_step()

    def _capture_turn(self, capture: Any) -> None:
        """Take a step which a replay takes, too: with the arrays of the gradients that it computes, if it may.

        Options, counts of steps and states are this object's, in a replay too, and so is what decides where the step
        is computed. All else that the step depends on is looked at here, and by conditions of the capture.
        """
        params = list(self._params())
        if self._is_recorded():
            capture.add_obstacle("a recorded step of an optimiser with differentiable=True")
        grads = None if recorders(current()) else capture.arrays_of([p.grad for p in params])
        if grads is None or not capture.can_see(params):
            call_whole(self._take_turn, changes=params)
            return
        capture.see(self, _groups_of, "the parameters of an optimiser")
        capture.call_update(self._take_turn, params, self._take_turn_by, grads, "step of an optimiser")

    def _take_turn_by(self, begun: list[bool], machine: Any, grads: tuple[Array, ...], is_plain: bool) -> None:
        """Take a step in a replay: note in `begun` that it is taken, together with what it changes.

        Args:
            begun: see `TensorCapture.call_update`.
            machine: likewise.
            grads: the array of each parameter's gradient; None for no gradient.
            is_plain: whether there are all, as arrays that a machine takes.
        """
        is_plain = is_plain and machine is not None
        with self._lock, write_lock.lock:
            calls: list[Call] = [(begun.append, True)]
            if is_plain and self._add_quick_calls(calls, grads, machine):
                calls.append((setattr, self, "_step_count", self._step_count + 1))
                run_atomically(calls)
            else:
                self._take_step(grads, machine if is_plain else None, [(begun.append, True)])

    def _add_quick_calls(self, calls: list[Call], grads: tuple[Array, ...], machine: Any) -> bool:
        """Add the calls that take a step, if nothing is to be made again since the last one; tell whether it is so."""
        for k, group in enumerate(self.param_groups):
            chunks, plans = self._chunks[k], self._plans[k]
            if chunks is None or plans is None or plans.options != self._options(group):
                return False
            for chunk in chunks:
                if chunk.names != plans.names or not chunk.add_quick_calls(
                    calls, plans.first, plans.later, grads, machine
                ):
                    return False
        return True

    def _is_recorded(self) -> bool:
        """Tell whether a step is recorded if it is taken here and now."""
        return any(group.get(_DIFFERENTIABLE) for group in self.param_groups) and bool(open_recorders())

    def _tensor_options(self, group: Group) -> list[Tensor]:
        """Return the options of a group that are Tensors."""
        return [t for name in self.defaults for t in tensors_in(group[name])]

    def _check_has_no_tangent(self) -> None:
        """Raise if a step that is taken here and now would lose tangents of forward mode."""
        for group in self.param_groups:
            stepped = [p for p in group["params"] if p.grad is not None]
            if stepped and not group.get(_DIFFERENTIABLE):
                check_has_no_tangent(stepped + self._tensor_options(group))

    def _take_step(self, given: Sequence[Array] | None = None, machine: Any = None, first: Sequence[Call] = ()) -> None:
        lanes: list[list[Call]] = []
        calls = [*first]
        in_context = current() is not None  # mostly there is no recorder, which would have to note the step
        is_recorded = in_context and self._is_recorded()
        if in_context:
            self._check_has_no_tangent()
        if is_recorded:
            calls += self._recorded_calls()
        # With the lock no other thread can take a reference between the count of references and the write.
        with write_lock.lock:
            for chunk, grads, runs, group in self._work(given, is_recorded):
                options = self._tensor_options(group) if in_context else ()
                calls += chunk.step_calls(grads, runs, lanes, machine, options)
            calls.append((setattr, self, "_step_count", self._step_count + 1))
            blocks.run_lanes(lanes, calls)

    def _work(
        self, given: Sequence[Array] | None, is_recorded: bool
    ) -> list[tuple[Chunk, Sequence[Array], list[Run], Group]]:
        """Return the chunks that have gradients, with these, the runs of their next step, and their group.

        Args:
            given: the gradients of all parameters, where they are not their `.grad`.
            is_recorded: whether groups that are differentiable are left out, as their step is recorded.
        """
        work = []
        for k, group in enumerate(self.param_groups):
            if is_recorded and group[_DIFFERENTIABLE]:
                continue
            chunks = self._fitting_chunks(k)
            try:
                plans = self._plans[k]
                if plans is None or plans.options != self._options(group):
                    plans = self._plans[k] = self._plain_plans(group)
                for chunk in chunks:
                    own = None if given is None else (chunk.pick or self._pick(chunk))(given)
                    grads, runs = chunk.next_step(plans.first, plans.later, own)
                    if not runs:
                        continue
                    if chunk.names != plans.names:
                        chunk.use_states(plans.names, partial(self._initial_value, group))
                    work.append((chunk, grads, runs, group))
            except (TypeError, ValueError):
                self._check_options(group)  # raises the error that names the option
                raise
        return work

    def _recorded_calls(self) -> list[Call]:
        """Compute the step of the groups that are differentiable, recorded; return the calls that take over what it is.

        It is computed before the lock is held, as hooks on saved tensors may run. All is checked first, so that nothing
        is recorded of a step that is refused.
        """
        work = []
        for k, group in enumerate(self.param_groups):
            if group[_DIFFERENTIABLE]:
                self._plain_plans(group)
                with write_lock.lock:
                    chunks = self._fitting_chunks(k)
                work.append((group, [(chunk, gradients_of(chunk)) for chunk in chunks]))
        calls = []
        for group, pairs in work:
            options = {name: in_double(value) for name, value in group.items() if name != "params"}
            plans, initial = self._plans_of(options), partial(self._initial_value, options)
            for chunk, grads in pairs:
                calls += recorded_step(chunk, grads, plans.first, plans.later, plans.names, initial)
        return calls

    def _fitting_chunks(self, k: int) -> list[Chunk]:
        """Return the chunks of a group, made again where a parameter was cast or moved."""
        chunks = self._chunks[k]
        if chunks is None:
            return self._renew_chunks(k)
        for chunk in chunks:
            if not chunk.fits():
                return self._renew_chunks(k)
        return chunks

    def _pick(self, chunk: Chunk) -> Callable[[Sequence[Array]], Sequence[Array]]:
        """Give a chunk what takes the gradients of its parameters out of those of all parameters, and return it."""
        numbers = {id(p): k for k, p in enumerate(self._params())}
        places = [numbers[id(p)] for p in chunk.params]
        chosen: Any = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
        chunk.pick = chosen
        return chosen  # type: ignore[no-any-return]  # a function of a sequence

    def _plain_plans(self, group: Group) -> _Plans:
        """Return the plans of a group for its present options, with a float for each Tensor among them.

        Raises:
            TypeError, ValueError: an option is wrong.
        """
        try:
            if _is_immutable(self._options(group)):
                return self._plans_of(group)
            return self._plans_of({name: plain(value) for name, value in group.items() if name != "params"})
        except (TypeError, ValueError):
            self._check_options(group)  # raises the error that names the option
            raise

    def _plans_of(self, group: Group) -> _Plans:
        """Return the plans for these options."""
        options = self._options(group)
        plan = self._plan(group)
        compared = options if _is_immutable(options) else None
        return _Plans(compared, self._state_names(group), self._first_plan(group, plan), plan)

    def _renew_chunks(self, k: int) -> list[Chunk]:
        """Make the chunks of a group: the first time, and again after a parameter was cast or moved."""
        old = self._state_of(self._chunks[k] or [])
        made = self._make_chunks(self.param_groups[k]["params"])
        self._fill(self.param_groups[k], made, old)
        self._chunks[k] = made
        return made

    def _make_chunks(self, params: list[Tensor]) -> list[Chunk]:
        """Make one chunk of the small parameters of each dtype and device, and one of each large parameter."""
        small: dict[Any, list[Tensor]] = {}
        chunks = []
        for p in params:
            if self._packs and is_packable(p):
                small.setdefault((p.dtype, p.device), []).append(p)
            else:
                chunks.append(Chunk([p], self._scratch, self._packs))
        return [Chunk(together, self._scratch) for together in small.values()] + chunks

    # ------------------------------------------------------------ state

    @staticmethod
    def _state_of(chunks: list[Chunk]) -> dict[Tensor, dict[str, Any]]:
        """Return the step count and the states of each parameter that has taken a step."""
        found: dict[Tensor, dict[str, Any]] = {}
        for chunk in chunks:
            for k, p in enumerate(chunk.params):
                if chunk.step_of(k):
                    parts = {name: wrap(chunk.state_part(name, k).copy()) for name in chunk.buffers}
                    found[p] = {"step": chunk.step_of(k), **parts}
        return found

    def _fill(self, group: Group, chunks: list[Chunk], states: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Write the states and step counts of parameters into new chunks."""
        for chunk in chunks:
            names = {name: None for p in chunk.params for name in states.get(p, ()) if name != "step"}
            for name in names:
                chunk.ensure_state(name, self._initial_value(group, name))
            chunk.set_steps([int(states.get(p, {}).get("step", 0)) for p in chunk.params])
            for k, p in enumerate(chunk.params):
                state = states.get(p, {})
                for name in names:
                    if name in state:
                        chunk.state_part(name, k)[...] = libraries.to_device(bare(state[name]), chunk.device)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state, from which `load_state_dict` resumes exactly.

        Returns:
            A dict: in "state" a dict of "step" and state Tensors for each parameter that has taken a step, by the
            parameter's number, counted through the groups; in "param_groups" the options, with the parameters' numbers.

        >>> from gradmgr import optim, tensor
        >>> w = tensor([1.0])
        >>> w.grad = tensor([0.5])
        >>> optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
        >>> optimizer.step()
        >>> optimizer.state_dict()["state"]
        {0: {'step': 1, 'momentum_buffer': Tensor([0.5])}}
        """
        refuse_in_replay(f"state_dict() of {type(self).__name__}")
        with self._lock:
            return self._state_by_parameter()

    def _state_by_parameter(self) -> dict[str, Any]:
        everything: dict[str, Any] = {"state": {}, "param_groups": []}
        number = 0
        for group, chunks in zip(self.param_groups, self._chunks, strict=True):
            states = self._state_of(chunks or [])
            saved = _saved_options(group)
            saved["params"] = list(range(number, number + len(group["params"])))
            everything["param_groups"].append(saved)
            for p in group["params"]:
                if p in states:
                    everything["state"][number] = states[p]
                number += 1
        return everything

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state and the options to those of a `state_dict` of an optimiser over the same parameters.

        Args:
            state_dict: its Tensors may be plain arrays; they are cast to the parameters' dtypes, and copied. It may be
                that of torch's optimiser of the same name, whose states may be torch's tensors on the CPU.

        Raises:
            StateError: it does not fit; every difference is listed, and nothing is changed.

        >>> from gradmgr import optim, tensor
        >>> w = tensor([1.0])
        >>> optimizer = optim.SGD([w], lr=0.1)
        >>> optimizer.load_state_dict(optim.SGD([w], lr=0.5).state_dict())
        >>> optimizer.param_groups[0]["lr"]
        0.5
        """
        misfits, groups, states = self._read(state_dict)
        if misfits:
            listed = "\n  ".join(misfits)
            raise errors.StateError(f"load_state_dict: the state does not fit {type(self).__name__}:\n  {listed}")
        with self._lock:
            calls: list[Call] = []
            for k, (group, saved) in enumerate(zip(self.param_groups, groups, strict=True)):
                chunks = self._make_chunks(group["params"])
                self._fill({**group, **saved}, chunks, states)
                calls += [(group.update, saved), (setitem, self._chunks, k, chunks)]
            run_atomically(calls)

    def _read(self, state_dict: Any) -> tuple[list[str], list[Group], dict[Tensor, dict[str, Any]]]:
        """Return a list of what does not fit, the options of each group, and the state of each parameter."""
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            return ["it is not a dict with 'state' and 'param_groups'"], [], {}
        groups = [_own_options(dict(saved), self.defaults) for saved in state_dict["param_groups"]]
        if len(groups) != len(self.param_groups):
            return [f"it has {len(groups)} parameter groups, the optimiser {len(self.param_groups)}"], [], {}
        misfits: list[str] = []
        params: dict[int, Tensor] = {}
        options: list[Group] = []
        for k, (group, saved) in enumerate(zip(self.param_groups, groups, strict=True)):
            numbers = list(saved.pop("params", ()))
            if len(numbers) != len(group["params"]):
                misfits.append(f"group {k}: it has {len(numbers)} parameters, the optimiser {len(group['params'])}")
            params |= {int(number): p for number, p in zip(numbers, group["params"], strict=False)}
            if "betas" in saved:
                saved["betas"] = tuple(saved["betas"])
            misfits += [f"group {k}: {fault}" for fault in self._option_faults(group, saved)]
            saved.pop("param_names", None)
            options.append(saved)
        read = {int(number): _own_state(state) for number, state in state_dict["state"].items()}
        states = {number: state for number, state in read.items() if state}
        for number, state in states.items():
            if number not in params:
                misfits.append(f"parameter {number}: the optimiser has none of this number")
            else:
                misfits += [f"parameter {number}: {fault}" for fault in self._state_faults(params[number], state)]
        return misfits, options, {params[number]: state for number, state in states.items() if number in params}

    def _option_faults(self, group: Group, saved: Group) -> list[str]:
        faults = [f"option {key!r} is missing" for key in self.defaults if key not in (*saved, _DIFFERENTIABLE)]
        known = (*self.defaults, "initial_lr", "name", "param_names")
        faults += [f"option {key!r} is not known" for key in saved if key not in (*known, *group)]
        own, loaded = group.get("param_names"), saved.get("param_names")
        if own is not None and loaded is not None and own != list(loaded):
            pairs = zip(own, loaded, strict=False)
            faults += [f"the name of a parameter is {b!r}, here {a!r}" for a, b in pairs if a != b]
        if not faults:
            try:
                self._check_options({**group, **saved})
            except (TypeError, ValueError) as error:
                faults.append(str(error))
        return faults

    def _state_faults(self, p: Tensor, state: Mapping[str, Any]) -> list[str]:
        faults = [f"{name!r} is not of this algorithm" for name in state if name not in (*self._state, "step")]
        if "step" not in state:
            faults.append("'step' is missing")
        for name in self._state:
            if name not in state:
                continue
            found = bare(state[name])
            if not libraries.is_array(found):
                kind = f"{type(found).__module__}.{type(found).__name__}"
                faults.append(f"{name!r} is neither Tensor nor array; found {kind}")
            elif found.shape != p.shape:
                faults.append(f"{name!r} has shape {found.shape}, the parameter {p.shape}")
            elif found.dtype.kind == "c" and p.dtype.kind != "c":
                faults.append(f"{name!r} has dtype {found.dtype}, the parameter {p.dtype}")
        return faults

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # not in the middle of a step of another thread
            chunks = [None if chunks is None else self._state_of(chunks) for chunks in self._chunks]
            return {**self.__dict__, "_chunks": chunks, "_plans": None, "_scratch": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._plans = [None] * len(self.param_groups)
        self._scratch = Scratch()
        self._lock = new_turn_lock()
        for k, states in enumerate(state["_chunks"]):
            if states is not None:
                self._chunks[k] = self._make_chunks(self.param_groups[k]["params"])
                self._fill(self.param_groups[k], self._chunks[k] or [], states)

    def __repr__(self) -> str:
        refuse_in_replay(f"the text of {type(self).__name__}")
        lines = [f"{type(self).__name__} ("]
        for k, group in enumerate(self.param_groups):
            count = sum(p.size for p in group["params"])
            lines.append(f"  group {k}: {len(group['params'])} parameters of {count} numbers")
            options = [key for key in group if key not in ("params", "param_names")]
            lines += [f"    {key}: {group[key]}" for key in options]
        return "\n".join([*lines, ")"])
