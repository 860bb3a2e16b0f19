"""Compiles the machine into the wheel, which is one for a platform, and for every Python 3."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Contraction into fused multiply-adds would round otherwise than NumPy. The rest makes the same bytes of the same
# source: no paths, no build id, no names but those exported.
_UNIX = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
_LINUX = ("-Wl,--build-id=none", "-Wl,-s", "-Wl,-z,separate-code")


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles the machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel by the platform alone."""
        root = Path(self.root)
        build(root / "src" / "machine.c", root / "gradmgr_native")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def build(source: Path, folder: Path) -> Path:
    """Compile the machine into a folder, and return its path."""
    if sys.platform == "win32":
        target = folder / "machine.dll"
        command = ["cl", "/nologo", "/O2", "/fp:precise", "/LD", "/Brepro", str(source), f"/Fe{target}"]
    else:
        target = folder / ("machine.dylib" if sys.platform == "darwin" else "machine.so")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        mapped = f"-ffile-prefix-map={source.parent.parent}=."
        more = _LINUX if sys.platform.startswith("linux") else ()
        command = [*compiler, *_UNIX, mapped, *more, str(source), "-o", str(target), "-lm"]
    subprocess.run(command, check=True)  # noqa: S603  # a compiler, our own source
    return target
