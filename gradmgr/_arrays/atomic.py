"""Changes that are made all together: calls of C functions, with no Python code in between.

An exception can strike between any two steps of Python code: Ctrl-C or another signal, a trace function, memory that
runs out. So what must change together is prepared first, as a list of calls, and then made by one call of a C function,
during which CPython calls no signal handler. Whatever strikes comes before all of the changes or after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from itertools import starmap
from operator import call
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")

# A C function, with its arguments: a ufunc that writes to an array, `setattr`, a method of a dict. It does not fail,
# takes no memory to speak of, and calls no function written in Python.
Call = tuple[Any, ...]

# In which NumPy ignores floating-point errors: it keeps how to treat them in a context variable. `numpy.errstate` takes
# 1.5 us amid other work, and an exception may strike when it restores what was; to run in a context takes 0.2 us.
_quiet = Context()
_quiet.run(np.seterr, all="ignore")
# The context variable that says so; what it holds then, and usually. To set it and to set it back takes 0.15 us.
((error_treatment, errors_ignored),) = _quiet.items()
_usual = Context().run(error_treatment.get)


def run_atomically(calls: Iterable[Call]) -> None:
    """Make calls one after another; an exception that strikes comes before all of them or after them."""
    deque(starmap(call, calls), 0)


def call_quietly(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function of arrays that reads no context variable; floating-point errors raise no warning.

    What strikes in Python code of `numpy.errstate` would leave the errors ignored for good.
    """
    return _quiet.copy().run(function, *args)


def float_errors_raise() -> bool:
    """Tell whether a floating-point error may leave NumPy by an exception or the user's own function."""
    if error_treatment.get() in (_usual, errors_ignored):
        return False
    return not {"ignore", "warn"}.issuperset(np.geterr().values())


def run_quietly(calls: Iterable[Call]) -> None:
    """Do as `run_atomically`, where floating-point errors raise no warning and show as inf or NaN."""
    _quiet.copy().run(deque, starmap(call, calls), 0)
