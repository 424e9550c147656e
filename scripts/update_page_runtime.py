"""Fetch the onnxruntime-web files of the page, check their hashes, and put them into arcaps/page/runtime.

    python scripts/update_page_runtime.py                 # needs npm, and the extra onnx for the licence texts

For another release, change VERSION and the hashes here and in tests/page/test_files.py.
The npm package has no licence texts; those of the Python package onnxruntime are of the same sources.
"""

import gzip
import hashlib
import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

import onnxruntime

VERSION = "1.30.0"
TARBALL = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
RUNTIME = Path(__file__).parent.parent / "arcaps/page/runtime"


def checked(name: str, content: bytes, sha256: str) -> bytes:
    """The content, if its hash is the expected one."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise SystemExit(f"{name} has the SHA-256 {found}, not {sha256}")
    return content


def main() -> None:
    """Fetch, check, compress, write."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"onnxruntime-web@{VERSION}"], cwd=folder, check=True)
        (packed,) = Path(folder).glob("*.tgz")
        tarball = checked(packed.name, packed.read_bytes(), TARBALL)
    RUNTIME.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        for name, sha256 in FILES.items():
            member = archive.extractfile(f"package/dist/{name}")
            assert member is not None
            content = checked(name, member.read(), sha256)
            (RUNTIME / f"{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    licences = Path(onnxruntime.__file__).parent
    (RUNTIME / "LICENSE").write_bytes((licences / "LICENSE").read_bytes())
    notices = (licences / "ThirdPartyNotices.txt").read_bytes()
    (RUNTIME / "ThirdPartyNotices.txt.gz").write_bytes(gzip.compress(notices, 9, mtime=0))
    for path in sorted(RUNTIME.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
