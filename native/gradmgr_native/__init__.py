"""The machine that runs gradmgr's native replays; gradmgr loads it by itself."""

from pathlib import Path


def library() -> Path:
    """Return the path of the compiled machine."""
    folder = Path(__file__).parent
    for name in ("machine.so", "machine.dylib", "machine.dll"):
        if (folder / name).is_file():
            return folder / name
    raise OSError(f"there is no compiled machine in {folder}; `pip install ./native` builds it")
