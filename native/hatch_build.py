"""Compiles the machine into the wheel, which is one for a platform, and for every Python 3."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Contraction into fused multiply-adds would round otherwise than NumPy. The rest makes the same bytes of the same
# source: no paths, no build id, no names but those exported.
_UNIX = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
# The kernels are loops for the compiler to vectorise: results do not depend on what is muted here, errno and traps.
# GCC's -O3 would write out loops of remainders, too, for a library of half as much again that is not faster.
_KERNELS = ("-ftree-vectorize", "-fno-math-errno", "-fno-trapping-math")
_KERNELS_OF_GCC = ("-fvect-cost-model=dynamic", "--param=vect-epilogues-nomask=0")
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
    """Compile the machine, and the kernels beside it, into a folder, and return the path of the library."""
    kernels = source.parent / "kernels.c"
    if sys.platform == "win32":
        target = folder / "machine.dll"
        command = ["cl", "/nologo", "/O2", "/fp:precise", "/LD", "/Brepro", str(source), str(kernels), f"/Fe{target}"]
        subprocess.run(command, check=True)  # noqa: S603  # a compiler, our own source
    else:
        target = folder / ("machine.dylib" if sys.platform == "darwin" else "machine.so")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        mapped = f"-ffile-prefix-map={source.parent.parent}=."
        more = _LINUX if sys.platform.startswith("linux") else ()
        known = subprocess.run([*compiler, "-dM", "-E", "-x", "c", os.devnull], check=True, capture_output=True)  # noqa: S603  # it says what it is
        of_kernels = _KERNELS if b"__clang__" in known.stdout else (*_KERNELS, *_KERNELS_OF_GCC)
        with tempfile.TemporaryDirectory() as made:
            objects = [f"{made}/machine.o", f"{made}/kernels.o"]
            for path, flags, compiled in zip((source, kernels), ((), of_kernels), objects, strict=True):
                command = [*compiler, *_UNIX, *flags, mapped, "-c", str(path), "-o", compiled]
                subprocess.run(command, check=True)  # noqa: S603  # a compiler, our own source
            command = [*compiler, *_UNIX, *more, *objects, "-o", str(target), "-lm"]
            subprocess.run(command, check=True)  # noqa: S603  # as above
    return target
