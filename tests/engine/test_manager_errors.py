"""Bad input to a GradManager: the exception's type, that its text names the thing and the remedy, nothing changed."""

import re
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import identity

import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, nn, no_grad, tensor
from gradmgr._engine.entry import VJPS


@contextmanager
def rejected(kind, *texts):
    """Expect an exception of the builtin `kind` whose text matches every one of `texts`."""
    with pytest.raises(kind) as caught:
        yield caught
    said = str(caught.value)
    for text in texts:
        assert re.search(text, said), f"{text!r} is not in {said!r}"


@pytest.fixture
def x():
    made = tensor([3.0, 4.0])
    made.grad = tensor([10.0, 20.0])
    return made


@pytest.fixture
def gm(x):
    """A manager that records, with something on its tape."""
    manager = GradManager().attach({"x": x}, identity)
    with manager:
        x * x
        yield manager


# ---------------------------------------------------------------- the types themselves


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.RecordingError, RuntimeError),
        (errors.NotRecordedError, RuntimeError),
        (errors.StaleValueError, RuntimeError),
        (errors.CallbackError, TypeError),
        (errors.DtypeError, TypeError),
        (errors.MixedArraysError, TypeError),
        (errors.ShapeError, ValueError),
    ],
)
def test_every_error_class_derives_from_gradmgr_error_and_from_a_builtin(kind, builtin):
    assert issubclass(kind, builtin)
    assert issubclass(kind, errors.GradmgrError)


# ---------------------------------------------------------------- attach


NOT_TENSORS = {
    "a number": (1.0, "float"),
    "None": (None, "NoneType"),
    "an array": (np.ones(3), "ndarray"),
    "a NumPy number": (np.float64(1), "float64"),
    "a manager": (GradManager(), "GradManager"),
}


@pytest.mark.parametrize("what", NOT_TENSORS)
def test_attaching_what_is_no_tensor(what, gm, x, unchanged):
    value, name = NOT_TENSORS[what]
    with unchanged([gm], [x]), rejected(TypeError, "attach", "element 0", name, r"gradmgr\.tensor"):
        gm.attach(value)


@pytest.mark.parametrize("what", NOT_TENSORS)
def test_attaching_what_is_no_tensor_among_tensors(what, gm, x, unchanged):
    value, name = NOT_TENSORS[what]
    new = tensor([1.0])
    with unchanged([gm], [x, new]), rejected(TypeError, "element 2", name, r"gradmgr\.tensor"):
        gm.attach([new, x, value], identity)


def test_attaching_a_string(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(TypeError, "element 0", "str"):
        gm.attach("weights")


def test_attaching_what_is_no_tensor_in_a_mapping_names_it(gm, x, unchanged):
    new = tensor([1.0])
    with unchanged([gm], [x, new]), rejected(TypeError, "'bias'", "ndarray", r"gradmgr\.tensor"):
        gm.attach({"weight": new, "bias": np.ones(3)})


WRONG_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint64", "longdouble", "clongdouble"]


@pytest.mark.parametrize("dtype", WRONG_DTYPES)
def test_attaching_a_dtype_that_cannot_have_a_gradient(dtype, gm, x, unchanged):
    new, wrong = tensor([1.0]), tensor(np.zeros((2, 3), dtype))
    said = re.escape(str(np.dtype(dtype)))
    with unchanged([gm], [x, new]), rejected(TypeError, "element 1", r"\(2, 3\)", said, "float32", "astype") as caught:
        gm.attach([new, wrong])
    assert isinstance(caught.value, errors.DtypeError)


@pytest.mark.parametrize("dtype", ["object", "U3", "S3", "datetime64[s]", "timedelta64[s]", [("a", "f4"), ("b", "f8")]])
def test_what_is_not_a_number_does_not_become_a_tensor(dtype):
    with rejected(TypeError, "numbers", "dtype"):
        tensor(np.zeros(2, dtype))


def test_attaching_a_wrong_dtype_in_a_mapping_names_it(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(TypeError, "'labels'", r"\(3,\)", "int64", "astype"):
        gm.attach({"labels": tensor([1, 2, 3])})


def test_attaching_from_an_iterator_that_was_used_up(gm, x, unchanged):
    used = iter([x])
    list(used)
    with unchanged([gm], [x]), rejected(ValueError, "attach", "no tensor left", "make it anew"):
        gm.attach(used)
    gm.attach([])


def test_attaching_from_a_generator_that_fails(gm, x, unchanged):
    def parameters():
        yield new
        raise LookupError("mine")

    new = tensor([1.0])
    with unchanged([gm], [x, new]), rejected(LookupError, "mine"):
        gm.attach(parameters())


@pytest.mark.parametrize("keyword", ["callbacks", "callback"])
@pytest.mark.parametrize("wrong", [3, "double", [identity, 3], [None]])
def test_attaching_a_callback_that_cannot_be_called(keyword, wrong, gm, x, unchanged):
    new = tensor([1.0])
    with unchanged([gm], [x, new]), rejected(TypeError, "callback", r"cb\(tensor, grad\)", "int|str|NoneType"):
        gm.attach([new, x], **{keyword: wrong})


def test_attaching_with_callbacks_given_twice(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(TypeError, "callbacks=", "callback=", "one list"):
        gm.attach(tensor([1.0]), [identity], callback=identity)


def test_attaching_with_callbacks_from_a_generator_that_fails(gm, x, unchanged):
    def callbacks():
        yield identity
        raise LookupError("mine")

    with unchanged([gm], [x]), rejected(LookupError, "mine"):
        gm.attach(x, callbacks())


def test_attaching_where_the_warning_is_made_an_error_changes_nothing(gm, x, unchanged):
    new = tensor([1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unchanged([gm], [x, new]), rejected(RuntimeWarning, "attached again", r"\(2,\)|'x'"):
            gm.attach([new, x], identity)


def test_a_rejected_attach_leaves_the_recording_usable(gm, x):
    y = x * x
    with rejected(TypeError):
        gm.attach([x, tensor([1])])
    gm.backward(y.sum())
    assert x.grad.tolist() == [16.0, 28.0]


# ---------------------------------------------------------------- detach, register


def test_detaching_what_is_no_tensor(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(TypeError, "detach", "element 1", "ndarray"):
        gm.detach([x, np.ones(3)])


def test_detaching_what_is_not_attached(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(ValueError, "detach", r"\(3, 4\)", "float32", "not attached"):
        gm.detach([x, tensor(np.ones((3, 4)), dtype="float32")])


def test_detaching_what_is_not_attached_says_which(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(ValueError, "element 1|'second'"):
        gm.detach([x, tensor([3.0, 4.0])])
    with unchanged([gm], [x]), rejected(ValueError, "'second'"):
        gm.detach({"first": x, "second": tensor([3.0, 4.0])})


def test_detaching_twice(x, unchanged):
    gm = GradManager().attach(x)
    gm.detach(x)
    with unchanged([gm], [x]), rejected(ValueError, "not attached"):
        gm.detach(x)


@pytest.mark.parametrize("wrong", [None, 3, "f"])
def test_registering_what_cannot_be_called(wrong, gm, x, unchanged):
    with (
        unchanged([gm], [x]),
        rejected(TypeError, "register_after_backward_callback", "function", type(wrong).__name__),
    ):
        gm.register_after_backward_callback(wrong)


# ---------------------------------------------------------------- record


def test_recording_twice(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(RuntimeError, r"record\(\)", "already", r"release\(\)", "second GradManager"):
        gm.record()


def test_recording_twice_by_with(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(RuntimeError, "already"), gm:
        pytest.fail("entered")


def test_recording_twice_leaves_the_recording_usable(gm, x):
    y = x * x
    with rejected(RuntimeError):
        gm.record()
    gm.backward(y.sum())
    assert x.grad.tolist() == [16.0, 28.0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_recording_a_group_of_which_one_records_already_records_none(place, gm, x, unchanged):
    members = [GradManager().attach(x), GradManager().attach(x)]
    members.insert(place, gm)
    group = members[0] | members[1] | members[2]
    with unchanged(members, [x]), rejected(RuntimeError, "already"):
        group.record()


# ---------------------------------------------------------------- groups


def test_a_manager_cannot_be_in_a_group_twice(unchanged):
    a, b = GradManager(), GradManager()
    with unchanged([a, b], []):
        for make in (lambda: a | a, lambda: a | b | a, lambda: (a | b) | (b | a)):
            with rejected(ValueError, "twice", "once"):
                make()


@pytest.mark.parametrize("other", [None, 3, "gm", [GradManager()]])
def test_a_group_accepts_managers_only(other):
    with rejected(TypeError, r"\|", type(other).__name__):
        GradManager() | other


# ---------------------------------------------------------------- backward: not recording


def test_backward_without_record(x, unchanged):
    gm = GradManager().attach(x)
    with unchanged([gm], [x]), rejected(RuntimeError, r"backward\(\)", "idle", r"record\(\)"):
        gm.backward(x)


def test_backward_after_release(x, unchanged):
    gm = GradManager().attach(x)
    with gm:
        y = (x * x).sum()
    with unchanged([gm], [x]), rejected(RuntimeError, "idle", "released"):
        gm.backward(y)


def test_a_second_backward_without_retain(x, unchanged):
    gm = GradManager().attach(x)
    with gm:
        y = (x * x).sum()
        gm.backward(y)
        with unchanged([gm], [x]), rejected(RuntimeError, "idle", "retain=True"):
            gm.backward(y)


def test_a_second_backward_of_what_keeps_nothing_is_an_error_too(x, unchanged):
    gm = GradManager().attach(x)
    with gm:
        y = x.sum()  # needs no saved value; another library would allow it
        gm.backward(y)
        with unchanged([gm], [x]), rejected(RuntimeError, "retain=True"):
            gm.backward(y)


@pytest.mark.parametrize("y", [None, []])
def test_backward_of_nothing_needs_a_recording_too(y, x, unchanged):
    gm = GradManager().attach(x)
    with unchanged([gm], [x]), rejected(RuntimeError, "idle"):
        gm.backward(y)


# ---------------------------------------------------------------- backward: y


@pytest.mark.parametrize("wrong", [3.0, np.ones(2), "loss", {"loss": 1}])
def test_y_is_no_tensor(wrong, gm, x, unchanged):
    with unchanged([gm], [x]), rejected(TypeError, "backward", "Tensor", "number 0", type(wrong).__name__):
        gm.backward(wrong)


def test_y_is_no_tensor_among_tensors(gm, x, unchanged):
    y = x.sum()
    with unchanged([gm], [x, y]), rejected(TypeError, "number 1", "ndarray"):
        gm.backward([y, np.ones(2), y])


def before_record(gm, x):
    gm.release()
    y = x.sum()
    gm.record()
    return y


def before_attach(gm, x):
    late = tensor([1.0])
    y = late.sum()
    gm.attach(late)
    return y


def under_no_grad(gm, x):
    with no_grad():
        return x.sum()


def of_nothing_attached(gm, x):
    return tensor([1.0]).sum()


def cut_by_detach(gm, x):
    return x.detach().sum()


def cut_by_an_integer(gm, x):
    return x.astype("int64").sum()


def made_by_another_backward(gm, x):
    inner = GradManager().attach(x)
    gm.release()
    with inner:
        gm.record()
        x.grad = None
        inner.backward((x * x).sum())
        return x.grad.sum()


def overwritten(gm, x):
    y = x.sum()
    with no_grad():
        y *= 2
    return y


REASONS = {
    before_record: r"before record\(\)",
    before_attach: r"before .*attach\(\)",
    under_no_grad: "no_grad",
    of_nothing_attached: "nothing that is attached",
    cut_by_detach: r"detach\(\)",
    cut_by_an_integer: "integer",
    made_by_another_backward: "another manager's backward",
    overwritten: "overwritten",
}


@pytest.mark.parametrize("make", REASONS, ids=lambda make: make.__name__)
def test_an_untracked_y_is_refused(make, gm, x, unchanged):
    y = make(gm, x)
    about = "backward", "number 0", r"shape \(\)", str(y.dtype), REASONS[make]
    with unchanged([gm], [x, y]), rejected(RuntimeError, *about) as caught:
        gm.backward(y)
    assert isinstance(caught.value, errors.NotRecordedError)


def test_an_untracked_y_among_tracked_ones_is_refused(gm, x, unchanged):
    y, untracked = x.sum(), tensor(1.0, dtype="float32")
    with unchanged([gm], [x, y]), rejected(RuntimeError, "number 1", "float32"):
        gm.backward([y, untracked, y])


def test_a_rejected_y_leaves_the_recording_usable(gm, x):
    y = (x * x).sum()
    for wrong in (tensor(1.0), 3, [y, tensor(1.0)]):
        with pytest.raises((RuntimeError, TypeError)):
            gm.backward(wrong)
    gm.backward(y)
    assert x.grad.tolist() == [16.0, 28.0]


# ---------------------------------------------------------------- backward: dy


@pytest.mark.parametrize("shape", [(2,), (3, 1), (0,), (1, 0)])
def test_dy_omitted_for_other_than_one_number(shape, unchanged):
    x = tensor(np.ones(shape))
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        about = "without dy", "one real number", re.escape(str(shape)), "float64", r"sum\(\)", "pass dy"
        with unchanged([gm], [x, y]), rejected(ValueError, *about):
            gm.backward(y)


def test_dy_omitted_for_a_complex_number(unchanged):
    x = tensor([1.0 + 2.0j])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        with unchanged([gm], [x, y]), rejected(ValueError, "one real number", "complex128", "dy"):
            gm.backward(y)


def test_dy_omitted_for_the_second_of_two(gm, x, unchanged):
    y, z = x.sum(), x * x
    with unchanged([gm], [x, y, z]), rejected(ValueError, "number 1", r"\(2,\)", "one real number"):
        gm.backward([y, z])


def test_dy_none_in_a_list_for_other_than_one_number(gm, x, unchanged):
    y, z = x * 2, x * x
    with unchanged([gm], [x, y, z]), rejected(ValueError, "number 1", r"\(2,\)", "one real number"):
        gm.backward([y, z], [np.ones(2), None])


def test_dy_none_in_a_list_for_one_number(gm, x):
    gm.backward([x.sum(), x * x], [None, np.ones(2)])
    assert x.grad.tolist() == [10 + 1 + 6.0, 20 + 1 + 8.0]


@pytest.mark.parametrize(
    ("make", "dys", "said"),
    [
        (lambda x: x * x, [np.ones(2), np.ones(2)], "1 y.*2 dy"),
        (lambda x: [x * x, x * x], np.ones(2), "2 y.*1 dy"),
        (lambda x: [x * x, x * x], [np.ones(2)], "2 y.*1 dy"),
        (lambda x: [x * x], [], "1 y.*0 dy"),
        (lambda x: [], [np.ones(2)], "0 y.*1 dy"),
    ],
)
def test_a_wrong_number_of_dy(make, dys, said, gm, x, unchanged):
    y = make(x)
    with unchanged([gm], [x]), rejected(ValueError, "backward", said, "one dy for each y"):
        gm.backward(y, dys)


def test_dy_without_y(gm, x, unchanged):
    with unchanged([gm], [x]), rejected(ValueError, "dy", "without"):
        gm.backward(None, np.ones(2))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1), (0,)])
def test_dy_of_a_wrong_shape_though_it_could_be_broadcast(shape, gm, x, unchanged):
    y = x * x
    dy = np.ones(shape)
    with unchanged([gm], [x, y]), rejected(ValueError, "dy", r"\(2,\)", re.escape(str(shape))) as caught:
        gm.backward(y, dy)
    assert isinstance(caught.value, errors.ShapeError)


def test_dy_of_a_wrong_shape_says_of_which_y(gm, x, unchanged):
    y = x * x
    with unchanged([gm], [x, y]), rejected(ValueError, "number 2", r"\(3,\)"):
        gm.backward([y, y, y], [np.ones(2), np.ones(2), np.ones(3)])


def test_a_complex_dy_for_a_real_y(gm, x, unchanged):
    y = x * x
    with unchanged([gm], [x, y]), rejected(TypeError, "dy", "complex128", "float64", "real part") as caught:
        gm.backward(y, np.ones(2, complex))
    assert isinstance(caught.value, errors.DtypeError)


def test_a_wrong_dtype_of_dy_says_of_which_y(gm, x, unchanged):
    y = x * x
    with unchanged([gm], [x, y]), rejected(TypeError, "number 1", "complex128"):
        gm.backward([y, y], [np.ones(2), np.ones(2, complex)])


@pytest.mark.parametrize(
    "dy",
    [
        np.array(["1", "2"]),
        np.array([b"1", b"2"]),
        np.array([1.0, None]),
        np.array([1, 2], "datetime64[s]"),
        np.array([1, 2], "timedelta64[s]"),
        np.zeros(2, [("a", "f4"), ("b", "f8")]),
        np.zeros(2, "V8"),
    ],
    ids=lambda dy: str(dy.dtype),
)
def test_a_dy_that_is_no_number(dy, gm, x, unchanged):
    y = x * x
    with unchanged([gm], [x, y]), rejected(TypeError, "dy", re.escape(str(dy.dtype))) as caught:
        gm.backward(y, dy)
    assert isinstance(caught.value, errors.DtypeError)


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("dy", [object(), {"a": 1}, "text", b"text", GradManager()])
def test_a_dy_that_is_no_array(dy, summed, gm, x, unchanged):
    y = x.sum() if summed else x * x
    with unchanged([gm], [x, y]), rejected(TypeError, "dy"):
        gm.backward(y, dy)


def test_a_later_dy_is_checked_before_an_earlier_one_does_anything(gm, x, unchanged):
    y, z = x * x, x.sum()
    dy = np.ones(2)
    with unchanged([gm], [x, y, z]), rejected(ValueError, "dy"):
        gm.backward([y, z], [dy, np.ones(5)])
    assert dy.tolist() == [1.0, 1.0]


def test_a_rejected_dy_leaves_the_recording_usable(gm, x):
    y = x * x
    for wrong in (None, np.ones(3), np.ones(2, complex), [np.ones(2)] * 2):
        with pytest.raises((ValueError, TypeError)):
            gm.backward(y, wrong)
    gm.backward(y, np.ones(2))
    assert x.grad.tolist() == [16.0, 28.0]


def test_a_rejected_backward_under_an_outer_manager_leaves_both_recording(gm, x, unchanged):
    outer, inner = gm, GradManager().attach(x)
    with inner:
        y = x * x
        with unchanged([outer, inner], [x, y]), rejected(ValueError, "one real number"):
            inner.backward(y)


# ---------------------------------------------------------------- callbacks that give the wrong thing


def gives_a_number(t, grad):
    return 1.0


def gives_an_array(t, grad):
    return grad.numpy()


def gives_another_shape(t, grad):
    return grad.sum()


def gives_another_dtype(t, grad):
    return grad.astype("float32")


class GivesAList:
    def __call__(self, t, grad):
        return [grad]


class Future:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


def gives_a_future_of_none(t, grad):
    return Future(None)


def gives_a_future_of_another_shape(t, grad):
    return Future(grad.sum())


WRONG_RESULTS = [
    (gives_a_number, TypeError, ["gives_a_number", "float", "Tensor", "None to keep the gradient"]),
    (gives_an_array, TypeError, ["gives_an_array", "ndarray", "Tensor"]),
    (gives_another_shape, ValueError, ["gives_another_shape", r"shape \(\)", r"\(2,\)"]),
    (gives_another_dtype, TypeError, ["gives_another_dtype", "float32", "float64"]),
    (GivesAList(), TypeError, ["GivesAList", "list", "Tensor"]),
    (gives_a_future_of_none, TypeError, ["future", "gives_a_future_of_none", "None"]),
    (gives_a_future_of_another_shape, ValueError, ["future", "gives_a_future_of_another_shape", r"shape \(\)"]),
]


@pytest.mark.parametrize(("callback", "kind", "texts"), WRONG_RESULTS)
def test_a_callback_that_returns_the_wrong_thing_is_an_error(callback, kind, texts, x):
    held = x.grad
    other = tensor([1.0, 1.0])
    gm = GradManager().attach(other, identity).attach({"weight": x}, [identity, callback])
    with gm, rejected(kind, "callback", *texts, "'weight'"):
        gm.backward((x * other).sum())
    assert x.grad is held
    assert held.tolist() == [10.0, 20.0]
    assert other.grad is None
    assert not gm._recording()


def test_an_error_about_one_of_many_unnamed_tensors_says_which_in_order_of_attachment():
    tensors = [tensor([1.0, 2.0]) for _ in range(3)]
    gm = GradManager().attach([*tensors[:2]]).attach(tensors[2], gives_a_number)
    with gm, rejected(TypeError, "gives_a_number", r"\(2,\)", "float64", r"\b2\b|\bthird\b|\b3rd\b"):
        gm.backward(sum(tensors).sum())


# ---------------------------------------------------------------- errors in the middle of backward


def test_an_error_in_a_derivative_keeps_its_type_and_names_the_op(x, monkeypatch):
    def broken(*_):
        raise MemoryError("mine")

    monkeypatch.setitem(VJPS, "exp.x", broken)
    held = x.grad
    other = tensor([1.0, 1.0])
    gm = GradManager().attach([x, other])
    gm.record()
    y = (gnp.exp(x) * other).sum()
    with rejected(MemoryError, "mine") as caught:
        gm.backward(y)
    assert any("'exp'" in note for note in caught.value.__notes__)
    assert x.grad is held
    assert held.tolist() == [10.0, 20.0]
    assert other.grad is None
    monkeypatch.undo()
    with gm:
        gm.backward((gnp.exp(x) * other).sum())
    np.testing.assert_allclose(x.grad.numpy(), np.array([10.0, 20.0]) + np.exp([3.0, 4.0]))


def two_that_overflow(shape, order):
    """A manager and two tensors; adding a gradient of 6e4 overflows float16 in the second's `.grad` only."""
    tensors = [tensor(np.ones(shape), dtype="float16") for _ in range(2)]
    for t, held in zip(tensors, (1.0, 6e4), strict=True):
        t.grad = tensor(np.full(shape, held), dtype="float16")
    return GradManager().attach([tensors[k] for k in order]), tensors, np.full(shape, 6e4, "float16")


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_floating_point_error_while_gradients_are_added_leaves_every_grad_as_it_was(order, shape):
    gm, tensors, dy = two_that_overflow(shape, order)
    with np.errstate(over="raise"), gm, rejected(FloatingPointError, "overflow"):
        gm.backward(tensors[0] + tensors[1], dy)
    assert (tensors[0].grad == 1.0).all()
    assert (tensors[1].grad == 6e4).all()
    assert not gm._recording()


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_warning_made_an_error_while_gradients_are_added_leaves_no_half_of_them_written(order, shape):
    gm, tensors, dy = two_that_overflow(shape, order)
    with warnings.catch_warnings(), gm:
        warnings.simplefilter("error")
        try:
            gm.backward(tensors[0] + tensors[1], dy)
            expected = (6e4, np.inf)  # written without a warning: all of them
        except RuntimeWarning:
            expected = (1.0, 6e4)  # none of them
    assert (tensors[0].grad == np.float16(expected[0])).all()
    assert (tensors[1].grad == np.float16(expected[1])).all()
    assert not gm._recording()


# ---------------------------------------------------------------- .grad


@pytest.mark.parametrize(
    ("value", "kind", "texts"),
    [
        (np.ones(2), TypeError, ["Tensor or None", "ndarray", r"gradmgr\.tensor"]),
        (3.0, TypeError, ["Tensor or None", "float"]),
        (tensor([1.0]), ValueError, [r"\(2,\)", r"\(1,\)"]),
        (tensor([[1.0, 2.0]]), ValueError, [r"\(2,\)", r"\(1, 2\)"]),
        (tensor([1.0, 2.0], dtype="float32"), TypeError, ["float64", "float32", "astype"]),
        (tensor([1, 2]), TypeError, ["float64", "int64", "astype"]),
    ],
)
def test_assigning_a_grad_of_the_wrong_shape_or_dtype(value, kind, texts, gm, x, unchanged):
    with unchanged([gm], [x]), rejected(kind, r"\.grad", *texts):
        x.grad = value


@pytest.mark.parametrize("kind", [tensor, nn.Parameter])
def test_a_tensor_is_not_assigned_as_its_own_grad(kind, unchanged):
    x = kind(np.ones(2))
    with unchanged([], [x]), rejected(ValueError, r"\.grad", r"shape \(2,\)", "itself", r"clone\(\)"):
        x.grad = x
    x.grad = x.clone()
    x.grad *= 3
    assert x.tolist() == [1.0, 1.0]


def test_a_callback_that_returns_the_tensor_itself_gives_a_copy():
    x = tensor([1.0, 2.0])
    with GradManager().attach(x, callbacks=lambda t, grad: t) as gm:
        gm.backward(x.sum())
    assert x.grad is not x
    x.grad *= 3
    assert (x.tolist(), x.grad.tolist()) == ([1.0, 2.0], [3.0, 6.0])


def test_assigning_or_deleting_grad_none(x):
    x.grad = None
    assert x.grad is None
    x.grad = tensor([1.0, 2.0])
    del x.grad
    assert x.grad is None
