"""Compiles the machine into the wheel, which is one for a platform, and for every Python 3."""

from __future__ import annotations

import os
import platform
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
# The oldest macOS that the library is compiled for: the first on arm64, and that of Python's own builds on x86-64.
_OLDEST_MACOS = {"arm64": "11.0", "x86_64": "10.13"}


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles the machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel by the platform alone."""
        root = Path(self.root)
        build(root / "src" / "machine.c", root / "gradmgr_native")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"


def platform_tag() -> str:
    """Return the platform that the library is for, as wheels name it.

    Python's own answer says on macOS what Python was built for, such as both processors and an old system. On Linux it
    names no C library: `auditwheel` renames the wheel by that which the library needs.
    """
    name = sysconfig.get_platform()
    if sys.platform == "darwin":
        name = f"macosx-{_OLDEST_MACOS[platform.machine()]}-{platform.machine()}"
    return name.replace("-", "_").replace(".", "_")


def build(source: Path, folder: Path) -> Path:
    """Compile the machine, with kernels and products beside it, into a folder, and return the path of the library."""
    sources = [source, source.parent / "kernels.c", source.parent / "products.c"]
    with tempfile.TemporaryDirectory() as made:
        if sys.platform == "win32":
            target = folder / "machine.dll"
            commands = [_command_of_msvc(sources, target, made)]
        else:
            target = folder / ("machine.dylib" if sys.platform == "darwin" else "machine.so")
            commands = _commands_of_unix(sources, target, made)
        for command in commands:
            subprocess.run(command, check=True)  # noqa: S603  # a compiler, our own source
    return target


def _command_of_msvc(sources: list[Path], target: Path, made: str) -> list[str]:
    """Return the command that compiles and links; what it makes besides the library goes into the folder `made`."""
    compiling = ["/nologo", "/std:c11", "/O2", "/fp:precise", "/LD", "/Brepro", *map(str, sources)]
    return ["cl", *compiling, f"/Fo{made}\\", f"/Fe{target}", "/link", "/Brepro", f"/IMPLIB:{made}\\machine.lib"]


def _commands_of_unix(sources: list[Path], target: Path, made: str) -> list[list[str]]:
    """Return the commands that compile each source into the folder `made`, and the one that links."""
    compiler = [*shlex.split(os.environ.get("CC", "cc")), *_UNIX, *_of_system()]
    mapped = f"-ffile-prefix-map={sources[0].parent.parent}=."
    flags_of = {"kernels.c": _KERNELS if _is_clang() else (*_KERNELS, *_KERNELS_OF_GCC)}
    objects = [f"{made}/{path.stem}.o" for path in sources]
    return [
        *(
            [*compiler, *flags_of.get(path.name, ()), mapped, "-c", str(path), "-o", compiled]
            for path, compiled in zip(sources, objects, strict=True)
        ),
        [*compiler, *_of_linker(target), *objects, "-o", str(target), "-lm"],
    ]


def _is_clang() -> bool:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    macros = subprocess.run([*compiler, "-dM", "-E", "-x", "c", os.devnull], check=True, capture_output=True)  # noqa: S603  # it says what it is
    return b"__clang__" in macros.stdout


def _of_system() -> list[str]:
    """Return the flags by which the library is for what the wheel's name says."""
    if sys.platform != "darwin":
        return []
    return ["-arch", platform.machine(), f"-mmacosx-version-min={_OLDEST_MACOS[platform.machine()]}"]


def _of_linker(target: Path) -> list[str]:
    """Return the flags by which no path and no build id gets into the library."""
    if sys.platform == "darwin":
        return [f"-Wl,-install_name,@rpath/{target.name}"]
    return [*_LINUX] if sys.platform.startswith("linux") else []
