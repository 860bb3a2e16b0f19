"""Names: what a function reads and assigns by name, compared before each call of a program made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays.atomic import error_treatment
from gradmgr._compile.noted import MISSING, described, reference_to
from gradmgr._compile.search import LEAVES, Place, Search, state_of
from gradmgr._compile.settings import settings_read
from gradmgr._engine.context import current
from gradmgr._engine.history.modes import is_grad_enabled, is_inference_mode_enabled, modes_in_effect
from gradmgr._engine.tensor import Tensor

_NEVER = ((current, MISSING),)  # `quick` of a setting for which nothing is


class _Setting(NamedTuple):
    """A setting of the process: the same if these functions return the same objects, or else if `read()` is equal."""

    name: str
    quick: tuple[tuple[Callable[[], Any], Any], ...]
    read: Callable[[], Any]
    before: Any

    def is_same(self) -> bool:
        return all(read() is value for read, value in self.quick) or bool(self.read() == self.before)


class Names:
    """What a function reads and assigns by name.

    Args:
        function: the function, before it runs.
        leaves: its arguments, in order. Dataclasses themselves serve better than what these hold.
        known: what code reads, by the identity of code objects; an empty dict at first, which is filled, and may be
            given again.

    Attributes:
        never_constant: what it reads that gives another answer each time, and where; None if there is nothing.
    """

    def __init__(self, function: Any, leaves: Sequence[Any], known: dict[int, Any] | None = None) -> None:
        search = Search({} if known is None else known)
        search.run(function, leaves)
        self.never_constant = search.never_constant
        self._places = list(search.places.values())
        self._generators = search.generators
        self._settings = _settings(search.words)
        used = {place.name for place in self._places if place.owner is search.leaves}
        self._leaves = {k: reference_to(leaves[k]) for k in used}

    def changed_during(self, repeated: Iterable[Any] = ()) -> str | None:
        """Return what the function has changed of what it reads or assigns by name; None if nothing.

        Args:
            repeated: Generators and arrays whose changes a program repeats; what these arrays hold is compared no more.
        """
        leaves = {k: reference() for k, reference in self._leaves.items()}
        known = set(map(id, repeated))
        for place in self._places if known else ():
            if place.noted is not None:
                place.noted.compare_by_identity(place.read(leaves), known)
        for place, state in self._generators:
            generator = place.read(leaves)
            if id(generator) not in known and state_of(generator) != state:
                return f"{place.described()}, from which the function draws"
        return self._difference(self._places, leaves, "{}, which the function changes from {} to {}")

    def changed(self, leaves: Sequence[Any]) -> str | None:
        """Return the first name or setting that differs, where it is read, and from what to what; None if none does."""
        change = self._difference([place for place in self._places if place.is_read], leaves, "{}, from {} to {}")
        return change or next((setting.name for setting in self._settings if not setting.is_same()), None)

    @staticmethod
    def _difference(places: Iterable[Place], leaves: Any, text: str) -> str | None:
        for place in places:
            if place.noted is not None and not place.noted.is_same(value := place.read(leaves)):
                before, after = place.noted.text, described(value)
                after = "another " + after.removeprefix("a ").removeprefix("an ") if before == after else after
                return text.format(place.described(), before, after)
        return None

    def tensors(self) -> list[Tensor]:
        """Return the Tensors that names stand for."""
        found = [reference() for place in self._places if place.noted is not None for reference in place.noted.arrays]
        return [t for t in found if isinstance(t, Tensor)]

    def test(self) -> Callable[[Sequence[Any]], bool]:
        """Return a function of the arguments that tells quickly whether `changed` is None; it may say no where it is.

        It is made of text:

            def is_same(a):
                try:
                    if (c0() is not c1) and c2() != c3: return False
                    v1 = c4.__globals__
                    if (x := v1['rate']) is not c5 and not c6(x): return False
                    if (x := a[0].model) is not c7() or x is None: return False
                except Exception: return False
                return True
        """
        scope: dict[str, Any] = {}

        def constant(value: Any) -> str:
            name = f"c{len(scope)}"
            scope[name] = value
            return name

        lines = ["def is_same(a):", "  try:"]
        for setting in self._settings:
            quick = " or ".join([f"{constant(read)}() is not {constant(value)}" for read, value in setting.quick])
            lines.append(f"    if ({quick}) and {constant(setting.read)}() != {constant(setting.before)}: return False")
        uses: Counter[Place] = Counter()  # how often each place is read
        for place in reversed(self._places):
            uses[place] += place.is_read
            if uses[place] and place.owner is not None:
                uses[place.owner] += 1
        texts: dict[Place, str] = {}
        for place in [place for place in self._places if uses[place]]:
            if place.owner is None:
                texts[place] = "a" if place.name is LEAVES else constant(place.name)
                continue
            owner = texts[place.owner]
            text = f"{owner}.{place.name}" if place.is_attribute else f"{owner}[{place.name!r}]"
            if place.noted is not None and place.noted.is_missing:
                is_there = f"{constant(place.read)}(a) is not {constant(MISSING)}"
                lines.append(f"    if {is_there if place.is_attribute else f'{place.name!r} in {owner}'}: return False")
                continue
            if uses[place] > 1:
                lines.append(f"    v{len(texts)} = {text}")
                text = f"v{len(texts)}"
            if place.noted is not None and place.is_read:
                lines.append(f"    if {place.noted.difference(text, constant)}: return False")
            texts[place] = text
        lines += ["  except Exception: return False", "  return True"]
        exec(compile("\n".join(lines), "<gradmgr names>", "exec"), scope)  # noqa: S102  # text of our own
        return scope.pop("is_same")  # type: ignore[no-any-return]  # the function that the text defines


def _settings(words: set[str]) -> list[_Setting]:
    """Return the settings on which code with these words depends; the modes, and NumPy's errors, whatever it names."""

    def modes() -> Any:
        return is_grad_enabled(), is_inference_mode_enabled()

    quick = (current, None if current() is None else MISSING), (modes_in_effect, modes_in_effect())
    return [
        _Setting("the mode, such as no_grad", quick, modes, modes()),
        _Setting("how NumPy treats errors", ((error_treatment.get, error_treatment.get()),), np.geterr, np.geterr()),
        *[_Setting(name, _NEVER, read, read()) for name, read in settings_read(words)],
    ]
