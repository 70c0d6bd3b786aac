"""
The runtime as a wheel, built from the very files this host was installed with.

Never by name from an index: what is called so there is a stranger's. The same files and pins give
the same bytes and the same version, so an environment made from others is seen to be stale by its
name alone, in an editable checkout too.
"""

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import zipfile
from pathlib import Path

import msgspec

from rlm_protocol import __version__
from rlm_protocol.errors import KernelUnavailable

PACKAGES = ("rlm_protocol", "rlm")
PINNED = ("msgspec", "dill", "cloudpickle")
LEFT_OUT = ("rlm_protocol/conformance/", "rlm_protocol/schema.py", "rlm/_build.py")
"""Tools for the host's side, and the file that is written here."""
NAME = "rlm_kernel_local"  # a local file's name; never asked of an index
EPOCH = (1980, 1, 1, 0, 0, 0)


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime of this host: its files by archive name, and what they need."""

    version: str
    """`<host version>+<digest of files and pins>`; the runtime repeats it in `ready`."""
    digest: str
    files: dict[str, bytes]
    pins: dict[str, str]


@functools.cache
def runtime() -> Runtime:
    """
    Read the runtime's files, once per host process. None of them is run.

    Raises KernelUnavailable when this host's installation is incomplete.
    """
    files = _read_files()
    pins = {name: importlib.metadata.version(name) for name in PINNED}
    total = hashlib.sha256()
    for name, data in (*files.items(), *((n, v.encode()) for n, v in pins.items())):
        total.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    digest = total.hexdigest()[:12]
    version = f"{__version__}+{digest}"
    build = f'"""Written when the runtime was packed."""\n\nVERSION = "{version}"\n'
    return Runtime(
        version=version,
        digest=digest,
        files={**files, "rlm/_build.py": f'{build}DIGEST = "{digest}"\n'.encode()},
        pins=pins,
    )


def unpack(target: Path) -> None:
    """Write the runtime's files below `target`."""
    for name, data in runtime().files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def build(out_dir: Path) -> Path:
    """Write the wheel into `out_dir`, for installers. Gives its path."""
    packed = runtime()
    info = f"{NAME}-{packed.version}.dist-info"
    requires = "".join(f"Requires-Dist: {name}=={pin}\n" for name, pin in packed.pins.items())
    metadata = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {packed.version}\n{requires}"
    tags = "Wheel-Version: 1.0\nGenerator: rlm-host\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        **packed.files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": tags.encode(),
    }
    record = [f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = ("".join(record) + f"{info}/RECORD,,\n").encode()
    wheel = out_dir / f"{NAME}-{packed.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return wheel


def _read_files() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise KernelUnavailable(
                "This host's own files are incomplete; install rlm-host again.", missing=package
            )
        root = Path(spec.submodule_search_locations[0])
        for path in root.rglob("*"):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            hidden = any(p.startswith(".") or p == "__pycache__" for p in Path(name).parts)
            if path.is_file() and not hidden and not name.startswith(LEFT_OUT):
                files[name] = path.read_bytes()
    return dict(sorted(files.items()))


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
