"""Writes an OCI image layout with one layer: https://github.com/opencontainers/image-spec, version 1.1.

No daemon, no root and no network. The same files give the same bytes: entries are sorted, and every time is 1970.
Tests read the result with umoci.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"


class Layer:
    """Files by their paths; the last one added wins. Everything belongs to root unless an owner is given."""

    def __init__(self):
        self.entries = {}

    def add_tree(self, folder):
        """Everything below a folder, with its permissions."""
        for path in sorted(pathlib.Path(folder).rglob("*")):
            name = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode & 0o7777
            if path.is_symlink():
                self._add(name, tarfile.SYMTYPE, 0o777, link=os.readlink(path))
            elif path.is_dir():
                self._add(name, tarfile.DIRTYPE, mode)
            else:
                self._add(name, tarfile.REGTYPE, mode, data=path.read_bytes())

    def add_file(self, name, data, mode=0o644, owner=0):
        data = data.encode() if isinstance(data, str) else data
        self._add(name, tarfile.REGTYPE, mode, data=data, owner=owner)

    def add_folder(self, name, mode=0o755, owner=0):
        self._add(name, tarfile.DIRTYPE, mode, owner=owner)

    def _add(self, name, kind, mode, *, data=b"", link="", owner=0):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(data), link
        info.uid = info.gid = owner
        self.entries[name] = (info, data)

    def tar(self):
        """The archive. Folders come before what they hold, because their paths are shorter."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(self.entries):
                info, data = self.entries[name]
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()


def write(folder, layer, config, *, architecture, tag):
    """Writes the layout. `config` is the image's `config` object: user, entry point, environment, labels."""
    folder = pathlib.Path(folder)
    (folder / "blobs/sha256").mkdir(parents=True)
    plain = layer.tar()
    compressed = gzip.compress(plain, compresslevel=9, mtime=0)
    image = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(folder, CONFIG, _json(image)),
        "layers": [_blob(folder, LAYER, compressed)],
    }
    entry = _blob(folder, MANIFEST, _json(manifest))
    entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    (folder / "index.json").write_bytes(_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def archive(folder, file):
    """The layout as one file, as `docker load`, `podman load` and `skopeo copy oci-archive:` take it."""
    layer = Layer()
    layer.add_tree(folder)
    pathlib.Path(file).write_bytes(layer.tar())


def _json(value):
    return json.dumps(value, indent=1, sort_keys=True).encode()


def _digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _blob(folder, kind, data):
    digest = _digest(data)
    (folder / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}
