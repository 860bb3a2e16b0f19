"""Conversions and copies of tracked Tensors: each keeps the gradient, says that it cuts it, raises, or warns."""

import array
import cmath
import copy
import dataclasses
import math
import operator
import pickle
import struct
import warnings
from math import isfinite

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, asarray, errors, forward_ad, functional, nn, no_grad, tensor, vmap
from gradmgr.compat import autograd

OUT = np.zeros(3)


def _stored(place):
    def store(t):
        out = np.zeros(3)
        out[place] = t
        return out

    return store


def _stored_in_buffer(t):
    buffer = array.array("d", [1.0])
    buffer[0] = t


# Of a Tensor without axes. What makes a number, what makes an array, and what makes neither: its derivative is 0, or
# it is kept.
NUMBERS = {
    "float": float,
    "complex": complex,
    "math.sin": math.sin,
    "cmath.exp": cmath.exp,
    "math.hypot": lambda t: math.hypot(t, 1.0),
    "math.fsum": lambda t: math.fsum([t, t]),
    "map": lambda t: list(map(float, [t, t])),
    "np.float64": np.float64,
    "array.array": lambda t: array.array("d", [t]),
    "struct.pack": lambda t: struct.pack("d", t),
    "math.atan2": lambda t: math.atan2(t, 1.0),
}
# Into an element of an array.
ELEMENTS = {
    "ndarray[0] = t": _stored(0),
    "ndarray of complex[0] = t": lambda t: operator.setitem(np.zeros(3, complex), 0, t),
    "ndarray.fill": lambda t: np.zeros(2).fill(t),
    "np.fromiter": lambda t: np.fromiter([t], float),
    "operator.setitem": lambda t: operator.setitem(np.zeros(2), 0, t),
    "array.array[0] = t": lambda t: _stored_in_buffer(t),
    "masked array": lambda t: np.ma.masked_array([1.0, 2.0]).__setitem__(0, t),
}
ARRAYS = {
    "np.asarray": np.asarray,
    "np.array": np.array,
    "np.array of a list": lambda t: np.array([t, t]),
    "np.array of a list and numbers": lambda t: np.array([1.0, t]),
    "np.array of rows": lambda t: np.array([[t], [t]]),
    "np.array of objects": lambda t: np.array([t, t], object),
    "np.float32": np.float32,
    "np.full": lambda t: np.full(3, t),
    "np.sum of a list": lambda t: np.sum([t, t]),
    "np.copyto": lambda t: np.copyto(np.zeros(3), t),
    "np.put": lambda t: np.put(np.zeros(3), 0, t),
    "ndarray += t": lambda t: operator.iadd(np.zeros(3), t),
    "np.add(out=)": lambda t: np.add(OUT, t, out=np.zeros(3)),
    "ndarray[:2] = t": _stored(slice(2)),
    "ndarray[mask] = t": _stored(np.array([True, False, True])),
    "ndarray[...] = t": _stored(...),
    "ndarray[[0, 1]] = t": _stored([0, 1]),
    "np.from_dlpack": np.from_dlpack,
    "gradmgr.from_dlpack": gradmgr.from_dlpack,
    "tensor": tensor,
    "Tensor": gradmgr.Tensor,
    "Parameter": nn.Parameter,
    "tensor of a list": lambda t: tensor([t, t]),
    "pickle": pickle.dumps,
}
NO_CUT = {
    "int": int,
    "bool": bool,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
    "round": round,
    "format": lambda t: f"{t:.3f}",
    "str": str,
    "repr": repr,
    "text % t": lambda t: "%.3f" % t,  # noqa: UP031  # this way of formatting is what is tested
    "text % (t,)": lambda t: "%.3f" % (t,),  # noqa: UP031  # as above
    "math.isnan": lambda t: math.isnan(t),  # by its name
    "isfinite": lambda t: isfinite(t),
    "math.isclose": lambda t: math.isclose(t, 2.0),
    "comparison": lambda t: t > 1,
    "hash": hash,
    "item": lambda t: t.item(),
    "numpy": lambda t: t.numpy(),
    "tolist": lambda t: t.tolist(),
    "detach": lambda t: t.detach(),
}


def _by_manager(f):
    x = tensor(2.0)
    with GradManager().attach(x):
        f(x * 1.0)


def _by_dual_level(f):
    with forward_ad.dual_level():
        f(forward_ad.make_dual(tensor(2.0), tensor(1.0)) * 1.0)


USERS = {"manager": _by_manager, "dual_level": _by_dual_level}


def _returning(f):
    def call(t):
        f(t * 1.0)
        return t * 1.0

    return call


TRANSFORMS = {
    "grad": lambda f: functional.grad(_returning(f))(2.0),
    "value_and_grad": lambda f: functional.value_and_grad(_returning(f))(2.0),
    "vjp": lambda f: functional.vjp(_returning(f), tensor(2.0)),
    "jvp": lambda f: functional.jvp(_returning(f), tensor(2.0), tensor(1.0)),
    "jacobian": lambda f: functional.jacobian(_returning(f), tensor(2.0)),
    "hessian": lambda f: functional.hessian(_returning(f), tensor(2.0)),
    "hvp": lambda f: functional.hvp(_returning(f), tensor(2.0), tensor(1.0)),
    "gradcheck": lambda f: gradmgr.gradcheck(_returning(f), tensor(2.0)),
    "autograd.grad": lambda f: autograd.grad(_returning(f))(2.0),
    "autograd.jacobian": lambda f: autograd.jacobian(_returning(f))(np.array(2.0)),
}


def _check_refused(use, convert):
    """Check that a conversion is refused: NumPy raises an error of its own from gradmgr's, and `struct` without it."""
    with pytest.raises((errors.TrackedConversionError, ValueError, struct.error)) as found:
        use(convert)
    error = found.value.__cause__ if type(found.value) is ValueError else found.value
    assert isinstance(error, (errors.TrackedConversionError, struct.error))
    return str(error)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("way", [*NUMBERS, *ARRAYS])
def test_a_conversion_raises_inside_a_transform(way, transform):
    _check_refused(TRANSFORMS[transform], (NUMBERS | ARRAYS)[way])


@pytest.mark.parametrize("way", [*NUMBERS, *ELEMENTS, *ARRAYS])
def test_a_conversion_raises_inside_vmap_of_a_gradient(way):
    convert = _returning((NUMBERS | ELEMENTS | ARRAYS)[way])
    with pytest.raises((errors.TrackedConversionError, errors.BatchedValueError, ValueError, struct.error)):
        vmap(functional.grad(convert))(np.array([2.0, 3.0]))


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("way", ARRAYS)
def test_a_conversion_to_an_array_raises_under_a_manager(way, user):
    with pytest.raises(errors.TrackedConversionError):
        USERS[user](ARRAYS[way])


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("way", NUMBERS)
def test_a_conversion_to_a_number_warns_under_a_manager(way, user):
    with pytest.warns(errors.TrackedConversionWarning, match=r"t\.item\(\) says that the cut is meant"):
        USERS[user](NUMBERS[way])


@pytest.mark.parametrize("user", [*USERS, *TRANSFORMS])
@pytest.mark.parametrize("way", NO_CUT)
def test_what_cuts_nothing_or_says_so_is_allowed(way, user):
    (USERS | TRANSFORMS)[user](NO_CUT[way])


@pytest.mark.parametrize("user", [*USERS, *TRANSFORMS])
@pytest.mark.parametrize("way", ELEMENTS)
def test_an_element_of_a_plain_array_cannot_be_assigned(way, user):
    assert "was about to be assigned" in _check_refused((USERS | TRANSFORMS)[user], ELEMENTS[way])


@pytest.mark.parametrize("user", [*USERS, *TRANSFORMS])
def test_numpy_has_its_own_error_for_an_element_of_a_flat_array(user):
    def store(t):
        np.zeros(3).flat[0] = t

    with pytest.raises(ValueError, match="single item of array"):
        (USERS | TRANSFORMS)[user](store)


@pytest.mark.parametrize("place", [slice(2), np.array([True, False, True]), [0, 1], ...], ids=str)
def test_the_error_of_an_assignment_to_several_elements_says_so(place):
    with pytest.raises(errors.TrackedConversionError, match=r"was about to be assigned.*gradmgr\.numpy\.stack"):
        _by_manager(_stored(place))


@pytest.mark.parametrize("way", NUMBERS | ELEMENTS | ARRAYS)
def test_nothing_is_said_where_nothing_is_cut(way):
    convert, x = (NUMBERS | ELEMENTS | ARRAYS)[way], tensor(2.0)
    gm = GradManager().attach(x)
    with gm:
        y = x * 1.0
        gm.backward(y)
    convert(y)  # its history is gone
    convert(x)
    with gm:
        convert(tensor(3.0) * 1.0)  # tracked by nothing
        y = x * 1.0
        with no_grad():
            convert(x)
            convert(y)
    functional.grad(lambda t: (convert(y), t)[1])(2.0)  # not what it differentiates


def test_a_number_warns_once_for_each_line():
    x = tensor(2.0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        with GradManager().attach(x):
            for _ in range(3):
                float(x)
            math.exp(x)
    lines = [(each.filename, each.lineno) for each in found]
    assert len(lines) == len(set(lines)) == 2
    assert {file for file, _ in lines} == {__file__}


def test_explain_names_the_lines_that_cut():
    x = tensor(2.0)
    gm = GradManager(with_stack=True).attach(x)
    with gm:
        with pytest.warns(errors.TrackedConversionWarning):
            y = asarray(math.sin(x))
        text = str(gm.explain(y)) + str(gm.explain(x))
    assert "float()" in text
    assert "y = asarray(math.sin(x))" in text


def test_explain_names_each_line_that_cut_a_part_of_a_gradient():
    def compute(x):
        y = x * x
        for _ in range(3):
            y = y + math.sin(x)
        y = y + complex(x).real
        f"{y:.3f} {y.item()} {int(y)}"
        return y

    x = tensor(2.0)
    gm = GradManager(with_stack=True).attach(x)
    with gm, warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.TrackedConversionWarning)
        gm.backward(compute(x))
    text = str(gm.explain(x))
    assert text.count("y = y + math.sin(x)") == 1
    assert text.count("y = y + complex(x).real") == 1
    assert "item()" not in text


def test_explain_names_all_lines_that_cut_a_whole_gradient():
    def compute(x):
        y = float(x)
        y = float(x) + y
        y = x.item() + y
        y = x.detach() + y
        return asarray(y)

    x = tensor(2.0)
    gm = GradManager(with_stack=True).attach(x)
    with gm, warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.TrackedConversionWarning)
        compute(x)
        text = str(gm.explain(x))
    for line in ("y = float(x)", "y = float(x) + y", "y = x.item() + y", "y = x.detach() + y"):
        assert f": {line}" in text


def test_each_manager_explains_what_was_cut():
    x = tensor(2.0)
    outer, inner = (GradManager(with_stack=True).attach(x) for _ in range(2))
    with outer, inner:
        with pytest.warns(errors.TrackedConversionWarning):
            y = x * math.exp(x)
        texts = [str(gm.explain(x)) for gm in (outer, inner)]
    assert y.item() > 0
    assert all("y = x * math.exp(x)" in text for text in texts)


# ---------------------------------------------------------------- copies


@dataclasses.dataclass
class _Pair:
    one: object
    two: object = None


WAYS = {
    "asarray": asarray,
    "asarray(copy=True)": lambda t: asarray(t, copy=True),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "copy.deepcopy of a list": lambda t: copy.deepcopy([t])[0],
    "dataclasses.replace": lambda t: dataclasses.replace(_Pair(t), two=1).one,
    "dataclasses.asdict": lambda t: dataclasses.asdict(_Pair(t))["one"],
    "dataclasses.astuple": lambda t: dataclasses.astuple(_Pair(t))[0],
    "clone": lambda t: t.clone(),
    "Tensor.copy": lambda t: t.copy(),
    "astype": lambda t: t.astype("float64"),
    "astype(copy=False)": lambda t: t.astype("float64", copy=False),
    "astype through float32": lambda t: t.astype("float32").astype("float64"),
    "to": lambda t: t.to("cpu"),
    "iteration": lambda t: gnp.stack(list(t)),
    "unpacking": lambda t: gnp.stack([*t]),
    "flat": lambda t: gnp.stack(list(t.flat)),
    "ravel": lambda t: t.ravel(),
    "flatten": lambda t: t.flatten(),
    "view of all": lambda t: t[:],
    "register_buffer": lambda t: _registered(t),
    "np.copy": np.copy,
    **{
        f"gnp.{name}": getattr(gnp, name)
        for name in ("array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "copy", "require")
        if hasattr(gnp, name)
    },
    "gnp.array of a list": lambda t: gnp.array([t])[0],
    "gnp.array of its elements": lambda t: gnp.array(list(t)),
    "gnp.asarray of two": lambda t: gnp.asarray([t, t])[1],
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),  # noqa: S301  # our own bytes
    "tensor": tensor,
    "Parameter": nn.Parameter,
    **{
        f"np.{name}": getattr(np, name)
        for name in ("array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "require")
    },
    "np.array of a list": lambda t: np.array([t])[0],
}


def _registered(t):
    module = nn.Module()
    module.register_buffer("b", t)
    return module.b


SOURCES = {"attached": lambda x: x, "a result": lambda x: x * 1.0}


@pytest.mark.parametrize(
    ("way", "source"),
    # A pickle of what is attached is a checkpoint that is written while a manager records.
    [(way, source) for way in WAYS for source in SOURCES if (way, source) != ("pickle", "attached")],
)
def test_a_copy_has_the_gradient_or_raises(way, source):
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        y = SOURCES[source](x)
        try:
            copied = WAYS[way](y)
        except errors.TrackedConversionError:
            return
        gm.backward(gnp.sum(y + copied))
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_in_a_transform_has_the_gradient_or_raises(way):
    x = np.array([1.0, 2.0])

    def f(t):
        return gnp.sum(t + WAYS[way](t))

    try:
        gradient, (_, tangent) = functional.grad(f)(x), functional.jvp(f, tensor(x), tensor([1.0, 0.0]))
    except errors.TrackedConversionError:
        return
    assert gradient.tolist() == [2.0, 2.0]
    assert tangent.item() == 2.0


def _same_values():
    """Return the functions of gradmgr.numpy and the methods of Tensor that return the values they are given."""
    a = np.array([1.5, -2.5])
    found = {}
    for owner, name in [*((gnp, name) for name in gnp.__all__), *((None, name) for name in dir(gradmgr.Tensor))]:
        if name.startswith("__") or name in {"empty_like", "detach", "detach_", "test"}:
            continue  # what was in memory, the cuts that say so, and the suite of NumPy
        function = getattr(gnp, name) if owner is gnp else lambda t, name=name: getattr(t, name)()
        if not callable(function) or isinstance(function, type):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = function(tensor(a))
            except Exception:  # noqa: S112  # it takes other arguments
                continue
        if isinstance(made, gradmgr.Tensor) and made.shape == (2,) and made.tolist() == a.tolist():
            found[f"{'gnp' if owner is gnp else 'Tensor'}.{name}"] = function
    return found


SAME_VALUES = _same_values()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", SAME_VALUES)
def test_what_returns_the_values_it_was_given_has_the_gradient_or_raises(name, source):
    x = tensor([1.5, -2.5])
    with GradManager().attach(x) as gm:
        y = SOURCES[source](x)
        try:
            same = SAME_VALUES[name](y)
        except errors.TrackedConversionError:
            return
        gm.backward(gnp.sum(y + same))
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_deepcopy_of_an_attached_tensor_is_a_variable_with_its_history():
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        other = same = copy.deepcopy(x)
        gm.attach(other)
        loss = gnp.sum(x * other)
        other *= 3.0
        gm.backward(loss)
    assert other is same
    assert x.tolist() == [1.0, 2.0]
    assert x.grad.tolist() == [2.0, 4.0]
    assert other.grad.tolist() == [1.0, 2.0]


def test_a_pickle_of_an_attached_tensor_has_no_history():
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        gm.backward(gnp.sum(x * pickle.loads(pickle.dumps(x))))  # noqa: S301  # our own bytes
    assert x.grad.tolist() == [1.0, 2.0]


def test_a_copied_layer_keeps_its_class_and_is_not_the_layer():
    layer = nn.Linear(2, 1, rng=np.random.default_rng(0))
    gm = GradManager().attach(layer.parameters())
    with gm:
        other = copy.deepcopy(layer)
        gm.backward(gnp.sum(layer(tensor([1.0, 2.0], "float32")) * 2 + other(tensor([1.0, 2.0], "float32"))))
    assert type(other.weight) is nn.Parameter
    assert layer.weight.grad.tolist() == [[2.0, 4.0]]
    assert other.weight.grad is None


def test_a_deepcopy_of_a_result_that_was_attached_has_the_gradient_of_what_it_was_made_of():
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        y = x * 3.0
        gm.attach(y)
        gm.backward(gnp.sum(y + copy.deepcopy(y)))
    assert x.grad.tolist() == [6.0, 6.0]
    assert y.grad.tolist() == [2.0, 2.0]


def test_a_deepcopy_of_a_parameter_that_was_written_keeps_its_history_and_class():
    p, factor = nn.Parameter([1.0, 2.0]), tensor(3.0)
    with GradManager().attach([p, factor]) as gm:
        p *= factor
        copied = copy.deepcopy(p)
        gm.backward(gnp.sum(copied))
    assert type(copied) is nn.Parameter
    assert factor.grad.item() == 3.0
    assert p.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda t: t.clone()])
def test_a_copy_is_differentiated_twice(way):
    x = tensor(3.0)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(way(x * x) * x)
        slope, x.grad = x.grad, None
        outer.backward(way(slope))
    assert slope.item() == 27.0
    assert x.grad.item() == 18.0


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_write_to_a_copy_leaves_the_tensor(way):
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        y = x * 1.0
        copied = way(y)
        copied[0] = 5.0
        assert y.tolist() == [1.0, 2.0]
        gm.backward(gnp.sum(y + copied))
    assert x.grad.tolist() == [1.0, 2.0]


def test_a_file_of_a_tracked_result_is_refused_and_one_of_what_is_attached_is_not(tmp_path):
    x = tensor([1.0, 2.0])
    with GradManager().attach(x):
        with pytest.raises(errors.TrackedConversionError, match=r"save: state\.y.*t\.detach\(\)"):
            gradmgr.save({"state": {"y": x * 2}}, tmp_path / "f")
        assert not list(tmp_path.iterdir())
        gradmgr.save({"x": x, "y": (x * 2).detach()}, tmp_path / "f")
    assert gradmgr.load(tmp_path / "f")["y"].tolist() == [2.0, 4.0]
