"""The OCI image, unpacked by umoci, its program run as its configuration says and with nothing but its files."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import chambers
from chambers import Chamber
from conftest import ROOT, package

sys.path.insert(0, str(ROOT / "packaging"))
import oci  # noqa: E402


def layout():
    return package("mooncrate-*-oci")


@pytest.fixture(scope="module")
def image(work):
    """The unpacked image and the configuration of its process."""
    folder = layout()
    why = chambers.missing("umoci")
    if why:
        pytest.skip(why)
    bundle = work / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    version = folder.name.split("-")[1]
    subprocess.run(["umoci", "unpack", "--image", f"{folder}:{version}", bundle], check=True)
    process = json.loads((bundle / "config.json").read_text())["process"]
    with Chamber(bundle / "rootfs") as chamber:
        yield chamber, process


def test_the_program_of_the_image_serves_as_its_user(image, tmp_path):
    chamber, process = image
    user = process["user"]
    assert user["uid"] == 65532
    options = {
        "user": f"{user['uid']}:{user['gid']}",
        "environment": dict(pair.split("=", 1) for pair in process["env"]),
    }
    assert process["args"] == ["/usr/bin/mooncrate", "serve"]
    server = chamber.start(*process["args"], log=tmp_path / "log", **options)
    chamber.run("/usr/bin/mooncrate", "put", "greeting", "--value", "hello, moon", **options)
    assert chamber.run("/usr/bin/mooncrate", "get", "greeting", **options) == "hello, moon"
    chamber.stop(server, tmp_path / "log")


def test_a_secret_of_kubernetes_is_taken(image, tmp_path):
    """A Secret volume with fsGroup holds files of root, mode 0440, in that group."""
    chamber, process = image
    user = f"{process['user']['uid']}:{process['user']['gid']}"
    token = chamber.root / "run/cluster.token"
    token.write_text(chamber.run("/usr/bin/mooncrate", "token", "new"))
    os.chown(token, 0, process["user"]["gid"])
    token.chmod(0o440)
    given = {"MOONCRATE_TOKEN_FILE": "/run/cluster.token", "XDG_RUNTIME_DIR": "/run/mooncrate"}
    command = ["/usr/bin/mooncrate", "serve", "--grpc", "off"]
    server = chamber.start(*command, log=tmp_path / "log", user=user, environment=given)
    chamber.run("/usr/bin/mooncrate", "put", "k", "--value", "v", user=user, environment=given)
    chamber.stop(server, tmp_path / "log")


def test_scanners_find_the_packages_of_the_image(image):
    chamber, _ = image
    notes = chamber.root / "var/lib/dpkg/status.d"
    assert {note.name for note in notes.iterdir()} == {"base-files", "libc6", "libgcc-s1"}


def test_the_same_files_give_the_same_bytes(tmp_path):
    for name in ["a", "b"]:
        layer = oci.Layer()
        layer.add_folder("var", owner=7)
        layer.add_file("var/x", "text" if name == "a" else b"text")
        oci.write(tmp_path / name, layer, {"Cmd": ["x"]}, architecture="amd64", tag="1")
        oci.archive(tmp_path / name, tmp_path / f"{name}.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_other_tools_read_the_layout():
    if not shutil.which("skopeo"):
        pytest.skip("skopeo is not installed")
    folder = layout()
    for place in [f"oci:{folder}", f"oci-archive:{folder}.tar"]:
        about = json.loads(subprocess.run(["skopeo", "inspect", place], capture_output=True, text=True, check=True).stdout)
        assert about["Os"] == "linux"
