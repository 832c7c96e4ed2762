"""The Debian package, installed into a minimal Debian by its own dpkg, its services started as their units say."""

import os
import shutil
import subprocess

import pytest

import chambers
from chambers import Chamber
from conftest import package

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
# The Debian that the package is installed into.
SUITE = "bookworm"


def deb():
    return package(f"mooncrate_*_{DEBIAN}.deb")


def unit(root, name):
    """The settings of a unit; a setting that stands there more than once is a list."""
    found = {}
    for line in (root / "usr/lib/systemd/system" / name).read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def debian(work):
    """A minimal Debian with the package. Made once; the package is installed anew in a copy for each run."""
    file = deb()
    why = chambers.missing("debootstrap")
    if why:
        pytest.skip(why)
    fresh = work / f"debian-{SUITE}"
    if not (fresh / "done").exists():
        shutil.rmtree(fresh, ignore_errors=True)
        made = subprocess.run(["debootstrap", "--variant=minbase", SUITE, fresh], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"debootstrap cannot make a Debian here: {made.stdout[-300:]}")
        (fresh / "done").touch()
    root = work / "debian"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", fresh, root], check=True)
    shutil.copy(file, root / "mooncrate.deb")
    with Chamber(root) as chamber:
        chamber.run("dpkg", "-i", "/mooncrate.deb")
        yield chamber


class Service:
    """What systemd makes of a unit: its user, folders, variables and limits."""

    def __init__(self, chamber, name, log):
        self.chamber, self.log = chamber, log
        settings = unit(chamber.root, name)
        (account,) = [line for line in (chamber.root / "etc/passwd").read_text().splitlines() if line.startswith("mooncrate:")]
        user, group = account.split(":")[2:4]
        for key, parent in [("StateDirectory", "var/lib"), ("RuntimeDirectory", "run")]:
            for folder in settings.get(key, []):
                path = chamber.root / parent / folder
                path.mkdir(exist_ok=True)
                os.chown(path, int(user), int(group))
        environment = dict(pair.split("=", 1) for pair in settings["Environment"])
        assert settings["Type"] == ["notify"]
        self.server = chamber.start(
            *settings["ExecStart"][0].split(), log=log, user=f"{user}:{group}", environment=environment
        )

    def stop(self):
        self.chamber.stop(self.server, self.log)


def put_and_get(chamber):
    chamber.run("mooncrate", "put", "greeting", "--value", "hello, moon")
    assert chamber.run("mooncrate", "get", "greeting") == "hello, moon"


def test_serve_starts_with_the_shipped_configuration(debian, tmp_path):
    service = Service(debian, "mooncrate-serve.service", tmp_path / "log")
    put_and_get(debian)
    service.stop()


def test_master_and_node_start_with_the_shipped_configuration(debian, tmp_path):
    master = Service(debian, "mooncrate-master.service", tmp_path / "master")
    node = Service(debian, "mooncrate-node.service", tmp_path / "node")
    put_and_get(debian)
    node.stop()
    master.stop()
    # The state of the master, where the unit says.
    assert list((debian.root / "var/lib/mooncrate").glob("master-*.state"))


def test_the_package_says_what_it_needs_and_keeps_its_configuration():
    fields = subprocess.run(["dpkg-deb", "--field", deb()], capture_output=True, text=True, check=True).stdout
    assert "Depends: libc6 (>= 2.28), passwd\n" in fields
    made = subprocess.run(["dpkg-deb", "--info", deb(), "conffiles"], capture_output=True, text=True, check=True).stdout
    assert made == "/etc/mooncrate/mooncrate.toml\n"


def test_lintian_finds_no_error():
    if not shutil.which("lintian"):
        pytest.skip("lintian is not installed")
    command = ["lintian", "--allow-root", "--fail-on=error", "--no-tag-display-limit", deb()]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_an_upgrade_keeps_changes_of_the_configuration_and_a_purge_leaves_nothing(debian):
    settings = debian.root / "etc/mooncrate/mooncrate.toml"
    settings.write_text('segment_size = "64MiB"\n')
    debian.run("dpkg", "-i", "/mooncrate.deb")
    assert settings.read_text() == 'segment_size = "64MiB"\n'
    debian.run("dpkg", "--purge", "mooncrate")
    left = [path for path in ["etc/mooncrate", "usr/bin/mooncrate", "var/lib/mooncrate"] if (debian.root / path).exists()]
    assert left == []
