"""What does not hold yet, and what happens instead; the table is to become empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

# What happens today, and the cases of which it is true. They may pass as well: when all of a line do, it goes.
_NOT_YET: dict[str, list[str]] = {
    "a replay makes the change at its end; it is not refused": [
        *("loss_is_logged_inside", "trainer_that_counts", "changes: attribute", "changes: nested list"),
    ],
    "the warning names what changes, and no line": [
        *("trainer_that_keeps_its_loss", "batch_of_tensors_is_changed", "changes: counter", "changes: deque"),
        *("changes: heap", "changes: set", "changes: dict", "changes: context variable", "changes: weak dictionary"),
        *("changes: array of objects", "changes: numbers in a list", "changes: plain array"),
        "result_is_an_object_of_the_users",
    ],
    "what the function changes in a container that holds plain arrays is lost in the first call": [
        *("batch_of_arrays_is_changed", "list_argument_gets_results", "list_argument_is_popped_and_sorted"),
        "dataclass_argument_is_set",
    ],
    "refused, as a method that is never called reads the time": [
        *("trainer_that_calls_train_of_its_model", "trainer_whose_model_is_evaluated_between"),
        "trainer_as_an_argument",
    ],
    "refused, as an array is made by plain NumPy": [
        *("constants_of_numpy_inside", "spectra_and_complex_numbers", "linear_regression_by_normal_equations"),
    ],
    "refused, as int() of a Tensor is asked for": [
        *("count_that_a_value_gives", "largest_element_by_its_index"),
        *("guard: index", "guard: index of a tuple", "guard: count"),
    ],
    "refused, as id() of an argument is asked for": ["identity_of_an_argument"],
    "replayed: the draws of a Generator that the function reads by name are made again": ["generator_of_a_closure"],
    "the function runs twice in the call that raises": ["error_in_the_third_call"],
    "stale: a global that holds one dtype and then another": ["read by name: dtype"],
    "the warning does not name what was called": [
        *("leaves: item", "leaves: tolist", "leaves: text", "leaves: repr", "leaves: json"),
    ],
    "silent from the third call on: no rehearsals": [
        *("mutated: kernel of an operation", "mutated: forward of a Function", "mutated: backward of a Function"),
        *("mutated: hook", "mutated: callback"),
        "test_the_function_runs_as_written_at_calls_that_are_powers_of_two",
    ],
    "code of the program that runs after the first effect is not rehearsed": ["mutated: rule of an operation"],
    "there is no such method": ["test_check_runs_a_rehearsal_now"],
    "the text names neither what is compared nor constants": [
        "test_explain_tells_what_is_compared_and_which_constants_there_are",
    ],
    "arrays arrive as captured arrays, and plain ones come back beside Tensors": [
        *(
            "test_arrays_arrive_as_tensors_and_plain_results_come_back",
            "test_results_are_tensors_where_an_argument_is_one",
        ),
    ],
    "the other thread sees a CapturedArray": ["test_another_thread_sees_a_global_array_as_it_is_in_every_call"],
    "each length is captured twice, and nothing is said before the seventeenth": [
        "test_lengths_that_vary_are_replayed_or_named_after_a_few",
    ],
}
_REASONS = {case: reason for reason, names in _NOT_YET.items() for case in names}


def cases(names: Iterable[str], of: str = "") -> list[Any]:
    """Return a parameter for each name; those in the table above may fail."""
    return [pytest.param(name, marks=_marks(f"{of}{name}")) for name in names]


def not_yet(test: Any) -> Any:
    """Let a test fail whose name is in the table above."""
    for mark in _marks(test.__name__):
        test = mark(test)
    return test


def _marks(case: str) -> list[Any]:
    return [pytest.mark.xfail(strict=False, reason=_REASONS[case])] if case in _REASONS else []
