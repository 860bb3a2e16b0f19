"""Which names code only adds to, appends to or assigns: what these stand for then decides nothing that it computes."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

COUNTS: Final = "counts"
APPENDS: Final = "appends"
ASSIGNS: Final = "assigns"


class Use(NamedTuple):
    """How code uses what a name refers to, or an item of that.

    Attributes:
        kind: whether it adds an integer to it, appends to it or assigns it.
        key: of the item, a constant; None if there is none.
    """

    kind: Literal["counts", "appends", "assigns"]
    key: str | int | None


Uses = frozenset[Use]

_CONSTANT = "LOAD_CONST", "LOAD_SMALL_INT"
_IN_PLACE = ("+=", "-=")
_BY_NAME = ("ATTR", "METHOD", "GLOBAL", "DEREF", "NAME", "CLOSURE")
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF")


def accumulated_in(code: types.CodeType, steps: list[Any]) -> dict[str, Uses]:
    """Return, by name, the uses of attributes, globals and variables of functions around that are all of these kinds.

    Args:
        code: of the function.
        steps: its instructions.
    """
    cells = {*code.co_cellvars, *code.co_freevars}
    named = Counter(_name_of(step, cells) for step in steps)
    has_other_items = _has_other_items(steps)
    found: dict[str, set[Use]] = {}
    seen: Counter[str] = Counter()
    for name, use, count in _uses_in(steps):
        if use.kind == COUNTS and use.key is not None and has_other_items:
            continue
        found.setdefault(name, set()).add(use)
        seen[name] += count
    return {name: frozenset(uses) for name, uses in found.items() if seen[name] == named[name] and _agree(uses)}


def merged(
    one: Mapping[str, Uses], other: Mapping[str, Uses], names_of_one: set[str], names_of_other: set[str]
) -> dict[str, Uses]:
    """Return the uses in two parts of code of names that neither uses otherwise.

    Args:
        one: the uses in the first part.
        other: those in the second.
        names_of_one: all names in the first part.
        names_of_other: likewise.
    """
    found = {name: uses for name, uses in one.items() if name not in names_of_other}
    found |= {name: uses for name, uses in other.items() if name not in names_of_one}
    shared = {name: one[name] | other[name] for name in one.keys() & other.keys()}
    return found | {name: uses for name, uses in shared.items() if _agree(uses)}


def united(many: list[Uses | None]) -> Uses:
    """Return the uses of a name in all code that names it, if they go together; None means others."""
    if any(uses is None for uses in many):
        return frozenset()
    found = frozenset[Use]().union(*[uses for uses in many if uses is not None])
    return found if _agree(found) else frozenset()


def _agree(uses: set[Use] | Uses) -> bool:
    """Tell whether each object is used in one way: the name itself, or items of it."""
    keys = [use.key for use in uses]
    return len(set(keys)) == len(keys) and (None not in keys or len(keys) == 1)


def _name_of(step: Any, cells: set[str]) -> str:
    is_name = isinstance(step.argval, str) and any(part in step.opname for part in _BY_NAME)
    return str(step.argval) if is_name or step.argval in cells else ""


def _uses_in(steps: list[Any]) -> Iterator[tuple[str, Use, int]]:
    """Yield each use with its name, and how many instructions with this name it has."""
    for k, step in enumerate(steps):
        before = steps[max(k - 2, 0) : k]
        if step.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
            is_attribute = step.opname == "STORE_ATTR"
            if _adds_in_place(before, swaps=is_attribute) or _adds_anew(steps, k):
                yield step.argval, Use(COUNTS, None), 2
            elif not _stores_in_place(before, swaps=is_attribute):
                yield step.argval, Use(ASSIGNS, None), 1
        elif step.opname in _LOADS:
            yield from _uses_of_loaded(steps, k)


def _uses_of_loaded(steps: list[Any], k: int) -> Iterator[tuple[str, Use, int]]:
    """Yield how what an instruction loads is used, if it is appended to, or an item of it is, or counted."""
    name = steps[k].argval
    following = steps[k + 1 : k + 6]
    if _loads_append(following[:1]):
        yield name, Use(APPENDS, None), 1
    if not following or following[0].opname not in _CONSTANT:
        return
    key = following[0].argval
    if not isinstance(key, (str, int)) or isinstance(key, bool):
        return
    if _is_item(following[1:2]) and _loads_append(following[2:3]):
        yield name, Use(APPENDS, key), 1
    elif [each.opname for each in following[1:3]] == ["COPY", "COPY"] and _is_item(following[3:4]):
        yield name, Use(COUNTS, key), 1


def _adds_in_place(before: list[Any], *, swaps: bool) -> bool:
    """Tell whether what these instructions leave is stored by `+=` or `-=`."""
    return _stores_in_place(before, swaps=swaps) and before[-2 if swaps else -1].argrepr in _IN_PLACE


def _stores_in_place(before: list[Any], *, swaps: bool) -> bool:
    """Tell whether these instructions end an assignment in place, such as `*=`."""
    if swaps and (len(before) < 2 or before[-1].opname != "SWAP"):
        return False
    last = before[-2:-1] if swaps else before[-1:]
    return any(step.opname == "BINARY_OP" and str(step.argrepr).endswith("=") for step in last)


def _adds_anew(steps: list[Any], k: int) -> bool:
    """Tell whether an instruction stores the sum of what it stood for and a constant, as `self.n = self.n + 1`."""
    if steps[k].opname != "STORE_ATTR" or k < 5:
        return False
    owner, load, constant, add, again = steps[k - 5 : k]
    is_plain = owner.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL"))
    is_same = (owner.opname, owner.argval, load.argval) == (again.opname, again.argval, steps[k].argval)
    loads_both = load.opname == "LOAD_ATTR" and constant.opname in _CONSTANT
    adds = (add.opname, add.argrepr) in (("BINARY_OP", "+"), ("BINARY_OP", "-"))
    return all((is_plain, is_same, loads_both, adds))


def _is_item(steps: list[Any]) -> bool:
    return any(step.opname == "BINARY_SUBSCR" or step.argrepr == "[]" for step in steps)


def _loads_append(steps: list[Any]) -> bool:
    """Tell whether an instruction loads the method `append` to call it."""
    return any(
        step.argval == "append" and (step.opname == "LOAD_METHOD" or "NULL" in step.argrepr)
        for step in steps
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
    )


def _has_other_items(steps: list[Any]) -> bool:
    """Tell whether code changes items in place by anything but `+=` and `-=`: which does so is not seen."""
    loads = sum(
        [each.opname for each in steps[k : k + 2]] == ["COPY", "COPY"] and _is_item(steps[k + 2 : k + 3])
        for k in range(len(steps))
    )
    adds = sum(
        step.opname == "BINARY_OP"
        and step.argrepr in _IN_PLACE
        and [each.opname for each in steps[k + 1 : k + 4]] == ["SWAP", "SWAP", "STORE_SUBSCR"]
        for k, step in enumerate(steps)
    )
    return bool(loads != adds)
