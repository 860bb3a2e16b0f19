"""Compiled: a function that is captured, and then replayed as one straight line of NumPy calls.

A call whose arguments are new in kind (`signature`), or after what the function reads by name has changed (`names`),
runs as always, and is logged and made into a program. Later calls are replayed. At some of them, the 2nd, 4th, 8th and
so on of each program, the function runs as written, and the program beside it, without effects: if they differ, the
function is not replayed any more. A replay is given up where a guard finds another value than the captured call did,
before anything has changed; the call then runs as always, and is captured for a further variant.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any, overload

from gradmgr import errors
from gradmgr._arrays.atomic import float_errors_raise
from gradmgr._arrays.captured_calls import GuardError
from gradmgr._compile.captured_call import CapturedCall
from gradmgr._compile.program import LateGuardError, Program, UnchangedError
from gradmgr._compile.signature import Signature, described, difference_of_keys, test_of
from gradmgr._engine.cleanup import without_collections
from gradmgr._engine.context import current
from gradmgr._engine.display import Text
from gradmgr._engine.observers import observers
from gradmgr._engine.turn_lock import new_turn_lock
from gradmgr._replay.replay import Options, may_fuse, require_machine

# How many variants are kept, and how many may have been dropped before the function runs as if it were not compiled.
_MOST = 8
# Replays that pay for capturing a variant: those that make room after so many do not count as dropped.
_PAYING = 100
_REMEDY = "pass a number as an argument that is a Tensor, and compile a function for each object"

# Flags of the code of generators, coroutines and asynchronous generators.
_SUSPENDS = 0x20 | 0x80 | 0x200


def _never(args: tuple[Any, ...]) -> bool:
    return False


class _Variants:
    """The programs for calls of one signature.

    Attributes:
        key: the signature's.
        programs: what replays, the one used last at the front.
        refused: why these calls are not replayed; None if they are, or may be.
        fits: returns, without a signature, whether positional arguments have this one; it may say no where they have.
        may_decide: whether kernels may add guards, as long as no guard has found another value: see Capture.
        forgives: whether a call may still change what it reads by name, as the first does that fills a cache.
    """

    __slots__ = ("fits", "forgives", "key", "may_decide", "programs", "refused")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.programs: list[Program] = []
        self.refused: str | None = None
        self.fits: Callable[[tuple[Any, ...]], bool] = _never
        self.forgives = self.may_decide = True


class Compiled:
    """A function that is captured and replayed, as `gradmgr.compile` makes it.

    Attributes:
        function: the function itself.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._options = options
        self._clear()
        self._lock = new_turn_lock()  # of those below, which threads share

    def _clear(self) -> None:
        self._variants: dict[Any, _Variants] = {}
        self._last: _Variants | None = None  # those of the last call
        self._dropped = 0  # variants that gave way to others
        self._dropped_at = 0  # what the clock said when one did so last
        self._has_named = False  # whether a warning has named what changes in each call
        self._clock = itertools.count()
        self._refused: str | None = None  # why no further calls are captured
        self._has_warned = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}>"

    def __reduce__(self) -> Any:
        return self.function.__qualname__  # as functions are pickled: by name

    def __copy__(self) -> Compiled:
        return self

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self

    # ------------------------------------------------------------ calls

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if current() is not None or observers() or float_errors_raise():
            return self.function(*args, **keywords)
        variants = self._last
        leaves: Sequence[Any] = args
        if variants is None or keywords or not variants.fits(args):
            variants, leaves = self._variants_of(Signature(args, keywords))
        if variants.refused is not None:
            return self.function(*args, **keywords)
        decided: str | None = None
        for program in variants.programs:
            if program.misfit(leaves) is not None:
                continue
            program.runs += 1
            try:
                if program.runs == program.rehearses_at:
                    computed = program.rehearse(leaves)
                    return self._rehearse(variants, program, Signature(args, keywords), computed)
                result = program.run(leaves)
            except GuardError as error:  # it is a call for another variant
                decided = str(error)
                continue
            except UnchangedError:
                break
            except LateGuardError as error:
                self._refuse_late(variants, str(error))
                break
            program.used = next(self._clock)
            return result
        else:
            if self._refused is None:
                return self._capture(variants, Signature(args, keywords), decided)
        return self.function(*args, **keywords)  # raises what it would raise if it were not compiled

    def _variants_of(self, signature: Signature) -> tuple[_Variants, Sequence[Any]]:
        """Return the programs for calls of a signature, and the leaves of its arguments."""
        found = self._variants.get(signature.key)
        if found is None:
            found = _Variants(signature.key)
            if self._refused is not None:  # its key is not kept
                found.refused = self._refused
                return found, signature.leaves
            found = self._variants.setdefault(signature.key, found)
        self._last = found
        return found, signature.leaves

    # ------------------------------------------------------------ capturing

    def _capture(self, variants: _Variants, signature: Signature, decided: str | None) -> Any:
        """Make a call that no program fits, and a program of it.

        Args:
            variants: for calls of its signature.
            signature: of its arguments.
            decided: what a guard has found that was another value in a captured call; None if none did.
        """
        changed = self._changed(variants, signature.leaves)
        may_decide = variants.may_decide and decided is None
        variants.may_decide = may_decide
        made = CapturedCall(self.function, signature, fuses=may_fuse(self._options), may_decide=may_decide)
        with self._lock:
            self._add(variants, made, signature.leaves, changed, decided)
        return made.result

    def _add(
        self,
        variants: _Variants,
        made: CapturedCall,
        leaves: Sequence[Any],
        changed: str | None,
        decided: str | None,
    ) -> None:
        """Make a program of a call that was captured, if it can be replayed."""
        if made.obstacle is not None:
            if made.changes_names and any(program.misfit(leaves) is None for program in variants.programs):
                return  # as by train() after an eval()
            if variants.forgives and made.changes_names:
                variants.forgives = False  # once: it may make what later calls find
            else:
                self._refuse(variants, made.obstacle)
            return
        if made.capture is None:
            return
        program = without_collections(Program, made, made.capture, self._options)
        fault = program.verify()
        if fault is not None:
            self._refuse(variants, fault)
            return
        program.used = next(self._clock)
        variants.programs.insert(0, program)
        variants.fits = test_of(variants.key)
        self._make_room(changed, decided)

    def _changed(self, variants: _Variants, leaves: Sequence[Any]) -> str | None:
        """Return which name stands for something else than in the variant used last; None if none does."""
        if not variants.programs:
            return None
        return max(variants.programs, key=lambda each: each.used).names.changed(leaves)

    def _rehearse(
        self, variants: _Variants, program: Program, signature: Signature, computed: Sequence[Any] | None
    ) -> Any:
        """Run the function as written, and compare it with what a program has computed beside it."""
        fuses = may_fuse(self._options)
        made = CapturedCall(self.function, signature, fuses=fuses, repeated=program.generators, assembles=False)
        with self._lock:
            if computed is None and made.obstacle is None and program.differs(made) is not None:
                made.assemble()  # for another variant: `rehearse` could not find out
                self._add(variants, made, signature.leaves, None, None)
                return made.result
            fault = program.fault_in(made, computed)
            if fault is not None:
                variants.programs.remove(program)
                self._refuse(variants, fault)
        return made.result

    def _make_room(self, changed: str | None, decided: str | None) -> None:
        """Drop the variant that was used least lately where there are too many; often, capture no more.

        Args:
            changed: the name for which the last variant was captured; None if it was for something else.
            decided: the value that it was captured for, in words; None if that is an argument.
        """
        everything = [(each.used, variants, each) for variants in self._variants.values() for each in variants.programs]
        if len(everything) <= _MOST:
            return
        _, variants, oldest = min(everything, key=lambda each: each[0])
        variants.programs.remove(oldest)
        now = next(self._clock)
        self._dropped = 1 if now - self._dropped_at > _PAYING else self._dropped + 1
        self._dropped_at = now
        if changed is not None:
            self._warn_of_name(changed)
        if self._dropped > _MOST:
            self._capture_no_more(changed, decided)

    def _warn_of_name(self, changed: str) -> None:
        if not self._has_named:
            self._has_named = True
            errors.warn(
                f"{self._name()} is captured anew, which takes longer than a call, each time that {changed}, stands "
                f"for something else, and more than {_MOST} times it did; {_REMEDY}",
                errors.CompileWarning,
            )

    def _capture_no_more(self, changed: str | None, decided: str | None) -> None:
        """Run the calls that no variant fits as if the function were not compiled."""
        if changed is not None:
            why = f"what changes is {changed}; {_REMEDY}"
        elif decided is not None or len(self._variants) == 1:
            why = decided or "what it finds in objects changes"
        else:
            *_, before, last = self._variants
            why = f"what changes is {difference_of_keys(before, last, self.function)}"
        self._refused = f"each call needs another variant, as {why}"
        self._warn(self._refused)
        for each in self._variants.values():
            if not each.programs:
                each.refused = self._refused

    def _refuse(self, variants: _Variants, why: str) -> None:
        variants.refused = why
        variants.fits = test_of(variants.key)
        self._warn(why)

    def _refuse_late(self, variants: _Variants, found: str) -> None:
        """Refuse what a replay has found too late: what has run until then runs again, once."""
        with self._lock:
            variants.programs.clear()
            self._refuse(
                variants,
                f"{found}, as code that runs in each call, such as a hook or a Function, has changed in this call what "
                "it left alone before; in this call, what comes before that line has run twice",
            )

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            errors.warn(
                f"{self._name()} is not replayed, and runs as if it were not compiled: {why}", errors.CompileWarning
            )

    def _name(self) -> str:
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    # ------------------------------------------------------------ for the user

    def explain(self) -> str:
        """Return, as text, which variants there are, what they compute, and what is not replayed and why."""
        count = self._count()
        lines = [f"{self._name()}: {count} variant{'' if count == 1 else 's'}"]
        for variants in list(self._variants.values()):
            given = described(variants.key, self.function)
            for program in variants.programs:
                lines += [f"variant for {given}:", *[f"    {line}" for line in program.description()]]
            if variants.refused is not None:
                lines.append(f"not replayed for {given}: {variants.refused}")
        if self._refused is not None:
            lines.append(f"no further variants: {self._refused}")
        return Text("\n".join(lines))

    def times(self, *args: Any, **keywords: Any) -> str:
        """Make one call by a replay that measures itself; return, as text, how long each of its lines took.

        What the call changes is changed, and what it returns is dropped. A run of the machine is one line, and lists
        its calls.

        Raises:
            RuntimeError: no variant replays these arguments; nothing has changed.
        """
        signature = Signature(args, keywords)
        variants = self._variants.get(signature.key)
        for program in variants.programs if variants is not None else ():
            if program.misfit(signature.leaves) is None:
                try:
                    return Text("\n".join(program.measured(signature.leaves)))
                except (GuardError, UnchangedError):
                    continue
        raise RuntimeError(
            f"times() measures a replay, and {self._name()} has none for these arguments; call it with them until "
            "explain() lists a variant for them, or tells why there is none"
        )

    def _count(self) -> int:
        return sum(len(variants.programs) for variants in self._variants.values())

    def release(self) -> None:
        """Free all variants; the next calls are captured again."""
        with self._lock:
            self._clear()


@overload
def compile(  # noqa: A001  # torch's name
    function: Callable[..., Any], *, native: bool | None = None, exact: bool = False
) -> Compiled: ...
@overload
def compile(  # noqa: A001  # as above
    function: None = None, *, native: bool | None = None, exact: bool = False
) -> Callable[[Callable[..., Any]], Compiled]: ...
def compile(  # noqa: A001  # as above
    function: Callable[..., Any] | None = None,
    *,
    native: bool | None = None,
    exact: bool = False,
) -> Any:
    """Return a function that computes the same faster: it is captured, then replayed without its Python code.

    The first call runs as always; what it computes, derivatives and updates of parameters included, becomes one
    straight line of NumPy calls, which later calls make. It may be a training step, a method, a derivative such as
    `functional.value_and_grad(f)`, or any other function of Tensors, arrays and numbers, in containers too. Arrays
    among the arguments arrive as Tensors; results that depend on these alone are returned as arrays.

    Calls with other shapes, dtypes, structure or numbers are captured again, and so are calls after a change of what
    the function reads by name; eight such variants are kept. A comparison of values, as in `if loss > 3`, is made
    again in each replay, and each way is a variant. All else is taken for constant. In calls 2, 4, 8, 16, ... of each
    variant the function runs as written, and is compared with its program. A function that takes numbers out of
    Tensors (`float`, `item`, `numpy`), that changes what it reads by name, or that is found to differ from its
    program, runs as it does without `compile`, with a `CompileWarning` that says why; so do calls inside a recording,
    a profiler or anomaly detection, without one. Prints and the like are not repeated. docs/compile.md has the whole
    contract.

    Args:
        function: what to compile; without it, a decorator is returned.
        native: whether the machine of the extra `native` makes the calls that it can; None for where it is installed.
        exact: whether all results are those of eager calls bit by bit. Else, where the extras `native` and `onednn` are
            installed, oneDNN computes matrix products in float32 of shapes for which it is faster, and sums of them
            become one product. An element of such a product, of n terms, is within n ulps of the eager one: each
            2**-23 of the sum of the terms' absolute values. `explain()` says how many products these are.

    Returns:
        A callable with `explain()`, which tells in words what is replayed; `release()`, which frees it; and `function`.

    Raises:
        TypeError: `function` cannot be called, or is a generator or coroutine.
        ImportError: `native` is true, and the extra is not installed, or its machine does not pass its test.

    >>> import gradmgr, gradmgr.numpy as np
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w)
    >>> @gradmgr.compile
    ... def step(x):
    ...     with gm:
    ...         loss = np.sum((w * x) ** 2)
    ...         gm.backward(loss)
    ...     w[...] -= 0.1 * w.grad
    ...     w.grad = None
    ...     return loss
    >>> [step(gradmgr.tensor([1.0, 0.5])).item() for _ in range(4)]
    [2.0, 1.5425, 1.22410625, 0.9972358906250001]
    """
    if function is None:
        return functools.partial(compile, native=native, exact=exact)
    errors.check_function(function, "compile")
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _SUSPENDS:
        raise TypeError(
            f"compile takes a function that returns when it is done; found a generator or coroutine, "
            f"{function.__qualname__}; compile what it calls"
        )
    if native:
        require_machine()
    return Compiled(function, Options(native, exact))
