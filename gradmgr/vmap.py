"""Mapping a function over an axis of its arguments: `gradmgr.vmap`."""

from gradmgr._transforms.vmap import vmap

__all__ = ["vmap"]
