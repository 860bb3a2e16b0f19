"""gradcheck: analytic derivatives of every order against numeric ones, and against each other.

Inner products are real, <u, v> = Re(sum(conj(u) v)), so that complex derivatives, which need not
be holomorphic, are checked as real-linear maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, raw, variable, wrap
from gradmgr._transforms.gradcheck_derivatives import (
    Function,
    flatten,
    jvp,
    new_handle,
    on_host,
    unit_arrays,
    vjp,
)
from gradmgr._transforms.gradcheck_problem import (
    Block,
    NotDeterministicError,
    Problem,
    RecordedFunction,
    blocks_of,
    describe_missing_input,
    forward_derivative,
    forward_problem,
    reverse_problem,
)
from gradmgr._transforms.gradcheck_report import Comparison, Findings
from gradmgr._transforms.vmap import vmap

__all__ = ["gradcheck", "gradgradcheck", "jvp", "vjp"]


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

    Differences from `torch.autograd.gradcheck`: `check_forward_ad` and `check_grad_dtypes` are on, `atol`
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
        GradcheckError: they do not; the message lists all mismatches and says which mode is right, if one is.
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
        compare=Comparison(atol, rtol),
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
    return _report(check.run(Problem(func, points, names, None, ""), order), raise_exception)


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
    Differences from `torch.autograd.gradgradcheck`: `check_fwd_over_rev` and `check_grad_dtypes` are on, and
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
        compare=Comparison(atol, rtol),
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
    problem = Problem(func, points, names, None, "")
    if not problem.argnums:
        return _report([describe_missing_input(problem)], raise_exception)
    outs = problem.outputs()
    if grad_outputs is None:
        us = [check.direction(y, gen_non_contig_grad_outputs) for _, y in outs]
    else:
        us = _cotangents(grad_outputs, [y for _, y in outs])
    return _report(check.run(reverse_problem(problem, blocks_of(outs), us), 1), raise_exception)


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


# ---------------------------------------------------------------- the check


@dataclass
class _Check:
    """The options of one check, and the comparisons."""

    eps: float
    compare: Comparison
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

    def run(self, problem: Problem, order: int) -> list[str]:
        if not problem.argnums:
            return [describe_missing_input(problem)]
        named = problem.outputs()
        outs = [y for _, y in named]
        vs = [self.direction(problem.points[k]) for k in problem.argnums]
        us = [self.direction(y) for y in outs]
        rows, columns = blocks_of(named), problem.input_blocks()
        compare = self._compare_along_direction if self.fast else self._compare_jacobians
        try:
            failures = compare(problem, rows, columns, outs, vs, us)
        except NotDeterministicError as unsteady:
            return [str(unsteady)]
        if self.batched:
            failures += self._compare_batched(problem, columns, us, backward=True)
        if self.batched_forward:
            failures += self._compare_batched(problem, rows, vs, backward=False)
        if order > 1:
            if self.backward:
                failures += self.run(reverse_problem(problem, rows, us), order - 1)
            if self.forward:
                failures += self.run(forward_problem(problem, rows, vs), order - 1)
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
        self, problem: Problem, rows: list[Block], columns: list[Block], outs: list[Tensor], vs: Any, us: Any
    ) -> list[str]:
        numeric = flatten(self._numeric(problem, vs))
        u, v = flatten(us), flatten(vs)
        failures, findings = [], Findings(problem.prefix)
        tangents = forward_derivative(problem, vs) if self.forward else None
        if tangents is not None:
            wrong = self.compare.vectors(
                tangents, numeric, rows, f"{problem.prefix}forward derivative along a random direction,"
            )
            findings.add_forward(tangents, numeric, wrong)
            failures += wrong
        if self.backward:
            recorded = RecordedFunction(problem)

            def compare() -> tuple[Any, Any, list[str]] | None:
                failures.extend(self._check_repeatable(problem, recorded, outs, us, rows, columns))
                if recorded.has_misfit:
                    return None
                along, expected = np.asarray(flatten(recorded.gradients) @ v), np.asarray(u @ numeric)
                wrong = self.compare.numbers(along, expected, f"{problem.prefix}reverse derivative <J'u, v>")
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
                failures += findings.add_adjoint(self.compare.numbers(along, np.asarray(u @ tangents), what))
        return failures + findings.hints(outs)

    def _compare_pairs(
        self,
        problem: Problem,
        recorded: RecordedFunction,
        rows: list[Block],
        columns: list[Block],
        vs: Any,
        us: Any,
    ) -> list[str]:
        """Say for which output and input the reverse derivative is wrong, one pair at a time."""
        found = []
        gradients = [recorded.vjp(_zero_all_but(us, i)) for i in range(len(us))]
        for j, column in enumerate(columns):
            numeric = self._numeric(problem, _zero_all_but(vs, j))
            for i, row in enumerate(rows):
                by_reverse = np.asarray(flatten([gradients[i][j]]) @ flatten([vs[j]]))
                expected = np.asarray(flatten([us[i]]) @ flatten([numeric[i]]))
                found += self.compare.numbers(
                    by_reverse, expected, f"{problem.prefix}reverse derivative of {row.name} by {column.name}"
                )
        return found if len(rows) * len(columns) > 1 else []

    # ------------------------------------------------------------ the whole Jacobian

    def _compare_jacobians(
        self, problem: Problem, rows: list[Block], columns: list[Block], outs: list[Tensor], vs: Any, us: Any
    ) -> list[str]:
        prefix, failures, findings = problem.prefix, [], Findings(problem.prefix)
        height, width = (rows[-1].stop if rows else 0), columns[-1].stop
        numeric, forward = np.zeros((height, width)), np.zeros((height, width))
        zeros = [np.zeros_like(raw(problem.points[k])) for k in problem.argnums]
        column = 0
        for place, k in enumerate(problem.argnums):
            for direction in unit_arrays(problem.points[k]):
                one = [direction if j == place else zero for j, zero in enumerate(zeros)]
                numeric[:, column] = flatten(self._numeric(problem, one))
                if self.forward:
                    forward[:, column] = forward_derivative(problem, one)
                column += 1
        if self.forward:
            wrong = self.compare.matrices(forward, numeric, rows, columns, f"{prefix}forward Jacobian")
            findings.add_forward(forward, numeric, wrong)
            failures += wrong
        if self.backward:
            recorded = RecordedFunction(problem)

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
            wrong = self.compare.matrices(reverse, numeric, rows, columns, f"{prefix}reverse Jacobian")
            findings.add_reverse(reverse, numeric, wrong, rows, columns)
            failures += wrong
            if self.forward:
                what = f"{prefix}adjoint identity, reverse against forward Jacobian"
                failures += findings.add_adjoint(self.compare.matrices(reverse, forward, rows, columns, what))
        return failures + findings.hints(outs)

    # ------------------------------------------------------------ other properties of gradients

    def _check_repeatable(
        self,
        problem: Problem,
        recorded: RecordedFunction,
        outs: list[Tensor],
        us: Any,
        rows: list[Block],
        columns: list[Block],
    ) -> list[str]:
        """Check the shapes and dtypes of gradients, and that a second call and a second backward pass give the same.

        A call that is recorded may round differently: kernels may compute another way on plain arrays.
        """
        prefix, failures = problem.prefix, []
        for row, first, again in zip(rows, outs, recorded.outs, strict=True):
            a, b = on_host(again), on_host(first)
            # Numeric differences are not affected by less than this.
            tolerance = self.nondet + self.eps * self.compare.atol
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
            if not _are_close(on_host(two), on_host(one), self.nondet):
                failures.append(
                    f"- {prefix}backward is not deterministic: the gradient of {column.name} differs by "
                    f"{_distance(two, one):.3g} between two passes over one recording, "
                    f"more than nondet_tol={self.nondet}"
                )
        return failures

    def _check_missing(
        self,
        problem: Problem,
        recorded: RecordedFunction,
        rows: list[Block],
        columns: list[Block],
        us: Any,
        reverse: Any,
    ) -> list[str]:
        """Check that a cotangent that is left out counts as zeros, against the Jacobian computed with zeros."""
        failures = []
        for k, row in enumerate(rows):
            found, expected = flatten(recorded.vjp(us, missing=k)), flatten(_zero_one(us, k)) @ reverse
            failures += self.compare.vectors(
                found, expected, columns, f"{problem.prefix}{_MISSING_COTANGENT.format(row.name)},"
            )
        return failures

    def _check_missing_along(
        self, problem: Problem, recorded: RecordedFunction, rows: list[Block], v: Any, us: Any, numeric: Any
    ) -> list[str]:
        """Check that a cotangent that is left out counts as zeros, along one direction."""
        failures = []
        for k, row in enumerate(rows):
            found, expected = flatten(recorded.vjp(us, missing=k)) @ v, flatten(_zero_one(us, k)) @ numeric
            failures += self.compare.numbers(found, expected, f"{problem.prefix}{_MISSING_COTANGENT.format(row.name)}")
        return failures

    def _compare_batched(self, problem: Problem, blocks: list[Block], one: Any, *, backward: bool) -> list[str]:
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
            expected = flatten(of(*directions))
            found = flatten([raw(part)[k] for part in by_vmap])
            failures += self.compare.vectors(
                found, expected, blocks, f"{problem.prefix}batched {mode} derivative, vmap against a loop, example {k},"
            )
        return failures

    # ------------------------------------------------------------ numbers

    def _numeric(self, problem: Problem, vs: Any) -> list[Any]:
        # Derivatives of complex functions are not analytic, as they conjugate.
        complex_step = self.complex_step and not problem.prefix

        def shifted(step: complex) -> list[Any]:
            shifted_points = list(map(new_handle, problem.points))
            for k, v in zip(problem.argnums, vs, strict=True):
                shifted_points[k] = variable(raw(shifted_points[k]) + step * v)
            call = problem.func if complex_step else problem.call_checked
            return [raw(y) for _, y in problem.call_for_values(call, shifted_points)]

        if complex_step:
            h = 1e-30
            return [y.imag / h for y in shifted(1j * h)]
        return [(a - b) / (2 * self.eps) for a, b in zip(shifted(self.eps), shifted(-self.eps), strict=True)]


def _are_close(a: Any, b: Any, tolerance: float) -> bool:
    return bool((a == b).all()) or bool(np.allclose(a, b, rtol=0.0, atol=tolerance, equal_nan=True))


def _rounding(y: Tensor) -> float:
    """Return the size of rounding errors in an array."""
    precision = float(np.finfo(y.dtype).eps) if y.dtype.name != "bfloat16" else 2.0**-7
    finite = np.abs(on_host(y))
    return 64 * precision * float(np.max(finite, initial=0.0, where=np.isfinite(finite)))


def _distance(a: Any, b: Any) -> float:
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return float(np.max(np.abs(on_host(a) - on_host(b))))


def _zero_all_but(values: Sequence[Any], place: int) -> list[Any]:
    """Return the values with all but one replaced by zeros."""
    return [a if k == place else np.zeros_like(a) for k, a in enumerate(values)]


def _zero_one(values: Sequence[Any], place: int) -> list[Any]:
    """Return the values with one replaced by zeros."""
    return [np.zeros_like(a) if k == place else a for k, a in enumerate(values)]


# Reported where a left-out gradient does not count as zeros.
_MISSING_COTANGENT = "reverse derivative where {} is given no gradient, against one of zeros"
