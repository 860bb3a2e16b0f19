"""`save` and `load`: checkpoints of a training run, in files without pickle.

A file holds named arrays, which other tools can read, and a JSON text that describes the saved object:
in safetensors where that library is installed, else in NumPy's npz. In the JSON, null, true,
numbers, strings, lists and objects represent themselves; an object with the key "$" represents
something else, whose kind that key names.
"""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import random
import secrets
import shutil
import stat
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr._engine.cleanup import Scope, complete
from gradmgr._engine.context import rebind
from gradmgr._engine.tensor import Tensor, variable, wrap
from gradmgr._engine.views import check_kept
from gradmgr._engine.wrong_calls import explained
from gradmgr._transforms.randomness import source_of

_VERSION = 1
_DESCRIPTION_MEMBER = "__gradmgr__"  # the member of an npz that is the JSON text
_MAX_SHOWN_LETTERS = 40  # letters of the file's name in that of the temporary folder
_PLAIN = (type(None), bool, str, int)
_KINDS = ("float", "complex", "tuple", "dict", "tensor", "array", "scalar", "generator")  # after "$"
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_GENERATORS = ("BitGenerator", "Generator", "RandomState")
# The largest integers in the states of bit generators; of all others 2**32 - 1.
_MOST_IN_STATES = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "has_gauss": 1, "state": 2**128 - 1, "inc": 2**128 - 1}
_NO_REST = object()


@explained
def save(obj: Any, f: str | os.PathLike[str]) -> None:
    """Save nested containers of arrays, numbers, generators and objects with a `state_dict()` to a file.

    The format is safetensors where that is installed, else NumPy's npz; never pickle. The file is written in the
    same folder under another name, flushed to the disk and then renamed, so that an earlier file stays intact if the
    program ends meanwhile. A program killed in the middle leaves a folder `.<name>.<number>.tmp`, which may be deleted.

    Arrays have readable names, "model.0.weight", for other tools; complex ones are stored as pairs of reals along
    a last axis of length 2. In a distributed run `gradmgr.distributed.save` lets rank 0 alone write.

    Args:
        obj: dicts (any dict, saved as a plain one), lists and tuples of: Tensors and arrays of NumPy and CuPy, bool,
            integer, float16/32/64, bfloat16, complex64/128, of any shape and strides; numbers, strings, None;
            generators of NumPy and of `random`, whose state is saved (not how many others they spawned); objects with
            `state_dict()`: modules, optimisers, schedulers. The same Tensor or array twice is stored once.
        f: the path; its name does not determine the format. Its folder must exist.

    Raises:
        TypeError: something cannot be saved; its dotted name is given. Nothing is then written.
        OSError: the file cannot be written; an earlier one is unchanged.

    >>> import gradmgr, numpy, os, tempfile
    >>> w, rng = gradmgr.tensor([1.0, 2.0]), numpy.random.default_rng(0)
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> gradmgr.save({"w": w, "rng": rng, "step": 7}, path)
    >>> w -= w
    >>> gradmgr.load(path, into={"w": w, "rng": rng})
    {'step': 7}
    >>> w
    Tensor([1., 2.])
    """
    path = os.path.realpath(_path_of(f, "save(obj, f)"))  # through a link to the file itself
    packer = _Packer()
    text = json.dumps({"version": _VERSION, "value": packer.pack(obj, ())}, allow_nan=False)
    _check_place(path)
    file = _TemporaryFile(path)

    def write() -> None:
        _write_file(file.name, packer.arrays, text)
        file.take_place()

    file.run(write)
    with suppress(OSError):  # not every system can open a folder; the file itself is written
        _flush(os.path.dirname(path), os.O_RDONLY)


@explained
def load(f: str | os.PathLike[str], into: Any = None, *, device: str = "cpu") -> Any:
    """Load a file written by `save`; with `into`, load it into these objects, all of them or none.

    Args:
        f: the path; the format is found from the content.
        into: a container with the structure of what was saved, or a part of it, as {"model": model,
            "optimizer": optimizer, "rng": rng}, of objects with `load_state_dict()`, generators, Tensors (which stay
            the same objects) and arrays (written to). All is checked before anything changes.
        device: where Tensors and arrays are put; what is loaded `into` a Tensor goes to its device.

    Returns:
        Without `into` the nested object, with Tensors where Tensors were, arrays where arrays were, new generators in
        the saved state, and for an object with `state_dict()` that state. With `into` the rest, which it did not name.

    Raises:
        StateError: the file was not written by `save`, is damaged, or of a newer version; or it does not fit `into`:
            every mismatch is listed by its dotted name, and nothing has changed.
        TypeError: `into` holds what cannot be loaded into.
        OSError: the file cannot be read.
        MissingDependencyError: it is a safetensors file and that library is not installed.

    >>> import pathlib, tempfile
    >>> import gradmgr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "state"
    ...     gradmgr.save({"w": gradmgr.tensor([1.0, 2.0]), "epoch": 3}, path)
    ...     gradmgr.load(path)
    {'w': Tensor([1., 2.]), 'epoch': 3}
    """
    path = _path_of(f, "load(f)")
    saved = _read_file(path, device)
    if into is None:
        return saved
    loader = _Loader()
    rest = loader.match(into, saved, ())
    loader.run(path)
    return {} if rest is _NO_REST else rest


def _path_of(f: Any, asked: str) -> str:
    try:
        return os.fsdecode(f)
    except TypeError:
        raise TypeError(
            f"{asked} takes the path of a file as f, a string or pathlib.Path; found {type(f).__name__}"
        ) from None


def _name(keys: tuple[Any, ...]) -> str:
    return ".".join(map(str, keys)) or "the whole"


# ---------------------------------------------------------------- from an object to JSON and arrays


class _Packer:
    """Takes an object apart: into `arrays` by name, and a description that JSON can hold."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self._stored: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id; kept alive, or an id could be used again
        self._open: set[int] = set()

    def pack(self, obj: Any, keys: tuple[Any, ...]) -> Any:
        """Return the JSON description of an object."""
        if obj.__class__ in _PLAIN:
            return obj
        if obj.__class__ is float:
            return obj if math.isfinite(obj) else {"$": "float", "value": repr(obj)}
        if obj.__class__ is complex:
            return {"$": "complex", "value": [self.pack(obj.real, keys), self.pack(obj.imag, keys)]}
        if isinstance(obj, Tensor):
            obj._check_saved(f"save: {_name(keys)}, the values")
            return self._array("tensor", obj, obj._array, keys)
        if libraries.is_array(obj):
            libraries.check_plain(obj, f"save: {_name(keys)}")
            return self._array("scalar" if isinstance(obj, np.generic) else "array", obj, obj, keys)
        if isinstance(obj, random.Random) or source_of(obj) is not None:
            return self._generator(obj, keys)
        return self._container(obj, keys)

    def _container(self, obj: Any, keys: tuple[Any, ...]) -> Any:
        if id(obj) in self._open:
            raise ValueError(f"save: {_name(keys)} contains itself; break the circle")
        self._open.add(id(obj))
        try:
            if isinstance(obj, dict):
                return self._dict(obj, keys)
            if obj.__class__ is list:
                return [self.pack(part, (*keys, k)) for k, part in enumerate(obj)]
            if obj.__class__ is tuple:
                return {"$": "tuple", "items": [self.pack(part, (*keys, k)) for k, part in enumerate(obj)]}
            if not isinstance(obj, type) and callable(getattr(obj, "state_dict", None)):
                return self.pack(obj.state_dict(), keys)
        finally:
            self._open.discard(id(obj))
        raise TypeError(
            f"save: {_name(keys)} is {type(obj).__module__}.{type(obj).__qualname__}, which has no form in a "
            "file; save Tensors, arrays, numbers, strings, None, generators, objects with state_dict(), and dicts, "
            "lists and tuples of such"
        )

    def _dict(self, obj: dict[Any, Any], keys: tuple[Any, ...]) -> dict[str, Any]:
        parts = {key: self.pack(part, (*keys, key)) for key, part in obj.items()}
        if all(key.__class__ is str for key in parts) and "$" not in parts:
            return parts
        return {"$": "dict", "items": [[self._key(key, keys), part] for key, part in parts.items()]}

    def _key(self, key: Any, keys: tuple[Any, ...]) -> Any:
        if key.__class__ is tuple:
            return {"$": "tuple", "items": [self._key(part, keys) for part in key]}
        if key.__class__ in _PLAIN or key.__class__ is float:
            return self.pack(key, keys)
        raise TypeError(
            f"save: {_name(keys)} has a key of type {type(key).__qualname__}; a key is a string, a number, None or a "
            "tuple of such"
        )

    def _array(self, kind: str, obj: Any, array: Any, keys: tuple[Any, ...]) -> dict[str, Any]:
        if id(obj) in self._stored:
            return self._stored[id(obj)][1]
        dtype = array.dtype
        if not (dtype.kind in "biu" or libraries.is_differentiable(dtype)):
            raise errors.DtypeError(
                f"save: {_name(keys)} has dtype {dtype}, which a file cannot hold; convert it to a boolean, integer, "
                "float or complex one of at most 64 bits a part"
            )
        host = np.asarray(libraries.to_device(array, "cpu"))
        stored = np.ascontiguousarray(host, dtype=dtype.newbyteorder("<")).reshape(host.shape)
        if dtype.kind == "c":
            stored = stored.reshape(-1).view(stored.real.dtype).reshape(*host.shape, 2)
        name = self._unique_name(keys)
        self.arrays[name] = stored
        named = dtype.name if dtype.name == "bfloat16" else dtype.str
        node: dict[str, Any] = {"$": kind, "name": name, "dtype": named, "shape": list(host.shape)}
        if dtype.kind == "c":
            node["stored"] = "pairs of reals"
        node["crc32"] = zlib.crc32(_bytes_of(stored))
        self._stored[id(obj)] = (obj, node)
        return node

    def _unique_name(self, keys: tuple[Any, ...]) -> str:
        """Return a unique dotted name without characters that have a meaning in a path or an archive."""
        dotted = ".".join(map(str, keys)) or "array"
        name = "".join([c if c.isprintable() and c not in '%/\\:*?"<>|' else f"%{ord(c):02X}" for c in dotted])
        found, k = name, 1
        while found in self.arrays or found in (_DESCRIPTION_MEMBER, "__metadata__"):
            k += 1
            found = f"{name}~{k}"
        return found

    def _generator(self, obj: Any, keys: tuple[Any, ...]) -> dict[str, Any]:
        if isinstance(obj, random.SystemRandom):
            raise TypeError(f"save: {_name(keys)} is a SystemRandom, which has no state to save")
        kind, state = _state_of(obj)
        if kind.partition(" ")[2] not in ("", *_BIT_GENERATORS):
            raise TypeError(
                f"save: {_name(keys)} is a {kind}; of generators, save can hold {', '.join(_BIT_GENERATORS)}"
            )
        return {"$": "generator", "kind": kind, "state": self.pack(state, keys)}


def _bytes_of(array: Any) -> Any:
    """Return the memory of a dense array as bytes, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _state_of(obj: Any) -> tuple[str, Any]:
    """Return the kind of a generator and its state."""
    if isinstance(obj, random.Random):
        return "Random", obj.getstate()
    source = source_of(obj)
    state = source.read()  # type: ignore[union-attr]  # the callers have checked
    return f"{type(obj).__name__ if not isinstance(obj, np.random.BitGenerator) else 'BitGenerator'} " + str(
        state["bit_generator"]
    ), state


def _set_state(obj: Any, state: Any) -> None:
    if isinstance(obj, random.Random):
        obj.setstate(state)
    else:
        source_of(obj).write(state)  # type: ignore[union-attr]  # the callers have checked


class _Unpacker:
    """Makes an object from its description and arrays."""

    def __init__(self, read: Callable[[str], Any], device: str) -> None:
        self._read = read
        self._device = device
        self._objects: dict[str, Any] = {}  # by the name of the array

    def unpack(self, node: Any) -> Any:
        """Return the object that a part of the description represents."""
        if isinstance(node, list):
            return [self.unpack(part) for part in node]
        if not isinstance(node, dict):
            return node
        if "$" not in node:
            return {key: self.unpack(part) for key, part in node.items()}
        if node["$"] not in _KINDS:
            raise ValueError(f"the kind {node['$']!r} is not known")
        return getattr(self, f"_{node['$']}")(node)

    def _float(self, node: Any) -> float:
        return float(node["value"])

    def _complex(self, node: Any) -> complex:
        return complex(*[self.unpack(part) for part in node["value"]])

    def _tuple(self, node: Any) -> tuple[Any, ...]:
        return tuple([self.unpack(part) for part in node["items"]])

    def _dict(self, node: Any) -> dict[Any, Any]:
        return {self.unpack(key): self.unpack(part) for key, part in node["items"]}

    def _tensor(self, node: Any) -> Any:
        return self._make_once(node, lambda: variable(libraries.to_device(self._values(node), self._device)))

    def _array(self, node: Any) -> Any:
        return self._make_once(node, lambda: libraries.to_device(self._values(node), self._device))

    def _scalar(self, node: Any) -> Any:
        return self._values(node)[()]

    def _make_once(self, node: Any, make: Callable[[], Any]) -> Any:
        name = node["name"]
        if name not in self._objects:
            self._objects[name] = make()
        return self._objects[name]

    def _values(self, node: Any) -> Any:
        dtype = _dtype(node["dtype"])
        stored = np.array(self._read(node["name"]), order="C")  # in its own memory
        if zlib.crc32(_bytes_of(stored)) != node["crc32"]:
            raise ValueError(f"the array {node['name']!r} is damaged")
        self._check_layout(node, dtype, stored)
        if dtype.kind == "c":
            return np.array(stored.view(dtype.newbyteorder("<"))[..., 0], dtype=dtype, order="C")
        if dtype.name == "bfloat16":
            return stored.view(dtype)
        return stored if stored.dtype == dtype else np.array(stored, dtype=dtype, order="C")

    @staticmethod
    def _check_layout(node: Any, dtype: np.dtype[Any], stored: Any) -> None:
        """Raise unless an array is stored as one of the dtype and shape that its description has."""
        found = stored.dtype.newbyteorder("=")
        shape = list(stored.shape)
        is_pairs = "stored" in node and shape[-1:] == [2]  # of reals
        if is_pairs:
            shape.pop()
        of_reals = np.empty(0, dtype).real.dtype.newbyteorder("=")
        is_alike = found == of_reals or (dtype.name == "bfloat16" and found == np.uint16)  # in npz
        if not is_alike or is_pairs != (dtype.kind == "c"):
            raise ValueError(f"the array {node['name']!r} is stored as {found}, and described as of dtype {dtype}")
        if node.get("shape", shape) != shape:  # earlier versions did not note it
            raise ValueError(f"the array {node['name']!r} has shape {stored.shape}, and is described as of another one")

    def _generator(self, node: Any) -> Any:
        kind, _, bits = node["kind"].partition(" ")
        if kind == "Random":
            made: Any = random.Random()  # noqa: S311  # the user's own choice of generator
        elif bits not in _BIT_GENERATORS or kind not in _GENERATORS:
            raise ValueError(f"the generator {node['kind']!r} is not known")
        else:
            made = getattr(np.random, bits)()
            if kind != "BitGenerator":
                made = getattr(np.random, kind)(made)
        state = _Unpacker(self._read, "cpu").unpack(node["state"])
        _check_state(_state_of(made)[1], state)
        _set_state(made, state)
        return made


def _check_state(usual: Any, found: Any, name: str = "") -> None:
    """Raise ValueError unless what is found is the state of a generator of the same kind as one that is `usual`.

    Python's and NumPy's own functions take some numbers as they are, and then read memory where these point to.
    """
    if isinstance(usual, dict):
        fits = isinstance(found, dict) and found.keys() == usual.keys()
        parts = [(usual[key], found[key], key) for key in usual] if fits else []
    elif isinstance(usual, tuple):
        fits = isinstance(found, tuple) and len(found) == len(usual)
        # The last of `random.Random` is half of a pair of numbers that it draws, or None.
        parts = [(u, f, "gauss" if u is None else name) for u, f in zip(usual, found, strict=True)] if fits else []
    else:
        parts = []
        if isinstance(usual, np.ndarray):
            fits = isinstance(found, np.ndarray) and (found.dtype, found.shape) == (usual.dtype, usual.shape)
        elif isinstance(usual, str):
            fits = found == usual
        elif isinstance(usual, int):
            fits = found.__class__ is int and 0 <= found <= _MOST_IN_STATES.get(name, 2**32 - 1)
        else:
            fits = (found is None and name == "gauss") or found.__class__ is float
    if not fits:
        raise ValueError(f"the state of a generator is damaged{f', at {name}' * bool(name)}")
    for part in parts:
        _check_state(*part)


def _dtype(name: Any) -> np.dtype[Any]:
    if name != "bfloat16":
        dtype = np.dtype(name) if isinstance(name, str) else None
        if dtype is None or not (dtype.kind in "biu" or libraries.is_differentiable(dtype)):
            raise ValueError(f"{name!r} is no dtype of an array that gradmgr.save writes")
        return dtype
    try:
        import ml_dtypes
    except ImportError as error:
        raise errors.MissingDependencyError(
            "the file holds bfloat16 arrays, and ml_dtypes, which gives NumPy that dtype, is not installed: "
            "pip install ml_dtypes"
        ) from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


# ---------------------------------------------------------------- the file


def _check_place(path: str) -> None:
    """Raise where no file can be written."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe, which the new file would replace
        raise OSError(errno.EINVAL, "save: this is no regular file; give the path of one", path)


class _TemporaryFile(Scope):
    """A file beside the one at `path`, which can take its place; removed at the end where it does not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder, name = os.path.split(path)
        shown = name[:_MAX_SHOWN_LETTERS]  # so that the longest allowed names do not get too long
        # A folder, since safetensors writes a temporary file of its own.
        self._temporary_folder = os.path.join(self._folder, f".{shown}.{secrets.token_hex(6)}.tmp")
        self.name = os.path.join(self._temporary_folder, name)

    def _open(self, opened: Any) -> None:
        os.mkdir(self._temporary_folder, 0o700)
        deque(map(os.close, map(os.open, [self.name], [os.O_CREAT | os.O_WRONLY], [0o666])), 0)  # see `_flush`
        # The permissions of the file whose place it takes, or those of any new file.
        self._mode = stat.S_IMODE(os.stat(self._path if os.path.exists(self._path) else self.name).st_mode)

    def take_place(self) -> None:
        """Flush the file to the disk, and let it take the place of `path`."""
        os.chmod(self.name, self._mode)
        _flush(self.name, os.O_RDWR)
        os.replace(self.name, self._path)

    def _close(self, opened: Any) -> None:
        # Unlike rmtree, these need no file handle.
        for remove, left in ((os.unlink, self.name), (os.rmdir, self._temporary_folder)):
            with suppress(OSError):
                remove(left)
        if os.path.exists(self._temporary_folder):
            shutil.rmtree(self._temporary_folder, ignore_errors=True)  # which must not hide why the writing failed


def _flush(path: str, mode: int) -> None:
    handles: list[int] = []
    try:
        # By functions of C alone, so that no exception comes between the opening and the noting of the handle.
        handles.extend(map(os.open, [path], [mode]))
        os.fsync(handles[0])
        _close_all(handles)
    except BaseException:
        complete(_close_all, handles)
        raise


def _close_all(handles: list[int]) -> None:
    deque(map(os.close, map(handles.pop, repeat(-1, len(handles)))), 0)


def _import_safetensors() -> Any | None:
    """Return the library, where it is installed."""
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        return None
    return safetensors


def _write_file(path: str, arrays: dict[str, Any], text: str) -> None:
    library = _import_safetensors()
    if library is None:
        _write_npz(path, arrays, text)
        return
    try:
        library.numpy.save_file(arrays, path, {"gradmgr": f"{zlib.crc32(text.encode())} {text}"})
    except library.SafetensorError as error:  # raised where a disk is full
        raise OSError(f"save: the file cannot be written: {error}") from error


def _write_npz(path: str, arrays: dict[str, Any], text: str) -> None:
    members = {_DESCRIPTION_MEMBER: np.frombuffer(text.encode(), np.uint8)}
    members |= {name: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for name, a in arrays.items()}
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in members.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read_file(path: str, device: str) -> Any:
    """Return the object in a file."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # a pipe, which may be waited for
        raise OSError(errno.EINVAL, "load: this is no regular file; give the path of one", path)
    with open(path, "rb") as file:
        start = file.read(9)
    if not start.startswith(b"PK") and not (len(start) == 9 and start.endswith(b"{")):
        raise errors.StateError(f"load: {path!r} is neither a safetensors nor an npz file, or it is cut short")
    libraries.device_index(device)  # a wrong name is the caller's fault, and no damage to the file
    try:
        if start.startswith(b"PK"):
            with zipfile.ZipFile(path) as archive:
                return _unpack_description(path, device, *_npz_reader(archive, path))
        return _unpack_safetensors(path, device)
    except (errors.GradmgrError, MemoryError):
        raise
    except Exception as error:  # the libraries raise many classes for damaged files
        said = str(error) or type(error).__name__
        raise errors.StateError(f"load: {path!r} cannot be read: it is cut short or damaged ({said})") from error


def _unpack_description(path: str, device: str, text: str, read: Callable[[str], Any]) -> Any:
    description = json.loads(text)
    if description["version"] > _VERSION:
        raise errors.StateError(
            f"load: {path!r} is of version {description['version']}; this gradmgr reads version {_VERSION}: update it"
        )
    return _Unpacker(read, device).unpack(description["value"])


def _npz_reader(archive: zipfile.ZipFile, path: str) -> tuple[str, Callable[[str], Any]]:
    if f"{_DESCRIPTION_MEMBER}.npy" not in archive.namelist():
        raise errors.StateError(f"load: {path!r} is an archive, but none that gradmgr.save wrote")

    def read(name: str) -> Any:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > os.path.getsize(path):
            raise ValueError(f"the member {info.filename!r} is not stored as gradmgr.save does")
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, is_fortran, dtype = read_header[version](member)
            data = member.read()  # to the end, where its checksum is verified
        if is_fortran or dtype.hasobject or len(data) != math.prod(shape) * dtype.itemsize:  # before memory is taken
            raise ValueError(f"the member {info.filename!r} is not of the size that its header says")
        return np.frombuffer(data, dtype).reshape(shape)

    return read(_DESCRIPTION_MEMBER).tobytes().decode(), read


def _unpack_safetensors(path: str, device: str) -> Any:
    library = _import_safetensors()
    if library is None:
        raise errors.MissingDependencyError(
            f"load: {path!r} is a safetensors file, and that library is not installed: pip install safetensors"
        )
    with library.safe_open(path, framework="np") as file:
        crc32, _, text = (file.metadata() or {}).get("gradmgr", "").partition(" ")
        if not text:
            raise errors.StateError(
                f"load: {path!r} is a safetensors file, but none that gradmgr.save wrote; read its arrays with "
                "safetensors.numpy.load_file"
            )
        if str(zlib.crc32(text.encode())) != crc32:
            raise ValueError("its text is damaged")
        return _unpack_description(path, device, text, file.get_tensor)


# ---------------------------------------------------------------- into objects


class _Loader:
    """Loads saved data into objects: all of it is checked before the first object changes."""

    def __init__(self) -> None:
        self.mismatches: list[str] = []
        self._writes: list[tuple[Callable[[], Any], Callable[[], Any]]] = []  # these cannot fail; what undoes each
        self._checked: list[tuple[str, Any, Any]] = []  # name, object with load_state_dict, state
        self._unchecked: list[tuple[str, Any, Any]] = []  # the same, where only an attempt shows whether it fits

    def match(self, into: Any, saved: Any, keys: tuple[Any, ...]) -> Any:
        """Collect what is to be loaded into an object; return the rest of the saved data, or _NO_REST."""
        if isinstance(into, dict):
            return self._match_dict(into, saved, keys)
        if isinstance(into, (list, tuple)):
            return self._match_list(into, saved, keys)
        if isinstance(into, Tensor) or (libraries.is_array(into) and not isinstance(into, np.generic)):
            self._match_array(into, saved, keys)
        elif isinstance(into, random.Random) or source_of(into) is not None:
            self._match_generator(into, saved, keys)
        elif callable(getattr(into, "load_state_dict", None)) and not isinstance(into, type):
            self._match_state(into, saved, keys)
        else:
            raise TypeError(
                f"load: into holds at {_name(keys)} {type(into).__module__}.{type(into).__qualname__}, which cannot be "
                "loaded into; leave it out, load() returns what into does not name"
            )
        return _NO_REST

    def _match_dict(self, into: dict[Any, Any], saved: Any, keys: tuple[Any, ...]) -> Any:
        if not isinstance(saved, dict):
            self._add_mismatch(keys, f"the file holds {_describe(saved)}, not a dict")
            return _NO_REST
        rest = {key: part for key, part in saved.items() if key not in into}
        for key, part in into.items():
            if key not in saved:
                self._add_mismatch((*keys, key), f"is not in the file, which has {_list_keys(saved)}")
                continue
            left = self.match(part, saved[key], (*keys, key))
            if left is not _NO_REST:
                rest[key] = left
        return rest if rest else _NO_REST

    def _match_list(self, into: Any, saved: Any, keys: tuple[Any, ...]) -> Any:
        if not isinstance(saved, (list, tuple)) or len(saved) != len(into):
            self._add_mismatch(keys, f"the file holds {_describe(saved)}, not a sequence of {len(into)}")
        else:
            left = {
                k: self.match(one, other, (*keys, k)) for k, (one, other) in enumerate(zip(into, saved, strict=True))
            }
            rest = {k: part for k, part in left.items() if part is not _NO_REST}
            return rest if rest else _NO_REST
        return _NO_REST

    def _match_array(self, into: Any, saved: Any, keys: tuple[Any, ...]) -> None:
        if not self._check_array(into, saved, keys):
            return
        device = libraries.device_of(into._array if isinstance(into, Tensor) else into)
        found = np.asarray(saved) if isinstance(saved, np.generic) else saved
        values = libraries.to_device(found._array if isinstance(found, Tensor) else found, device)
        if isinstance(into, Tensor):
            check_kept(into, "load(into=...)")
            fresh = wrap(values.copy())  # the file may hold one array for two
            before = wrap(into._array)
            self._writes.append((lambda: rebind(into, fresh), lambda: rebind(into, before)))
        elif not memory.is_writeable(into):
            raise TypeError(f"load: into holds at {_name(keys)} a read-only array; pass one that can be written to")
        else:
            held = into.copy()
            self._writes.append((lambda: into.__setitem__(..., values), lambda: into.__setitem__(..., held)))

    def _check_array(self, into: Any, saved: Any, keys: tuple[Any, ...]) -> bool:
        if not isinstance(saved, Tensor) and not libraries.is_array(saved):
            self._add_mismatch(keys, f"the file holds {_describe(saved)}, not an array")
        elif saved.shape != into.shape or saved.dtype != into.dtype:
            self._add_mismatch(keys, f"the file holds {_describe(saved)}; to be loaded into is {_describe(into)}")
        else:
            return True
        return False

    def _match_generator(self, into: Any, saved: Any, keys: tuple[Any, ...]) -> None:
        if not isinstance(saved, random.Random) and source_of(saved) is None:
            self._add_mismatch(keys, f"the file holds {_describe(saved)}, not a generator")
            return
        (of_file, state), (wanted, before) = _state_of(saved), _state_of(into)
        if of_file.partition(" ")[2] != wanted.partition(" ")[2] or (of_file == "Random") != (wanted == "Random"):
            self._add_mismatch(keys, f"the file holds the state of a {of_file}; to be loaded into is a {wanted}")
        else:
            self._writes.append((lambda: _set_state(into, state), lambda: _set_state(into, before)))

    def _match_state(self, into: Any, saved: Any, keys: tuple[Any, ...]) -> None:
        if not isinstance(saved, dict):
            self._add_mismatch(keys, f"the file holds {_describe(saved)}, not the state of a {type(into).__name__}")
            return
        own = into.state_dict()
        if not (isinstance(own, dict) and own and all(_is_value(part) for part in own.values())):
            self._unchecked.append((_name(keys), into, saved))
            return
        for key, part in own.items():
            if key in saved:
                self._check_array(part, saved[key], (*keys, key))
            else:
                self._add_mismatch((*keys, key), f"is not in the file; to be loaded into is {_describe(part)}")
        for key in saved:
            if key not in own:
                self._add_mismatch(
                    (*keys, key), f"is in the file, {_describe(saved[key])}, and not in the {type(into).__name__}"
                )
        self._checked.append((_name(keys), into, saved))

    def _add_mismatch(self, keys: tuple[Any, ...], text: str) -> None:
        self.mismatches.append(f"{_name(keys)}: {text}")

    def run(self, path: str) -> None:
        """Load everything, or nothing if something does not fit."""
        undo: list[tuple[str, Callable[[], Any]]] = []
        failures: list[str] = []
        try:
            try:
                self._load(undo)
                if self.mismatches:
                    complete(_undo_all, undo, failures)
            except BaseException:
                complete(_undo_all, undo, failures)
                raise
        except BaseException as error:
            complete(_undo_all, undo, failures)
            if failures:
                error.add_note(f"load: these could not be set back to what they were:{''.join(failures)}")
            raise
        if self.mismatches:
            listed = "".join(f"\n  {mismatch}" for mismatch in self.mismatches)
            kept = "nothing was changed:"
            if failures:
                listed += f"\nthese could not be set back to what they were:{''.join(failures)}"
                kept = "all else is as it was:"
            raise errors.StateError(f"load: {path!r} does not fit; {kept}{listed}")

    def _load(self, undo: list[tuple[str, Callable[[], Any]]]) -> None:
        for name, into, state in self._unchecked:
            self._try_to_load(name, into, state, undo)
        if not self.mismatches:
            for name, into, state in self._checked:
                self._try_to_load(name, into, state, undo)
        if not self.mismatches:
            for write, unwrite in self._writes:
                undo.append(("", unwrite))
                write()

    def _try_to_load(self, name: str, into: Any, state: Any, undo: list[tuple[str, Callable[[], Any]]]) -> None:
        """Load a state; if that fails, add a mismatch, upon which the earlier states are restored."""
        undo.append((name, partial(into.load_state_dict, copy.deepcopy(into.state_dict()))))
        try:
            into.load_state_dict(state)
        except MemoryError:  # that is no mismatch
            raise
        except Exception as error:  # whatever a user's class raises, the other objects must be restored
            said = str(error).replace("\n", "\n  ")
            self.mismatches.append(f"{name}: {type(error).__name__}: {said}")


def _undo_all(undo: list[tuple[str, Callable[[], Any]]], failures: list[str]) -> None:
    """Call each, the last first, and once more where it fails; note what fails, and remove what was called."""
    while undo:
        name, function = undo[-1]
        try:
            function()
        except Exception:  # of the user's class, as for want of memory
            try:
                function()
            except Exception as error:
                failures.append(f"\n  {name}: {type(error).__name__}: {error}")
        undo.pop()


def _is_value(part: Any) -> bool:
    return isinstance(part, Tensor) or libraries.is_array(part)


def _describe(value: Any) -> str:
    if _is_value(value):
        return f"shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _list_keys(saved: dict[Any, Any]) -> str:
    names = [str(key) for key in saved]
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "nothing"
