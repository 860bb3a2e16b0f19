"""gradcheck: analytic derivatives of every order against numeric ones, and against each other.

Inner products are real, <u, v> = Re(sum(conj(u) v)), so that complex derivatives, which need not
be holomorphic, are checked as real-linear maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.context import current, recorders
from gradmgr._engine.forward import ForwardScope
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._transforms.vmap import vmap
from gradmgr.manager import GradManager

__all__ = ["gradcheck", "gradgradcheck", "jvp", "vjp"]

Function = Callable[..., Any]


def gradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = True,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = True,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    order: int = 1,
    complex_step: bool = False,
    seed: int = 0,
) -> bool:
    """Check the derivatives of `func` at `inputs`; list every mismatch.

    Compared are: the reverse and the forward derivative with central differences (or a complex
    step), and the two with each other by the adjoint identity <u, Jv> = <J'u, v>. For `order` 2
    the same is checked of the reverse and of the forward derivative as functions, which covers
    reverse over reverse, forward over reverse, reverse over forward and forward over forward; and
    so on for higher orders. In every order `func` must give the same values when it is called again.

    Different from `torch.autograd.gradcheck`: `check_forward_ad` and `check_grad_dtypes` are on, `atol`
    and `rtol` are tighter, `masked` is refused as there are no sparse tensors, all mismatches are listed
    in one error, and `order`, `complex_step` and `seed` are gradmgr's own.

    Args:
        func: takes the inputs, returns a Tensor or a list or tuple of them.
        inputs: a Tensor or a sequence; those of a floating or complex dtype are differentiated,
            and should be float64 or complex128: differences in single precision say little.
        eps: step of the central differences.
        atol: a difference above atol + rtol * |numeric| is a mismatch.
        rtol: see `atol`.
        raise_exception: raise on a mismatch; else return False.
        nondet_tol: how much the gradients of two backward passes, or the values of two calls, may differ.
        check_undefined_grad: of several outputs, leave out the gradient of each in turn; the others'
            must give what they give with zeros in its place.
        check_grad_dtypes: a gradient must have the dtype of its input; the shape it must have always.
        check_batched_grad: backward of a batch of cotangents through `vmap` must give what a loop gives.
        check_batched_forward_grad: the same of forward mode and a batch of tangents.
        check_forward_ad: check the forward mode.
        check_backward_ad: check the reverse mode.
        fast_mode: compare along one random direction instead of the whole Jacobian.
        masked: for sparse tensors in torch; True is refused.
        order: highest order of derivative to check.
        complex_step: take the numeric first derivative from the imaginary part of func(x + ih), exact to
            rounding; `func` must then be analytic, made of functions that NumPy has for complex numbers.
        seed: the seed of the random directions.

    Returns:
        True if all agree.

    Raises:
        GradcheckError: they do not; the text lists all mismatches and says which mode is right, where one is.
        TypeError: `func` returns something other than Tensors.
        ValueError: the arguments select nothing to check, or something that does not exist.

    >>> import gradmgr, gradmgr.numpy as np
    >>> gradmgr.gradcheck(lambda x, y: np.sin(x) * y, (gradmgr.tensor([1.0]), gradmgr.tensor([2.0])), order=2)
    True
    """
    _check_arguments("gradcheck", eps, masked, check_batched_grad and not check_backward_ad)
    if check_batched_forward_grad and not check_forward_ad:
        raise ValueError("gradcheck: check_batched_forward_grad=True needs check_forward_ad=True")
    if not (check_forward_ad or check_backward_ad):
        raise ValueError("gradcheck: check_forward_ad and check_backward_ad are both False; nothing would be checked")
    if order < 1:
        raise ValueError(f"gradcheck: order is the highest order of derivative, 1 or more; found {order}")
    check = _Check(
        eps=eps,
        atol=atol,
        rtol=rtol,
        nondet=nondet_tol,
        backward=check_backward_ad,
        forward=check_forward_ad,
        undefined=check_undefined_grad,
        dtypes=check_grad_dtypes,
        batched=check_batched_grad,
        batched_forward=check_batched_forward_grad,
        fast=fast_mode,
        complex_step=complex_step,
        random=np.random.default_rng(seed),
    )
    errors.check_function(func, "gradcheck")
    points = _points("gradcheck", inputs)
    names = [f"input {k}" for k in range(len(points))]
    return _report(check.run(_Problem(func, points, names, None, ""), order), raise_exception)


def gradgradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = True,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = True,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    seed: int = 0,
) -> bool:
    """Check the second derivatives of `func`: its reverse derivative as a function of inputs and cotangents.

    `gradcheck(..., order=2)` checks the first order and the derivatives of the forward derivative too.
    Different from `torch.autograd.gradgradcheck`: `check_fwd_over_rev` and `check_grad_dtypes` are on, and
    what is said of `gradcheck`.

    Args:
        func: as for `gradcheck`.
        inputs: as for `gradcheck`.
        grad_outputs: the cotangents at which to check, a Tensor or array for each output of a floating or
            complex dtype, with its shape and dtype; random ones by default.
        eps: as for `gradcheck`, as are all arguments that are not described here.
        atol: see `gradcheck`.
        rtol: see `gradcheck`.
        gen_non_contig_grad_outputs: make the random cotangents non-contiguous in memory.
        raise_exception: see `gradcheck`.
        nondet_tol: see `gradcheck`.
        check_undefined_grad: see `gradcheck`.
        check_grad_dtypes: see `gradcheck`.
        check_batched_grad: see `gradcheck`.
        check_fwd_over_rev: check the forward derivative of the reverse derivative.
        check_rev_over_rev: check the reverse derivative of the reverse derivative.
        fast_mode: see `gradcheck`.
        masked: see `gradcheck`.
        seed: see `gradcheck`.

    Returns:
        True if all agree.

    Raises:
        GradcheckError: they do not.
        TypeError, ValueError: as `gradcheck`; or `grad_outputs` does not fit the outputs.

    >>> import gradmgr
    >>> from gradmgr import gradgradcheck
    >>> gradgradcheck(lambda x: x**3, gradmgr.tensor([1.0, 2.0]))
    True
    """
    _check_arguments("gradgradcheck", eps, masked, check_batched_grad and not check_rev_over_rev)
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise ValueError("gradgradcheck: check_fwd_over_rev and check_rev_over_rev are both False; one is needed")
    check = _Check(
        eps=eps,
        atol=atol,
        rtol=rtol,
        nondet=nondet_tol,
        backward=check_rev_over_rev,
        forward=check_fwd_over_rev,
        undefined=check_undefined_grad,
        dtypes=check_grad_dtypes,
        batched=check_batched_grad,
        batched_forward=False,
        fast=fast_mode,
        complex_step=False,
        random=np.random.default_rng(seed),
    )
    errors.check_function(func, "gradgradcheck")
    points = _points("gradgradcheck", inputs)
    names = [f"input {k}" for k in range(len(points))]
    problem = _Problem(func, points, names, None, "")
    if not problem.argnums:
        return _report([_no_differentiable_input(problem)], raise_exception)
    outs = problem.outputs()
    if grad_outputs is None:
        us = [check.direction(y, gen_non_contig_grad_outputs) for _, y in outs]
    else:
        us = _cotangents(grad_outputs, [y for _, y in outs])
    return _report(check.run(_reverse_problem(problem, _blocks(outs), us), 1), raise_exception)


def _check_arguments(name: str, eps: float, masked: bool | None, batched_without: bool) -> None:
    if masked:
        raise ValueError(f"{name}: masked=True is about sparse tensors, which gradmgr does not have; leave it out")
    if not eps > 0:
        raise ValueError(f"{name}: eps, the step of the differences, must be positive; found {eps}")
    if batched_without:
        raise ValueError(f"{name}: check_batched_grad=True is about backward; do not turn the check of that off")


def _points(name: str, inputs: Any) -> list[Any]:
    if not isinstance(inputs, (Tensor, list, tuple)) and not libraries.is_array(inputs):
        raise TypeError(f"{name}: inputs are Tensors or arrays, one or a tuple of them; found {type(inputs).__name__}")
    points = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    for k, t in enumerate(points):
        if isinstance(t, Tensor) and t.dtype in (np.float16, np.float32, np.complex64):
            errors.warn(
                f"{name}: input {k} is {t.dtype}; differences in it are mostly rounding, use float64", RuntimeWarning
            )
    return [wrap(t._array) if isinstance(t, Tensor) else t for t in points]


def _cotangents(given: Any, outs: list[Tensor]) -> list[Any]:
    """Check the user's grad_outputs."""
    us = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(us) != len(outs):
        raise ValueError(f"gradgradcheck: {len(us)} grad_outputs were given for {len(outs)} differentiable outputs")
    for k, (u, y) in enumerate(zip(us, outs, strict=True)):
        if not isinstance(u, Tensor) and not libraries.is_array(u):
            raise TypeError(f"gradgradcheck: grad_outputs[{k}] must be a Tensor or an array; found {type(u).__name__}")
        if u.shape != y.shape:
            raise errors.ShapeError(f"gradgradcheck: grad_outputs[{k}] has shape {u.shape}, its output {y.shape}")
        if u.dtype != y.dtype:
            raise errors.DtypeError(f"gradgradcheck: grad_outputs[{k}] has dtype {u.dtype}, its output {y.dtype}")
    return [raw(u) for u in us]


def _report(failures: list[str], raise_exception: bool) -> bool:
    if failures and raise_exception:
        raise errors.GradcheckError("the derivatives do not agree:\n" + "\n".join(failures))
    return not failures


# ---------------------------------------------------------------- the functions that are checked


class _NotDeterministicError(Exception):
    """Two calls of a function gave outputs that cannot be compared; holds the line to report."""


class _Problem:
    """A function at a point, and the names of its inputs and outputs in a report."""

    __slots__ = ("argnums", "func", "names", "output_metadata", "outs", "points", "prefix")

    def __init__(
        self, func: Function, points: list[Any], names: list[str], outs: list[str] | None, prefix: str
    ) -> None:
        self.func = func
        self.points = points
        self.names = names
        self.outs = outs  # None: "output k"
        self.prefix = prefix  # names the derivatives taken so far
        self.argnums = [k for k, t in enumerate(points) if _differentiable(t)]
        self.output_metadata: list[Any] | None = None  # of the first call: shapes, and which are complex

    def outputs(self) -> list[tuple[str, Tensor]]:
        """Call the function; return the names of the differentiable outputs, and the outputs."""
        found = self.call_for_values(self.call_checked, list(map(_handle, self.points)))
        return [(f"output {k}" if self.outs is None else self.outs[k], y) for k, y in found]

    def call_for_values(self, func: Function, args: list[Any]) -> list[tuple[int, Tensor]]:
        """Return the differentiable outputs of the function, called for its values alone.

        It is recorded, as it may set hooks on what it computes; a derivative as a function has a recording of its own.
        """
        if self.prefix:
            return _outputs(func(*args))
        return _Recorded([args[k] for k in self.argnums]).run(lambda: _outputs(func(*args)))

    def call_checked(self, *args: Any) -> Any:
        """Call the function and check that its outputs are as those of the first call."""
        result = self.func(*args)
        self.check_metadata([y for _, y in _outputs(result)])
        return result

    def check_metadata(self, outs: Sequence[Tensor]) -> None:
        """Check that the outputs of a call have the shapes of those of the first, and are complex where those were."""
        metadata = [(y.shape, y.size > 0 and y.dtype.kind == "c") for y in outs]
        if self.output_metadata is None:
            self.output_metadata = metadata
        if metadata != self.output_metadata:
            one, other = (
                ", ".join(f"{shape}{' complex' * c}" for shape, c in many) for many in (self.output_metadata, metadata)
            )
            raise _NotDeterministicError(
                f"- {self.prefix}the function is not deterministic: one call gave outputs of {one}, another of {other}"
            )

    def input_blocks(self) -> list[_Block]:
        """Return a block for each differentiable input."""
        return _blocks([(self.names[k], self.points[k]) for k in self.argnums])


class _Block:
    """The slice of one tensor in a vector of all of them: its real parts, then its imaginary ones."""

    __slots__ = ("complex", "name", "shape", "start", "stop")

    def __init__(self, name: str, shape: tuple[int, ...], start: int, stop: int, is_complex: bool) -> None:
        self.name = name
        self.shape = shape
        self.start = start
        self.stop = stop
        self.complex = is_complex

    def format_index(self, k: int) -> str:
        """Return the index of an element, counted from the start of the block, as text."""
        size = int(np.prod(self.shape))
        index = f"[{', '.join(map(str, np.unravel_index(k % size, self.shape)))}]" if self.shape else "[()]"
        return index + (".imag" if k >= size else ".real" if self.complex else "")


def _blocks(tensors: Sequence[tuple[str, Any]]) -> list[_Block]:
    made, start = [], 0
    for name, t in tensors:
        is_complex = t.dtype.kind == "c"
        stop = start + t.size * (1 + is_complex)
        made.append(_Block(name, t.shape, start, stop, is_complex))
        start = stop
    return made


def _no_differentiable_input(problem: _Problem) -> str:
    found = ", ".join(str(t.dtype) if isinstance(t, Tensor) else type(t).__name__ for t in problem.points)
    return (
        f"- {problem.prefix}no input is of a floating or complex dtype; found {found or 'none'}: "
        "make what is to be differentiated with gradmgr.tensor(..., dtype='float64')"
    )


def _reverse_problem(problem: _Problem, rows: Sequence[_Block], us: Sequence[Any]) -> _Problem:
    """Return the problem of the reverse derivative, a function of the inputs and the cotangents."""
    func, argnums, count = problem.func, problem.argnums, len(problem.points)
    outs = [f"the gradient of {problem.names[k]}" for k in argnums]
    names = [*problem.names, *(f"the cotangent of {row.name}" for row in rows)]
    prefix = f"{problem.prefix}derivative of the reverse derivative: "

    def reverse(*args: Any) -> Any:
        return vjp(func, args[:count], argnums, args[count:])

    return _Problem(reverse, [*problem.points, *map(wrap, us)], names, outs, prefix)


def _forward_problem(problem: _Problem, rows: Sequence[_Block], vs: Sequence[Any]) -> _Problem:
    """Return the problem of the forward derivative, a function of the inputs and the tangents."""
    func, argnums, count = problem.func, problem.argnums, len(problem.points)
    outs = [f"the tangent of {row.name}" for row in rows]
    names = [*problem.names, *(f"the tangent of {problem.names[k]}" for k in argnums)]
    prefix = f"{problem.prefix}derivative of the forward derivative: "

    def forward(*args: Any) -> Any:
        return jvp(func, args[:count], argnums, args[count:])

    return _Problem(forward, [*problem.points, *map(wrap, vs)], names, outs, prefix)


# ---------------------------------------------------------------- the comparisons


class _Check:
    """The options of one check, and the comparisons."""

    eps: float
    atol: float
    rtol: float
    nondet: float
    backward: bool
    forward: bool
    undefined: bool
    dtypes: bool
    batched: bool
    batched_forward: bool
    fast: bool
    complex_step: bool
    random: np.random.Generator

    def __init__(self, **asked: Any) -> None:
        self.__dict__.update(asked)

    def run(self, problem: _Problem, order: int) -> list[str]:
        if not problem.argnums:
            return [_no_differentiable_input(problem)]
        named = problem.outputs()
        outs = [y for _, y in named]
        vs = [self.direction(problem.points[k]) for k in problem.argnums]
        us = [self.direction(y) for y in outs]
        rows, columns = _blocks(named), problem.input_blocks()
        compare = self._compare_along_direction if self.fast else self._compare_jacobians
        try:
            failures = compare(problem, rows, columns, outs, vs, us)
        except _NotDeterministicError as unsteady:
            return [str(unsteady)]
        if self.batched:
            failures += self._compare_batched(problem, columns, us, backward=True)
        if self.batched_forward:
            failures += self._compare_batched(problem, rows, vs, backward=False)
        if order > 1:
            if self.backward:
                failures += self.run(_reverse_problem(problem, rows, us), order - 1)
            if self.forward:
                failures += self.run(_forward_problem(problem, rows, vs), order - 1)
        return failures

    def direction(self, t: Tensor, apart: bool = False) -> Any:
        """Return a random array like `t` without elements near 0; `apart`, with other memory between its elements."""
        shape = (*t.shape[:-1], 2 * t.shape[-1]) if apart and t.ndim else t.shape
        values = self.random.uniform(0.5, 1.5, shape) * self.random.choice([-1.0, 1.0], shape)
        if t.dtype.kind == "c":
            values = values + 1j * self.random.uniform(-1.0, 1.0, shape)
        made = libraries.to_device(np.asarray(values, dtype=t.dtype), t.device)
        return made[..., ::2] if apart and t.ndim else made

    # ------------------------------------------------------------ along one direction

    def _compare_along_direction(
        self, problem: _Problem, rows: list[_Block], columns: list[_Block], outs: list[Tensor], vs: Any, us: Any
    ) -> list[str]:
        numeric = _flatten(self._numeric(problem, vs))
        u, v = _flatten(us), _flatten(vs)
        failures, findings = [], _Findings(problem.prefix)
        tangents = _forward_derivative(problem, vs) if self.forward else None
        if tangents is not None:
            wrong = self._compare_vectors(
                tangents, numeric, rows, f"{problem.prefix}forward derivative along a random direction,"
            )
            findings.add_forward(tangents, numeric, wrong)
            failures += wrong
        if self.backward:
            recorded = _RecordedFunction(problem)

            def compare() -> tuple[Any, Any, list[str]] | None:
                failures.extend(self._check_repeatable(problem, recorded, outs, us, rows, columns))
                if recorded.has_misfit:
                    return None
                along, expected = np.asarray(_flatten(recorded.gradients) @ v), np.asarray(u @ numeric)
                wrong = self._compare_numbers(along, expected, f"{problem.prefix}reverse derivative <J'u, v>")
                if wrong:
                    wrong += self._compare_pairs(problem, recorded, rows, columns, vs, us)
                elif self.undefined and len(outs) > 1:
                    failures.extend(self._check_missing_along(problem, recorded, rows, v, us, numeric))
                return along, expected, wrong

            compared = recorded.run(compare)
            if compared is None:
                return failures
            along, expected, wrong = compared
            findings.add_reverse(along, expected, wrong)
            failures += wrong
            if tangents is not None:
                what = f"{problem.prefix}adjoint identity <J'u, v> = <u, Jv>"
                failures += findings.add_adjoint(self._compare_numbers(along, np.asarray(u @ tangents), what))
        return failures + findings.hints(outs)

    def _compare_pairs(
        self,
        problem: _Problem,
        recorded: _RecordedFunction,
        rows: list[_Block],
        columns: list[_Block],
        vs: Any,
        us: Any,
    ) -> list[str]:
        """Say for which output and input the reverse derivative is wrong, one pair at a time."""
        found = []
        gradients = [recorded.vjp(_zero_all_but(us, i)) for i in range(len(us))]
        for j, column in enumerate(columns):
            numeric = self._numeric(problem, _zero_all_but(vs, j))
            for i, row in enumerate(rows):
                by_reverse = np.asarray(_flatten([gradients[i][j]]) @ _flatten([vs[j]]))
                expected = np.asarray(_flatten([us[i]]) @ _flatten([numeric[i]]))
                found += self._compare_numbers(
                    by_reverse, expected, f"{problem.prefix}reverse derivative of {row.name} by {column.name}"
                )
        return found if len(rows) * len(columns) > 1 else []

    # ------------------------------------------------------------ the whole Jacobian

    def _compare_jacobians(
        self, problem: _Problem, rows: list[_Block], columns: list[_Block], outs: list[Tensor], vs: Any, us: Any
    ) -> list[str]:
        prefix, failures, findings = problem.prefix, [], _Findings(problem.prefix)
        height, width = (rows[-1].stop if rows else 0), columns[-1].stop
        numeric, forward = np.zeros((height, width)), np.zeros((height, width))
        zeros = [np.zeros_like(raw(problem.points[k])) for k in problem.argnums]
        column = 0
        for place, k in enumerate(problem.argnums):
            for direction in _basis(problem.points[k]):
                one = [direction if j == place else zero for j, zero in enumerate(zeros)]
                numeric[:, column] = _flatten(self._numeric(problem, one))
                if self.forward:
                    forward[:, column] = _forward_derivative(problem, one)
                column += 1
        if self.forward:
            wrong = self._compare_matrices(forward, numeric, rows, columns, f"{prefix}forward Jacobian")
            findings.add_forward(forward, numeric, wrong)
            failures += wrong
        if self.backward:
            recorded = _RecordedFunction(problem)

            def record_jacobian() -> Any:
                failures.extend(self._check_repeatable(problem, recorded, outs, us, rows, columns))
                if recorded.has_misfit:
                    return None
                found = recorded.jacobian(outs, height, width)
                if self.undefined and len(outs) > 1:
                    failures.extend(self._check_missing(problem, recorded, rows, columns, us, found))
                return found

            reverse = recorded.run(record_jacobian)
            if reverse is None:
                return failures
            wrong = self._compare_matrices(reverse, numeric, rows, columns, f"{prefix}reverse Jacobian")
            findings.add_reverse(reverse, numeric, wrong, rows, columns)
            failures += wrong
            if self.forward:
                what = f"{prefix}adjoint identity, reverse against forward Jacobian"
                failures += findings.add_adjoint(self._compare_matrices(reverse, forward, rows, columns, what))
        return failures + findings.hints(outs)

    # ------------------------------------------------------------ other properties of gradients

    def _check_repeatable(
        self,
        problem: _Problem,
        recorded: _RecordedFunction,
        outs: list[Tensor],
        us: Any,
        rows: list[_Block],
        columns: list[_Block],
    ) -> list[str]:
        """Check the shapes and dtypes of gradients, and that a second call and a second backward pass give the same.

        A call that is recorded may round differently: kernels may compute another way on plain arrays.
        """
        prefix, failures = problem.prefix, []
        for row, first, again in zip(rows, outs, recorded.outs, strict=True):
            a, b = _on_host(again), _on_host(first)
            # Numeric differences are not affected by less than this.
            tolerance = self.nondet + self.eps * self.atol
            if not _are_close(a, b, tolerance) and not _are_close(a, b, tolerance + _rounding(first)):
                failures.append(
                    f"- {prefix}the function is not deterministic: {row.name} differs by "
                    f"{_distance(again, first):.3g} between two calls, more than nondet_tol={self.nondet}; "
                    "fix the seed of what is random inside it"
                )
        recorded.gradients = found = recorded.vjp(us)
        for k, g in zip(problem.argnums, found, strict=True):
            t = problem.points[k]
            wrong_dtype = g.dtype != t.dtype
            if g.shape != t.shape or (wrong_dtype and self.dtypes):
                failures.append(
                    f"- {prefix}the gradient of {problem.names[k]} has shape {g.shape} and dtype {g.dtype}; "
                    f"the input has {t.shape} and {t.dtype}"
                )
                recorded.has_misfit |= g.size != t.size or (g.dtype.kind == "c") != (t.dtype.kind == "c")
        if recorded.has_misfit:
            return failures
        for column, one, two in zip(columns, found, recorded.vjp(us), strict=True):
            if not _are_close(_on_host(two), _on_host(one), self.nondet):
                failures.append(
                    f"- {prefix}backward is not deterministic: the gradient of {column.name} differs by "
                    f"{_distance(two, one):.3g} between two passes over one recording, "
                    f"more than nondet_tol={self.nondet}"
                )
        return failures

    def _check_missing(
        self,
        problem: _Problem,
        recorded: _RecordedFunction,
        rows: list[_Block],
        columns: list[_Block],
        us: Any,
        reverse: Any,
    ) -> list[str]:
        """Check that a cotangent that is left out counts as zeros, against the Jacobian computed with zeros."""
        failures = []
        for k, row in enumerate(rows):
            found, expected = _flatten(recorded.vjp(us, missing=k)), _flatten(_zero_one(us, k)) @ reverse
            failures += self._compare_vectors(
                found, expected, columns, f"{problem.prefix}{_MISSING_COTANGENT.format(row.name)},"
            )
        return failures

    def _check_missing_along(
        self, problem: _Problem, recorded: _RecordedFunction, rows: list[_Block], v: Any, us: Any, numeric: Any
    ) -> list[str]:
        """Check that a cotangent that is left out counts as zeros, along one direction."""
        failures = []
        for k, row in enumerate(rows):
            found, expected = _flatten(recorded.vjp(us, missing=k)) @ v, _flatten(_zero_one(us, k)) @ numeric
            failures += self._compare_numbers(found, expected, f"{problem.prefix}{_MISSING_COTANGENT.format(row.name)}")
        return failures

    def _compare_batched(self, problem: _Problem, blocks: list[_Block], one: Any, *, backward: bool) -> list[str]:
        """Compare vmap over two directions with one after the other."""
        func, points, argnums = problem.func, problem.points, problem.argnums
        many = [one, [-0.5 * a[::-1] if a.ndim else -0.5 * a for a in one]]
        derivative = vjp if backward else jvp
        stacked = [libraries.namespace(a).stack([a, b]) for a, b in zip(*many, strict=True)]

        def of(*directions: Any) -> tuple[Any, ...]:
            return tuple(derivative(func, points, argnums, directions))

        mode = "reverse" if backward else "forward"
        try:
            by_vmap = vmap(of)(*map(wrap, stacked)) if stacked else ()
        except Exception as error:  # a function that cannot be batched is reported like other failures
            return [f"- {problem.prefix}batched {mode} derivative: vmap raised {type(error).__name__}: {error}"]
        failures = []
        for k, directions in enumerate(many):
            expected = _flatten(of(*directions))
            found = _flatten([raw(part)[k] for part in by_vmap])
            failures += self._compare_vectors(
                found, expected, blocks, f"{problem.prefix}batched {mode} derivative, vmap against a loop, example {k},"
            )
        return failures

    # ------------------------------------------------------------ numbers

    def _numeric(self, problem: _Problem, vs: Any) -> list[Any]:
        # Derivatives of complex functions are not analytic, as they conjugate.
        complex_step = self.complex_step and not problem.prefix

        def shifted(step: complex) -> list[Any]:
            shifted_points = list(map(_handle, problem.points))
            for k, v in zip(problem.argnums, vs, strict=True):
                shifted_points[k] = wrap(raw(shifted_points[k]) + step * v)
            call = problem.func if complex_step else problem.call_checked
            return [raw(y) for _, y in problem.call_for_values(call, shifted_points)]

        if complex_step:
            h = 1e-30
            return [y.imag / h for y in shifted(1j * h)]
        return [(a - b) / (2 * self.eps) for a, b in zip(shifted(self.eps), shifted(-self.eps), strict=True)]

    def _mismatches(self, found: Any, expected: Any) -> Any:
        with np.errstate(invalid="ignore"):  # infinity less infinity
            bad = ~(np.abs(found - expected) <= self.atol + self.rtol * np.abs(expected))
        if not bad.any():
            return bad
        bad &= ~(np.isnan(found) & np.isnan(expected)) & ~(np.isinf(found) & (found == expected))
        return bad

    def _compare_numbers(self, found: Any, expected: Any, what: str) -> list[str]:
        """Compare two numbers."""
        if not self._mismatches(found, expected):
            return []
        return [
            f"- {what} differs: found {float(found)!r}, expected {float(expected)!r}{_relative_error(found, expected)}"
        ]

    def _compare_vectors(self, found: Any, expected: Any, blocks: list[_Block], what: str) -> list[str]:
        """Compare two vectors, block by block."""
        bad = self._mismatches(found, expected)
        if not bad.any():
            return []
        failures = []
        for block in blocks:
            part = slice(block.start, block.stop)
            if bad[part].any():
                (k,) = _worst(bad[part], found[part], expected[part])
                a, b = found[part][k], expected[part][k]
                failures.append(f"- {what} {block.name}: {_describe_mismatch(bad[part], block.format_index(k), a, b)}")
        return failures

    def _compare_matrices(
        self, found: Any, expected: Any, rows: list[_Block], columns: list[_Block], what: str
    ) -> list[str]:
        """Compare two Jacobians, for each output and input."""
        bad = self._mismatches(found, expected)
        if not bad.any():
            return []
        failures = []
        for row in rows:
            for column in columns:
                part = slice(row.start, row.stop), slice(column.start, column.stop)
                if bad[part].any():
                    i, j = _worst(bad[part], found[part], expected[part])
                    a, b = found[part][i, j], expected[part][i, j]
                    said = _describe_mismatch(bad[part], f"{row.format_index(i)} by {column.format_index(j)}", a, b)
                    failures.append(f"- {what} of {row.name} by {column.name}: {said}")
        return failures


def _worst(bad: Any, found: Any, expected: Any) -> tuple[int, ...]:
    with np.errstate(invalid="ignore"):  # infinity less infinity
        distance = np.nan_to_num(np.abs(found - expected), nan=np.inf)
    return tuple([int(k) for k in np.unravel_index(np.argmax(np.where(bad, distance, -1)), bad.shape)])


def _describe_mismatch(bad: Any, place: str, found: Any, expected: Any) -> str:
    return (
        f"{int(bad.sum())} of {bad.size} differ, most at {place}: "
        f"found {float(found)!r}, expected {float(expected)!r}{_relative_error(found, expected)}"
    )


def _relative_error(found: Any, expected: Any) -> str:
    if not (np.isfinite(found) and np.isfinite(expected) and expected):
        return ""
    return f" ({100 * (found / expected - 1):+.3g} %)"


def _are_close(a: Any, b: Any, tolerance: float) -> bool:
    return bool((a == b).all()) or bool(np.allclose(a, b, rtol=0.0, atol=tolerance, equal_nan=True))


def _rounding(y: Tensor) -> float:
    """Return the size of rounding errors in an array."""
    precision = float(np.finfo(y.dtype).eps) if y.dtype.name != "bfloat16" else 2.0**-7
    finite = np.abs(_on_host(y))
    return 64 * precision * float(np.max(finite, initial=0.0, where=np.isfinite(finite)))


def _distance(a: Any, b: Any) -> float:
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return float(np.max(np.abs(_on_host(a) - _on_host(b))))


# Reported where a left-out gradient does not count as zeros.
_MISSING_COTANGENT = "reverse derivative where {} is given no gradient, against one of zeros"


class _Findings:
    """Which derivatives of one function are wrong and how, for hints to the cause."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.is_wrong: dict[str, bool] = {}
        self.observations: list[str] = []
        self.disagree = False

    def add_forward(self, found: Any, numeric: Any, failures: list[str]) -> None:
        """Add the comparison of forward mode with numeric differences."""
        self._add("forward", found, numeric, failures)

    def add_reverse(
        self,
        found: Any,
        numeric: Any,
        failures: list[str],
        rows: Sequence[_Block] = (),
        columns: Sequence[_Block] = (),
    ) -> None:
        """Add the comparison of reverse mode with numeric differences."""
        self._add("reverse", found, numeric, failures)
        if failures and any(block.complex for block in (*rows, *columns)):
            sign = np.ones(found.shape)
            for row in rows:
                if row.complex:
                    sign[(row.start + row.stop) // 2 : row.stop] *= -1
            for column in columns:
                if column.complex:
                    sign[:, (column.start + column.stop) // 2 : column.stop] *= -1
            if _is_close(sign * found, numeric):
                self.observations.append(
                    "reverse is right but for a complex conjugate: a conj() is missing or too many"
                )

    def add_adjoint(self, failures: list[str]) -> list[str]:
        """Add the comparison of the two modes."""
        self.disagree = bool(failures)
        return failures

    def _add(self, mode: str, found: Any, numeric: Any, failures: list[str]) -> None:
        self.is_wrong[mode] = bool(failures)
        if not failures:
            return
        if not np.any(found):
            self.observations.append(f"{mode} gives only zeros: it sees nothing of what the function computes")
        elif np.any(numeric) and np.isfinite(found).all():
            factor = np.vdot(numeric, found) / np.vdot(numeric, numeric)
            if found.size > 1 and factor and _is_close(found, factor * numeric):
                self.observations.append(f"{mode} is right but for the factor {factor:.6g}")

    def hints(self, outs: Sequence[Tensor]) -> list[str]:
        """Return lines that say which of reverse mode, forward mode and numeric differences are wrong, and how."""
        wrong = [mode for mode, is_wrong in self.is_wrong.items() if is_wrong]
        if not wrong:
            return []
        if len(self.is_wrong) == 2 and len(wrong) == 1:
            (bad,) = wrong
            good = "forward" if bad == "reverse" else "reverse"
            hints = [f"{bad} is wrong and {good} is right: see the {bad} rule ({'vjp' if bad == 'reverse' else 'jvp'})"]
        elif len(wrong) == 2 and not self.disagree:
            hints = [
                "reverse and forward agree with each other, not with the differences: the algebra that both are made "
                "of is wrong, or the function is not smooth here, or eps does not suit it, or a part of it computes on "
                "raw data (x.numpy(), detach(), under no_grad())"
            ]
        elif len(wrong) == 2:
            hints = ["reverse, forward and the differences all disagree"]
        else:
            hints = [f"{wrong[0]} is wrong; the other mode was not checked"]
        single = {str(y.dtype) for y in outs if y.dtype in (np.float16, np.float32, np.complex64)}
        if single:
            hints.append(f"an output is {', '.join(sorted(single))}, whose differences are mostly rounding")
        return [f"  ({self.prefix}{hint})" for hint in [*hints, *self.observations]]


def _is_close(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-7))


# ---------------------------------------------------------------- derivatives as functions


class _Recorded(Scope):
    """In which a manager of its own records what is computed from Tensors."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.manager = GradManager().attach(inputs)

    def _open(self, opened: Any) -> None:
        self.manager.record()

    def _close(self, opened: Any) -> None:
        self.manager._release()


class _RecordedFunction(_Recorded):
    """A function recorded once, whose vjp can be called any number of times while this is open."""

    def __init__(self, problem: _Problem) -> None:
        self.has_misfit = False  # whether a gradient has not the shape of its input, so that there is no Jacobian
        self.gradients: list[Tensor] = []  # along the random direction
        self.leaves = [_handle(t) for t in problem.points]
        self.inputs = [self.leaves[k] for k in problem.argnums]
        self._problem = problem
        super().__init__(self.inputs)

    def _open(self, opened: Any) -> None:
        super()._open(opened)
        self.outs = [y for _, y in _outputs(self._problem.call_checked(*self.leaves))]
        tape = self.manager._open_tape()
        self.tracked = [tape.node_id_of(y) is not None for y in self.outs]

    def vjp(self, us: Sequence[Any], missing: int | None = None) -> list[Tensor]:
        """Return the gradients for these cotangents; one may be missing."""
        given = [k for k, tracked in enumerate(self.tracked) if tracked and k != missing]
        self.manager.backward([self.outs[k] for k in given], [us[k] for k in given], retain=True)
        found = [_or_zeros(t.grad, t) for t in self.inputs]
        self.manager.clear_grad()
        return found

    def jacobian(self, outs: Sequence[Tensor], height: int, width: int) -> Any:
        """Return the Jacobian, row by row: the vjp of each unit cotangent is a row."""
        made, row = np.zeros((height, width)), 0
        zeros = [np.zeros_like(raw(y)) for y in outs]
        for place, y in enumerate(outs):
            for direction in _basis(y):
                made[row] = _flatten(self.vjp([direction if j == place else zero for j, zero in enumerate(zeros)]))
                row += 1
        return made


def vjp(func: Function, points: Sequence[Any], argnums: Sequence[int], us: Sequence[Any]) -> list[Tensor]:
    """Return the cotangents of the inputs at `where`, through a manager; differentiable itself."""
    leaves = [_handle(t) for t in points]
    recorded = _Recorded([leaves[k] for k in argnums])

    def compute() -> None:
        outs = [y for _, y in _outputs(func(*leaves))]
        tape = recorded.manager._open_tape()
        pairs = [(y, u) for y, u in zip(outs, us, strict=True) if tape.node_id_of(y) is not None]
        recorded.manager.backward([y for y, _ in pairs], [u for _, u in pairs])

    recorded.run(compute)
    return [_or_zeros(leaves[k].grad, leaves[k]) for k in argnums]


def jvp(func: Function, points: Sequence[Any], argnums: Sequence[int], vs: Sequence[Any]) -> list[Any]:
    """Return the tangents of the outputs for tangents of the inputs at `where`; differentiable itself."""
    leaves = [_handle(t) for t in points]
    scope = ForwardScope()
    for k, v in zip(argnums, vs, strict=True):
        scope.level.add_dual(leaves[k], v)
    tangents = scope.run(lambda: [_or_zeros(scope.level.node_id_of(y), y) for _, y in _outputs(func(*leaves))])
    return [t if isinstance(t, Tensor) else wrap(t) for t in tangents]


def _forward_derivative(problem: _Problem, vs: Any) -> Any:
    """Return the forward derivative; where that raises, add a note that says how to leave it out."""
    try:
        tangents = jvp(problem.call_checked, problem.points, problem.argnums, vs)
    except _NotDeterministicError:
        raise
    except Exception as error:  # re-raised, with the note
        error.add_note("(gradcheck was checking forward mode, which check_forward_ad=False leaves out)")
        raise
    return _flatten(tangents)


def _handle(t: Any) -> Any:
    """Return a new tensor with the node ids of `t`, as func may write to it in place."""
    if not isinstance(t, Tensor):
        return t
    handle = snapshot(t, recorders(current()))
    return handle if isinstance(handle, Tensor) else wrap(handle)


def _or_zeros(value: Any, like: Tensor) -> Any:
    return wrap(libraries.namespace(like._array).zeros_like(like._array)) if value is None else value


def _zero_all_but(values: Sequence[Any], place: int) -> list[Any]:
    """Return the values with all but one replaced by zeros."""
    return [a if k == place else np.zeros_like(a) for k, a in enumerate(values)]


def _zero_one(values: Sequence[Any], place: int) -> list[Any]:
    """Return the values with one replaced by zeros."""
    return [np.zeros_like(a) if k == place else a for k, a in enumerate(values)]


def _outputs(result: Any) -> list[tuple[int, Tensor]]:
    """Return the differentiable outputs of a function, each with its position."""
    many = list(result) if isinstance(result, (list, tuple)) else [result]
    for k, y in enumerate(many):
        if not isinstance(y, Tensor):
            which = f"as output {k} " if len(many) > 1 else ""
            raise TypeError(f"gradcheck: the function must return Tensors; found {type(y).__name__} {which}".rstrip())
    return [(k, y) for k, y in enumerate(many) if _differentiable(y)]


def _differentiable(t: Any) -> bool:
    return isinstance(t, Tensor) and libraries.is_differentiable(t.dtype)


def _on_host(value: Any) -> Any:
    return np.asarray(libraries.to_device(raw(value), "cpu"))


def _flatten(values: Sequence[Any]) -> Any:
    """Return all values as one real vector; a complex array gives its real parts, then its imaginary ones."""
    parts = [np.zeros(0)]
    for value in map(_on_host, values):
        parts.append(value.real.ravel())
        if value.dtype.kind == "c":
            parts.append(value.imag.ravel())
    return np.concatenate(parts).astype(float)


def _basis(t: Tensor) -> list[Any]:
    """Return the unit arrays of a tensor's shape, real and, for complex dtypes, imaginary."""
    units = []
    for scale in (1, 1j) if t.dtype.kind == "c" else (1,):
        for k in range(t.size):
            unit = np.zeros(t.size, t.dtype)
            unit[k] = scale
            units.append(libraries.to_device(unit.reshape(t.shape), t.device))
    return units
