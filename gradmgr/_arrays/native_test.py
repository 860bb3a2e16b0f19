"""What the machine must compute before it is used."""

from __future__ import annotations

from gradmgr._arrays.native import Machine


def check_machine(machine: Machine) -> None:
    """Raise MachineError unless it computes, bit for bit, what NumPy does."""
