"""Every op, from the one table of samples: values, derivatives of two orders and more, dtypes, memory layouts."""

from __future__ import annotations

import warnings
from itertools import product
from operator import attrgetter
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import assert_allclose, each_case, tracks
from samples import CONSTANTS, CREATION, SAMPLES, Sample, flat, gradients, pop_gradient_array, seeds, tensors

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, gradcheck, tensor
from gradmgr._engine.context import recorders
from gradmgr._engine.entry import KINDS, VJPS
from gradmgr._engine.op import OPS
from gradmgr._engine.tape import Tape
from gradmgr._transforms import tensor_methods
from gradmgr._transforms.gradcheck import jvp

TOLERANCE = {"e": 2e-2, "f": 2e-5, "d": 1e-12, "F": 2e-5, "D": 1e-12}

REAL = [np.float64, np.float32, np.float16]
COMPLEX = [np.complex128, np.complex64]
BY_DTYPE = [(s, d) for s in SAMPLES for d in (REAL + COMPLEX if s.is_complex else REAL)]

each = each_case(SAMPLES)
each_dtype = each_case(BY_DTYPE)


def chosen(condition: Any) -> Any:
    """Run a check on the samples that fulfil a condition."""
    return each_case(filter(condition, SAMPLES))


def assert_same(found: Any, expected: Any) -> None:
    """Assert equal structure, shapes, dtypes and, to rounding, values."""
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = (t.numpy() if isinstance(t, Tensor) else np.asarray(t) for t in (a, b))
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.tobytes() == b.tobytes():  # as mostly
            continue
        tolerance = TOLERANCE.get(a.dtype.char, 0)
        assert_allclose(a, b, rtol=tolerance, atol=tolerance and tolerance * max(1.0, largest(b)))


def largest(a: np.ndarray) -> float:
    """The size of the largest finite element, 0 where there is none."""
    finite = np.abs(a[np.isfinite(a)])
    return float(finite.max()) if finite.size else 0.0


# ---------------------------------------------------------------- values


@each_dtype
def test_values_are_numpys(sample: Sample, dtype: Any) -> None:
    expected = sample.expected(*sample.make(dtype))
    points = tensors(sample, sample.make(dtype))
    assert_same(sample.call(gnp, *points), expected)
    attached = [points[k] for k in sample.where]
    with GradManager().attach(attached):
        found = sample.call(gnp, *points)
        assert all(isinstance(y, Tensor) for y in flat(found))
        assert_same(found, expected)
        with GradManager().attach(attached):
            assert_same(sample.call(gnp, *points), expected)
    for t, a in zip(points, sample.make(dtype), strict=True):  # the call left its arguments alone
        np.testing.assert_array_equal(t.numpy() if isinstance(t, Tensor) else t, a)


@chosen(lambda s: s.dispatches)
def test_numpys_functions_give_the_same_on_tensors(sample: Sample) -> None:
    points = tensors(sample, sample.make())
    with GradManager().attach([points[k] for k in sample.where]):
        ours, numpys = flat(sample.call(gnp, *points)), flat(sample.call(np, *points))
        assert all(isinstance(y, Tensor) for y in numpys)
        assert_same(numpys, ours)
        assert [is_tracked(y) for y in numpys] == [is_tracked(y) for y in ours]


def is_tracked(y: Tensor) -> bool:
    return all(rec.node_id_of(y) is not None for rec in recorders(gradmgr._engine.context.current()))


PLAIN_IN_TENSOR_OUT = ("full", "full_like", "linspace", "array", "asarray")  # creation functions


@chosen(lambda s: s.name not in PLAIN_IN_TENSOR_OUT and s.reference is None)
def test_plain_arrays_give_plain_arrays(sample: Sample) -> None:
    found = flat(sample.call(gnp, *sample.make()))
    assert all(isinstance(y, (np.ndarray, np.generic, complex)) for y in found)  # 1j * np.float64(2) is a complex
    assert_same(found, sample.call(np, *sample.make()))


# ---------------------------------------------------------------- derivatives


def checked(sample: Sample, dtype: Any, **options: Any) -> None:
    points = [tensor(a) if not arg.constant else a for arg, a in zip(sample.args, sample.make(dtype), strict=True)]
    assert gradcheck(lambda *given: sample.call(gnp, *given), points, **options)


# Up to so many columns, a Jacobian is compared entry by entry.
SMALL = 12


def columns(sample: Sample, dtype: Any) -> int:
    """Return how many columns a sample's Jacobian has: real numbers in the arguments that are differentiated."""
    arrays = sample.make(dtype)
    return sum(arrays[k].size * (1 + (arrays[k].dtype.kind == "c")) for k in sample.where)


def checked_at_first_order(sample: Sample, dtype: Any, **options: Any) -> None:
    """Check the whole Jacobian if it is small, else its products with random vectors.

    None of the vectors' elements is near 0, so that a wrong entry shows in each product. The whole ones are compared
    by test_large_jacobians.
    """
    if columns(sample, dtype) <= SMALL:
        checked(sample, dtype, **options)
    else:
        for seed in (1, 2):
            checked(sample, dtype, fast_mode=True, seed=seed, **options)


COMPLEX_STEP = {"complex_step": True, "atol": 1e-12, "rtol": 1e-10}


@chosen(lambda s: s.smooth and s.field != "analytic")
def test_derivatives_are_the_numeric_ones(sample: Sample) -> None:
    checked_at_first_order(sample, np.float64)


@chosen(lambda s: s.smooth and s.field == "analytic")
def test_derivatives_are_those_of_a_complex_step(sample: Sample) -> None:
    """To 10 digits; with differences, which give 5, the tests of second derivatives compare the first ones too."""
    checked_at_first_order(sample, np.float64, **COMPLEX_STEP)


@chosen(lambda s: s.smooth and s.is_complex)
def test_complex_derivatives_are_the_numeric_ones(sample: Sample) -> None:
    checked_at_first_order(sample, np.complex128)


@pytest.mark.slow  # the tests above, with all entries of large Jacobians in the place of their products with vectors
@chosen(lambda s: s.smooth)
def test_large_jacobians(sample: Sample) -> None:
    for dtype in (np.float64, np.complex128)[: 1 + sample.is_complex]:
        if columns(sample, dtype) > SMALL or sample.field == "analytic":
            checked(sample, dtype)
    if sample.field == "analytic":
        checked(sample, np.float64, **COMPLEX_STEP)


@chosen(lambda s: s.smooth and not s.third)
def test_second_derivatives_in_all_four_combinations(sample: Sample) -> None:
    checked(sample, np.float64, order=2, fast_mode=True)


@chosen(lambda s: s.smooth and s.is_complex)
def test_complex_second_derivatives_in_all_four_combinations(sample: Sample) -> None:
    checked(sample, np.complex128, order=2, fast_mode=True)


@chosen(lambda s: s.smooth and s.third)
def test_derivatives_up_to_the_third_in_all_eight_combinations(sample: Sample) -> None:
    checked(sample, np.float64, order=3, fast_mode=True)


@each
def test_forward_and_reverse_are_adjoint(sample: Sample) -> None:
    """Holds at kinks and ties, too, where there is no numeric derivative to compare with."""
    arrays = sample.make()
    points = tensors(sample, arrays)
    vs = seeds([points[k] for k in sample.where])
    tangents = jvp(lambda *given: flat(sample.call(gnp, *given)), points, sample.where, vs)
    us = seeds(flat(sample.call(gnp, *points)))
    forward = sum(np.sum(np.conj(u) * t.numpy()).real for u, t in zip(us, tangents, strict=True))
    reverse = sum(np.sum(np.conj(g) * v).real for g, v in zip(gradients(sample, arrays), vs, strict=True))
    assert_allclose(forward, reverse, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------- shapes, dtypes, layouts, managers


@each_dtype
def test_gradients_keep_shape_and_dtype(sample: Sample, dtype: Any) -> None:
    arrays = sample.make(dtype)
    found = gradients(sample, arrays)
    for k, g in zip(sample.where, found, strict=True):
        assert g.shape == arrays[k].shape
        assert g.dtype == arrays[k].dtype
    points = tensors(sample, arrays)
    outs = flat(sample.call(gnp, *points))
    vs = seeds([points[k] for k in sample.where])
    tangents = jvp(lambda *given: flat(sample.call(gnp, *given)), points, sample.where, vs)
    assert [(t.shape, t.dtype) for t in tangents] == [(y.shape, y.dtype) for y in outs]
    if dtype in (np.float32, np.complex64) and sample.smooth:  # nothing was lost on the way
        wide = gradients(sample, sample.make(np.float64 if dtype is np.float32 else np.complex128))
        for g, w in zip(found, wide, strict=True):
            assert_allclose(g, w, rtol=2e-4, atol=2e-4 * max(1.0, largest(np.asarray(w))))


def made_in_bfloat16(sample: Sample) -> list[np.ndarray]:
    return [a.astype(ml_dtypes.bfloat16) if a.dtype.kind == "f" else a for a in sample.make()]


def numpy_has_it_in_bfloat16(sample: Sample) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = flat(sample.expected(*made_in_bfloat16(sample)))
        except (TypeError, ValueError):
            return False
    return all(np.asarray(y).dtype == ml_dtypes.bfloat16 for y in results)


@chosen(numpy_has_it_in_bfloat16)
def test_bfloat16_stays_bfloat16(sample: Sample) -> None:
    expected = flat(sample.expected(*made_in_bfloat16(sample)))
    found = flat(sample.call(gnp, *tensors(sample, made_in_bfloat16(sample))))
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (np.shape(b), b.dtype)
        assert_allclose(a.numpy().astype(float), np.asarray(b, float), rtol=0.03, atol=0.03)
    arrays = made_in_bfloat16(sample)
    for k, g in zip(sample.where, gradients(sample, arrays), strict=True):
        assert (g.shape, g.dtype) == (arrays[k].shape, ml_dtypes.bfloat16)


@each_case([s for s in SAMPLES if len(s.where) > 1])
@pytest.mark.parametrize("other", [np.float16, np.float32, np.int64])
@pytest.mark.filterwarnings("ignore")
def test_bfloat16_beside_another_dtype_is_numbers_or_an_error(sample: Sample, other: Any) -> None:
    """NumPy has no common dtype for some of these, and then computes in Python's objects, which have no gradient."""
    for k in sample.where:
        arrays = [a.astype(other) if i in sample.where else a for i, a in enumerate(sample.make())]
        arrays[k] = arrays[k].astype(ml_dtypes.bfloat16)
        try:
            found = flat(sample.call(gnp, *[tensor(a) if i in sample.where else a for i, a in enumerate(arrays)]))
        except (TypeError, ValueError, ArithmeticError, IndexError, RuntimeError):
            continue
        assert all(y.dtype.kind != "O" for y in found)


def takes_two_dtypes(sample: Sample) -> bool:
    """Whether it has two arguments to differentiate, which meet in one result of the wider dtype."""
    written = sample.writes or sample.name == "Tensor.__setitem__" or "__i" in sample.name
    narrowed = any(keyword in sample.case for keyword in ("out=", "where=", "initial=", "ddof=", "several"))
    return sample.smooth and len(sample.where) == 2 and not (written or narrowed)


@each_case(product(filter(takes_two_dtypes, SAMPLES), [True, False]))
def test_arguments_of_two_dtypes(sample: Sample, narrow_first: bool) -> None:
    """Each gradient has its argument's dtype; that of the wider one is computed in the wider precision."""
    for narrow, wide in [(np.float32, np.float64)] + [(np.float64, np.complex128)] * sample.is_complex:
        narrowed = sample.where[0 if narrow_first else 1]
        arrays = sample.make(wide)
        arrays[narrowed] = arrays[narrowed].real.astype(narrow)
        of_narrow, of_wide = gradients(sample, arrays)[:: 1 if narrow_first else -1]
        assert (of_narrow.dtype, of_wide.dtype) == (narrow, wide)
        arrays[narrowed] = arrays[narrowed].astype(wide)
        expected_narrow, expected_wide = gradients(sample, arrays)[:: 1 if narrow_first else -1]
        if of_narrow.dtype.kind != expected_narrow.dtype.kind:
            expected_narrow = expected_narrow.real
        tolerance = TOLERANCE[np.dtype(narrow).char]
        assert_allclose(of_narrow, expected_narrow, rtol=tolerance, atol=tolerance)
        assert_allclose(of_wide, expected_wide, rtol=1e-12, atol=1e-12)


def strided(a: np.ndarray) -> np.ndarray:
    """The same values, every axis of them backwards and with gaps."""
    wide = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
    view = wide[tuple(slice(2 * n, 0, -2) for n in a.shape)] if a.ndim else wide
    view[...] = a
    return view


@each
def test_memory_layout_does_not_matter(sample: Sample) -> None:
    expected = gradients(sample, sample.make())
    for layout in (strided, lambda a: np.array(a, order="F")):
        arrays = [layout(a) for a in sample.make()]
        assert_same(sample.call(gnp, *tensors(sample, arrays)), sample.expected(*sample.make()))
        assert_same(gradients(sample, arrays), expected)


def gradients_of_two(sample: Sample, grouped: bool) -> list[list[Any]]:
    """The gradients that each of two managers gives, recording together."""
    points = tensors(sample, sample.make())
    attached = [points[k] for k in sample.where]
    first, second = GradManager().attach(attached), GradManager().attach(attached)
    found = []
    if grouped:
        (first | second).record()
    else:
        first.record()
        second.record()
    try:
        outs = [y for y in flat(sample.call(gnp, *points)) if tracks(first, y)]
        for manager in (second, first):
            manager.backward(outs, seeds(outs))
            found.append([pop_gradient_array(t) for t in attached])
    finally:
        first.release()
        second.release()
    return found


def through_reductions(sample: Sample) -> Any:
    """The sample's call, its 0-d arguments coming out of sums: NumPy then has scalars in the place of arrays."""

    def call(*given: Any) -> Any:
        given = [t.sum() if isinstance(t, Tensor) and t.ndim == 0 else t for t in given]
        return sample.call(gnp, *given)

    return call


@chosen(lambda s: s.smooth and any(arg.shape == () for arg in s.args))
def test_results_of_reductions_serve_as_arguments(sample: Sample) -> None:
    for dtype in COMPLEX[: sample.is_complex] + REAL[:1]:
        points = tensors(sample, sample.make(dtype))
        assert_same(through_reductions(sample)(*points), sample.expected(*sample.make(dtype)))
        assert gradcheck(through_reductions(sample), points, order=2, fast_mode=True)


@each_case(product(SAMPLES, [False, True]))
def test_two_managers_give_what_one_gives(sample: Sample, grouped: bool) -> None:
    expected = gradients(sample, sample.make())
    for found in gradients_of_two(sample, grouped):
        assert_same(found, expected)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_initial_is_cast_to_the_dtype_of_the_result(name: str) -> None:
    for values, initial in ((np.arange(3), 2.5), (np.arange(3), np.float64(2.5)), (np.float32([1, 2]), np.array(2.5))):
        expected = getattr(np, name)(values, initial=initial)
        for xp in (gnp, np):
            assert_same(getattr(xp, name)(tensor(values), initial=initial), expected)


# ---------------------------------------------------------------- functions without gradient


@pytest.mark.parametrize(("name", "call"), [(n, c) for n, calls in CONSTANTS.items() for c in calls])
def test_constants_are_numpys_and_untracked(name: str, call: Any) -> None:
    random = np.random.default_rng(1)
    arrays = [np.round(random.uniform(-2, 2, (3, 4))) for _ in range(2)]
    expected = call(np, *arrays)
    points = [tensor(a) for a in arrays]
    with GradManager().attach(points):
        for xp in (gnp, np):
            found = call(xp, *points)
            assert_same(found, expected)
            assert not any(is_tracked(y) for y in flat(found) if isinstance(y, Tensor))
    assert_same(call(gnp, *arrays), expected)


@pytest.mark.parametrize(("name", "call"), [(n, c) for n, calls in CREATION.items() for c in calls])
def test_creation_gives_tensors_of_numpys_values(name: str, call: Any) -> None:
    found = call(gnp)
    assert isinstance(found, Tensor)
    if name != "empty":
        assert_same(found, call(np))


# ---------------------------------------------------------------- the table is complete


class LoggingNamespace:
    """gradmgr.numpy, which logs what functions are looked up in it, in linalg and fft too."""

    def __init__(self, namespace: Any = gnp, prefix: str = "", asked: set[str] | None = None) -> None:
        self.namespace, self.prefix = namespace, prefix
        self.asked: set[str] = set() if asked is None else asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.namespace, name)
        if isinstance(found, ModuleType) and found.__name__.startswith("gradmgr"):
            return LoggingNamespace(found, f"{self.prefix}{name}.", self.asked)
        self.asked.add(self.prefix + name)
        return found


def public_function(name: str) -> Any:
    return attrgetter(name)(gnp)


ABOUT_DTYPES = ("__array_namespace_info__", "finfo", "iinfo")  # see test_array_api


def own_public_functions() -> set[str]:
    """Return the names of gradmgr's own functions in gradmgr.numpy, linalg and fft; others are NumPy's, unchanged."""
    found = set()
    for prefix, module in (("", gnp), ("linalg.", gnp.linalg), ("fft.", gnp.fft)):
        for name in module.__all__:
            thing = getattr(module, name)
            ours = str(getattr(thing, "__module__", "")).startswith("gradmgr")
            found |= {prefix + name} if ours and callable(thing) and name not in ABOUT_DTYPES else set()
    return found


def test_every_function_has_a_sample() -> None:
    tried, elsewhere = set(), ("Tensor.", "special.", "sparse.", "nn.", "engine.")
    for sample in SAMPLES:
        namespace = LoggingNamespace()
        sample.call(namespace, *tensors(sample, sample.make()))
        if not sample.name.startswith(elsewhere):
            assert sample.name in namespace.asked, f"sample {sample} does not call what it names"
        tried |= {public_function(name) for name in namespace.asked}
    named = {
        public_function(s.name)
        for s in SAMPLES
        if not s.name.startswith(("Tensor.", "special.", "sparse.", "nn.", "engine."))
    }
    assert named <= tried
    without_gradient = set(CONSTANTS) | set(CREATION)
    lacking = {n for n in own_public_functions() if public_function(n) not in named and n not in without_gradient}
    assert not lacking, f"functions of gradmgr.numpy without a sample: {sorted(lacking)}"
    special_names = {n for n in gradmgr.special.__all__ if not any(s.name == f"special.{n}" for s in SAMPLES)}
    assert not special_names, f"functions of gradmgr.special without a sample: {sorted(special_names)}"
    classes = {"RowSparse", "SparseArray", "SuperLU"}  # what embedding, with_data and splu give
    sparse_names = set(gradmgr.sparse.__all__) - classes - {s.name.removeprefix("sparse.") for s in SAMPLES}
    assert not sparse_names, f"functions of gradmgr.sparse without a sample: {sorted(sparse_names)}"


# Members of Tensor that give no Tensor that could be differentiated, or none at all.
NOT_DIFFERENTIABLE = {
    *("__firstlineno__", "__static_attributes__"),  # CPython 3.13's own
    *("all", "any", "argmax", "argmin", "argpartition", "argsort", "nonzero", "searchsorted"),
    *("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "device", "grad", "grad_fn", "is_leaf", "requires_grad"),
    "is_sparse",
    *("numpy", "cupy", "item", "tolist", "detach"),
    # The history: engine/test_graph.py and engine/test_hooks.py. In-place methods: engine/test_in_place_methods.py.
    *("backward", "data", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "retains_grad"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__invert__"),
    *(f"__{r}{name}__" for r in ("", "r", "i") for name in ("and", "or", "xor", "lshift", "rshift")),
    *(
        "__contains__",
        "__len__",
        "__hash__",
        "__repr__",
        "__str__",
        "__format__",
        "__reduce__",
        "__copy__",
        "__deepcopy__",
        "__init__",
    ),
    *("__float__", "__int__", "__complex__", "__bool__", "__index__", "__doc__", "__module__", "__slots__"),
    *("__floor__", "__ceil__", "__trunc__"),
    *(
        "__array__",
        "__array_namespace__",
        "__array_ufunc__",
        "__array_function__",
        "__cupy_override_elementwise_kernel__",
    ),
    *(
        "__dlpack__",
        "__dlpack_device__",
        "to_device",
        "__annotations__",
        "__weakref__",
        "_array",
        "_hooks",
        "_grad",
        "_node_id",
        "_overflow_ids",
        "_view_of",
        "_rec",
        "_check_grad",
        "_check_saved",
        "_check_uncut",
        "_like",
    ),
}


def logged_member(member: Any, log: Any) -> Any:
    if isinstance(member, property):
        return property(lambda self: (log(), member.fget(self))[1])
    return lambda self, *args, **keywords: (log(), member(self, *args, **keywords))[1]


def test_every_member_of_tensor_has_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    in_place = {name for name in vars(Tensor) if name.endswith("_") and not name.startswith("_")}
    left_out = NOT_DIFFERENTIABLE | in_place
    left_out |= {"__dir__", "__delitem__", *tensor_methods._REPLACEMENTS}  # these only raise, or list
    left_out |= {"_guarded", "_read_array", "_unguarded", "__init_subclass__"}  # see write_lock
    left_out.add("_value")  # added by compat.autograd, where that is imported
    members = {name: member for name, member in vars(Tensor).items() if name not in left_out}
    asked: set[str] = set()
    for name, member in members.items():
        monkeypatch.setattr(Tensor, name, logged_member(member, lambda n=name: asked.add(n)))
    named = set()
    for sample in SAMPLES:
        kind, _, name = sample.name.partition(".")
        if kind == "Tensor":
            asked.clear()
            sample.call(gnp, *tensors(sample, sample.make()))
            named |= asked & {name}
    lacking = set(members) - named
    assert not lacking, f"members of Tensor without a sample: {sorted(lacking)}"


def codes_recorded(sample: Sample) -> set[str]:
    """What one call, and its derivative, put on a tape: an op's name and, where it matters, its tracked inputs."""
    points = tensors(sample, sample.make())
    attached = [points[k] for k in sample.where]
    outer, inner = GradManager().attach(attached), GradManager().attach(attached)
    with outer, inner:
        outs = [y for y in flat(sample.call(gnp, *points)) if tracks(inner, y)]
        cotangents = [tensor(u) for u in seeds(outs)]
        outer.attach(cotangents)
        inner.backward(outs, cotangents)
        codes = {entry[0] for entry in outer._tape.entries}
        del outs
    return codes


def test_every_op_has_a_sample() -> None:
    recorded = set().union(*map(codes_recorded, SAMPLES))
    elsewhere = {name for name in OPS if name.startswith("distributed.")}  # they need ranks: test_distributed.py
    lacking = set(OPS) - {KINDS[code].op for code in recorded} - elsewhere
    assert not lacking, f"ops without a sample: {sorted(lacking)}"
    # attach() of an intermediate, below; increment_version(); what has a test file of its own.
    without_op = {"attach", "stale", "Function", "Function.unrecorded", "custom_op", "checkpoint", "checkpoint.failed"}
    without_op |= {"capture", "checkpoint.result", "constant", "primitive", "unrecorded step"}
    entered = {code for code in VJPS if not code.endswith(".packed")}  # by saved_tensors_hooks, where first used
    lacking = entered - recorded - without_op - elsewhere
    assert not lacking, f"reverse rules without a sample: {sorted(lacking)}"


def through_an_attached_intermediate(x: Tensor) -> Tensor:
    y = x * x
    for tape in recorders(gradmgr._engine.context.current()):
        if isinstance(tape, Tape):
            tape.add_leaf(y)
    return gnp.sin(y) * y


def test_an_attached_intermediate_passes_its_gradient_on() -> None:
    assert gradcheck(through_an_attached_intermediate, tensor([0.5, -1.5]), order=3)
