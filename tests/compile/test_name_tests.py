"""The function that tells whether names stand for what they did: it must never say yes where one does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradmgr import tensor
from gradmgr._compile.environment import Environment

# By name: what a name stands for, and what it must not be taken for later.
VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "an integer": (lambda: 3, lambda: 4),
    "an integer, then the equal float": (lambda: 3, lambda: 3.0),
    "a truth, then the equal integer": (lambda: True, lambda: 1),
    "a float": (lambda: 0.5, lambda: 0.25),
    "a float of the other sign": (lambda: 0.0, lambda: -0.0),
    "a NumPy number": (lambda: np.float32(2), lambda: np.float32(3)),
    "a NumPy number of another type": (lambda: np.float32(2), lambda: np.float64(2)),
    "text": (lambda: "tanh", lambda: "relu"),
    "nothing, then something": (lambda: None, lambda: 0),
    "something, then nothing": (lambda: tensor([1.0]), lambda: None),
    "a tensor": (lambda: tensor([1.0]), lambda: tensor([1.0])),
    "a list of tensors": (lambda: [tensor([1.0]), tensor([2.0])], lambda: [tensor([1.0]), tensor([2.0])]),
    "a longer list": (lambda: [tensor([1.0])], lambda: [tensor([1.0]), tensor([2.0])]),
    "a tuple, then a list": (lambda: (print,), lambda: [print]),
    "a list of numbers": (lambda: [1, 2], lambda: [1, 3]),
    "an empty list": (list, lambda: [1]),
    "a dict": (lambda: {"rate": 1}, lambda: {"rate": 2}),
    "a small array": (lambda: np.ones(3), lambda: np.ones(3)),
    "a function": (lambda: lambda: 1, lambda: lambda: 2),
}


def of_global(value: Any) -> tuple[Any, Callable[[Any], None]]:
    """A function that reads a global, and what changes it."""
    variables: dict[str, Any] = {"__name__": "program", "value": value}
    exec("def f(): return value", variables)  # noqa: S102  # text of this test
    return variables["f"], lambda new: variables.update(value=new)


def of_cell(value: Any) -> tuple[Any, Callable[[Any], None]]:
    """A function that reads a variable of one around it."""

    def change(new: Any) -> None:
        nonlocal value
        value = new

    return (lambda: value), change


def of_attribute(value: Any) -> tuple[Any, Callable[[Any], None]]:
    """A function that reads an attribute."""
    owner = SimpleNamespace(value=value)
    return (lambda: owner.value), lambda new: setattr(owner, "value", new)


def of_class(value: Any) -> tuple[Any, Callable[[Any], None]]:
    """A function that reads an attribute of a class."""
    model = type("Model", (), {"__module__": "program", "value": value})()
    return (lambda: model.value), lambda new: setattr(type(model), "value", new)


PLACES = [of_global, of_cell, of_attribute, of_class]


@pytest.mark.parametrize(
    ("place", "name"),
    # A function of a class is a method, which is another object each time.
    [(place, name) for place in PLACES for name in VALUES if (place, name) != (of_class, "a function")],
)
def test_another_value_is_noticed(place: Callable[..., Any], name: str) -> None:
    make, make_other = VALUES[name]
    value = make()
    function, change = place(value)
    environment = Environment(function)
    are_same = environment.test()
    assert are_same()
    assert environment.changed() is None
    change(make_other())
    assert not are_same()
    assert environment.changed() is not None
    change(value)
    assert are_same()


@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_changes_in_place_is_noticed(place: Callable[..., Any]) -> None:
    array, parts = np.ones(3), [tensor([1.0]), tensor([2.0])]
    for value, change, undo in (
        (array, lambda: array.fill(2), lambda: array.fill(1)),
        (parts, parts.reverse, parts.reverse),
        (parts, lambda: parts.append(parts[0]), parts.pop),
    ):
        function = place(value)[0]
        are_same = Environment(function).test()
        assert are_same()
        change()
        assert not are_same()
        undo()
        assert are_same()


@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_is_gone_is_noticed(place: Callable[..., Any]) -> None:
    function, change = place(tensor([1.0]))
    are_same = Environment(function).test()
    assert are_same()
    change(None)  # the tensor is gone, and a reference to it gives None, too
    assert not are_same()


def test_a_name_that_is_deleted_is_noticed() -> None:
    owner = SimpleNamespace(value=1)
    environment = Environment(lambda: owner.value)
    are_same = environment.test()
    del owner.value
    assert not are_same()
    assert environment.changed() is not None


def test_an_object_that_is_gone_is_noticed() -> None:
    class Model:
        def __init__(self) -> None:
            self.rate = 0.5

        def step(self) -> float:
            return self.rate

    model = Model()
    environment = Environment(model.step)
    are_same = environment.test()
    assert are_same()
    del model
    assert not are_same()
    assert environment.changed() is not None


def test_a_function_that_reads_nothing_is_always_the_same() -> None:
    assert Environment(lambda: 1).test()()
