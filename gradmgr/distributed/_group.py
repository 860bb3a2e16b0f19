"""A group of ranks: what its collectives are, whatever transfers the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from gradmgr import errors
from gradmgr.distributed._work import WatchdogBase, Work


def named(ranks: Sequence[int]) -> str:
    """Return the ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


class Group:
    """A group of ranks, with its collectives.

    `rank` is this process's rank in the group (-1 if it is not a member), `size` the number of its ranks, and `ranks`
    their numbers among all ranks.

    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> group = distributed.new_group([0])
    >>> group.rank, group.size, group.ranks
    (0, 1, (0,))
    >>> distributed.finalize()
    """

    def __init__(self, ranks: Sequence[int], rank: int, watchdog: WatchdogBase) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.watchdog = watchdog
        self.links: dict[tuple[int, int], int] = {}  # how many values went from one rank to another: see `_pipeline`
        self._twin: Group | None = None
        self._is_twin = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ranks {self.ranks}>"

    def twin(self) -> Group:
        """Return another group of the same ranks; all of them must call this when it is first needed.

        The ranks need not call collectives of the two in the same order relative to each other. One rank alone needs
        none.
        """
        if self._twin is None and not self._is_twin and self.size > 1:
            self.agree("the making of a group of the same ranks")
            self._twin = self.part(range(self.size))
            self._twin._is_twin = True
        return self.twin_if_made()

    def twin_if_made(self) -> Group:
        """Return the twin, or the group itself if none was asked for."""
        return self if self._twin is None else self._twin

    def part(self, ranks: Sequence[int]) -> Group:
        """Return a group of some of these ranks, all of which must call this with the same ones."""
        raise NotImplementedError

    def free(self) -> None:
        """Give back what the connection holds; all ranks must call this."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Return the group itself: the copy of a layer communicates with the same ranks."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Group is a connection of processes that run, and cannot be pickled; save a state_dict, and make the "
            "group again with new_group"
        )

    def start_all_reduce(self, array: Any, op: str = "sum", source: Any = None, more: str = "") -> Work:
        """Begin to reduce an array over the ranks, in place.

        `source` holds the values if `array` does not.
        `more`, here and in the other methods, is what else must be the same on all ranks.
        """
        raise NotImplementedError

    def reduce_but_for_share(self, array: Any, op: str, more: str = "") -> float | None:
        """Reduce an array over the ranks, in place, as `start_all_reduce`, and wait.

        Returns:
            The factor that is still missing for a mean, which the caller can apply while it copies; None for none.
        """
        self.start_all_reduce(array, op, None, more).wait()
        return None

    def start_half_sum(self, array: Any, more: str = "") -> Work:
        """Begin to add up a float16 array over the ranks, in place and in float16, which halves what is sent."""
        raise NotImplementedError

    def reduce_scatter(self, array: Any, op: str = "sum", more: str = "") -> Any:
        """Return row `rank` of an array reduced over the ranks; it has a row for each of them."""
        raise NotImplementedError

    def all_gather(self, array: Any, more: str = "") -> Any:
        """Return the arrays of all ranks, stacked along a new first axis."""
        raise NotImplementedError

    def broadcast(self, array: Any, root: int, more: str = "") -> None:
        """Write the array of rank `root` into that of every other, in place."""
        raise NotImplementedError

    def start_send(self, array: Any, to: int, tag: int = 0) -> Work:
        """Begin to send an array to a rank of the group."""
        raise NotImplementedError

    def start_recv(self, array: Any, source: int, tag: int = 0, what: str = "") -> Work:
        """Begin to receive into an array what a rank of the group sends; `what` names it in errors."""
        raise NotImplementedError

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all ranks."""
        raise NotImplementedError

    def start_agree(self, operation: str, facts: str = "") -> Work:
        """Begin to find out whether all ranks gave the same facts."""
        raise NotImplementedError

    def agree(self, operation: str, facts: str = "") -> None:
        """Raise DistributedError, on every rank, unless all of them gave the same facts."""
        self.start_agree(operation, facts).wait()


class NonMemberGroup(Group):
    """A group that this rank is not in, whose methods raise."""

    def __getattribute__(self, name: str) -> Any:
        if name in _MEMBERS_ONLY:
            ranks = ", ".join(map(str, self.ranks))
            raise errors.DistributedError(
                f"{name.removeprefix('start_')} was called on a group of ranks {ranks}, to which this rank does not "
                "belong; call it there only: if distributed.rank(group) >= 0: ..."
            )
        return super().__getattribute__(name)


_MEMBERS_ONLY = frozenset(name for name in vars(Group) if not name.startswith("_"))
