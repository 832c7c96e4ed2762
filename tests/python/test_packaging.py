"""What packages are made from: units that systemd accepts, manifests that Kubernetes accepts, and in both only settings that
the program knows. `./dev package test` installs the packages themselves.
"""

import os
import pathlib
import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

PACKAGING = pathlib.Path(__file__).parent.parent.parent / "packaging"
UNITS = sorted((PACKAGING / "deb").glob("*.service"))
BASE = PACKAGING / "kubernetes/base"
# The oldest and the newest Kubernetes that the manifests are checked for.
KUBERNETES = ["1.29", "1.37"]
# What Kubernetes puts into fields that refer to the pod.
FIELDS = {
    "metadata.name": "mooncrate-node-0",
    "metadata.namespace": "default",
    "spec.nodeName": "machine-7",
    "status.podIP": "10.0.0.7",
}


def settings(*arguments, environment=None):
    """Has the program read its settings; fails if it does not know one, or refuses its value."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")}
    done = subprocess.run(
        [os.environ["MOONCRATE_BINARY"], *arguments, "--print-config"],
        capture_output=True, text=True, check=False, env={**kept, **(environment or {})},
    )  # fmt: skip
    # An unknown variable is a warning.
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def manifests(folder):
    """All objects of the files that a kustomization lists."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(file.name for file in folder.glob("*.yaml") if file.name != "kustomization.yaml")
    return [thing for name in listed for thing in yaml.safe_load_all((folder / name).read_text())]


def containers():
    for thing in manifests(BASE):
        if thing["kind"] == "StatefulSet":
            for container in thing["spec"]["template"]["spec"]["containers"]:
                yield thing, container


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_unit_starts_the_program_with_the_shipped_file(unit):
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/usr/bin/mooncrate (.*)$", text, re.MULTILINE)
    shipped = PACKAGING / "deb/mooncrate.toml"
    assert str(shipped) in settings(*command.replace("/etc/mooncrate/mooncrate.toml", str(shipped)).split())
    for line in ["Type=notify", "User=mooncrate", "StateDirectory=mooncrate", "LimitMEMLOCK=infinity"]:
        assert f"\n{line}\n" in text
    assert "\nLimitNOFILE=" in text


def test_every_example_of_the_shipped_file_is_a_setting(tmp_path):
    text = (PACKAGING / "deb/mooncrate.toml").read_text()
    file = tmp_path / "all.toml"
    file.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    assert "drain_on_stop" in file.read_text()
    settings("node", "--config", str(file))


def test_systemd_accepts_the_units(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for unit in UNITS:
        # The program is not installed here.
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/mooncrate", os.environ["MOONCRATE_BINARY"]))
    command = ["systemd-analyze", "verify", "--man=no", *tmp_path.glob("*.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_manifests(version):
    for thing in manifests(BASE):
        kubernetes_validate.validate(thing, version, strict=True)


def test_kustomize_builds_base_and_monitoring(tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(PACKAGING / "kubernetes/monitoring", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    built = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True).stdout
    kinds = [thing["kind"] for thing in yaml.safe_load_all(built)]
    assert (kinds.count("StatefulSet"), kinds.count("PodMonitor")) == (3, 1)


def test_manifests_name_only_settings_that_the_program_knows():
    seen = 0
    for _, container in containers():
        if container["image"] != "mooncrate":
            continue
        environment = {}
        for variable in container["env"]:
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = FIELDS[field] if field else variable["value"]
            environment[variable["name"]] = filled(value, environment)
        settings(*[filled(argument, environment) for argument in container["args"]], environment=environment)
        seen += 1
    assert seen == 2


def filled(text, environment):
    """With the variables that it refers to, as Kubernetes writes them."""
    return re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], text)


def test_ports_and_selectors_of_manifests_fit_together():
    things = manifests(BASE)
    pods = {thing["metadata"]["name"]: thing["spec"]["template"] for thing in things if thing["kind"] == "StatefulSet"}
    services = {thing["metadata"]["name"]: thing["spec"] for thing in things if thing["kind"] == "Service"}
    budgets = {thing["metadata"]["name"]: thing["spec"] for thing in things if thing["kind"] == "PodDisruptionBudget"}
    assert pods.keys() == services.keys() == budgets.keys()
    for name, template in pods.items():
        assert services[name]["selector"] == template["metadata"]["labels"] == budgets[name]["selector"]["matchLabels"]
        ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in services[name]["ports"]} <= ports
        assert template["spec"]["enableServiceLinks"] is False
    monitor = yaml.safe_load((PACKAGING / "kubernetes/monitoring/podmonitor.yaml").read_text())["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for thing, container in containers():
        if container["image"] == "mooncrate":
            assert monitor["selector"]["matchLabels"].items() <= thing["spec"]["template"]["metadata"]["labels"].items()
            assert endpoint["port"] in {port["name"] for port in container["ports"]}


def test_a_node_has_time_to_drain_and_memory_for_its_segment():
    ((thing, container),) = [pair for pair in containers() if pair[0]["metadata"]["name"] == "mooncrate-node"]
    flags = dict(argument.split("=", 1) for argument in container["args"][1:])
    minutes = int(re.fullmatch(r"(\d+)m", flags["--drain-on-stop"])[1])
    assert thing["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= minutes * 60 + 30
    segment = int(re.fullmatch(r"(\d+)GiB", flags["--segment-size"])[1])
    assert int(re.fullmatch(r"(\d+)Gi", container["resources"]["limits"]["memory"])[1]) > segment


def test_etcd_knows_the_flags_that_it_is_started_with():
    if not shutil.which("etcd"):
        pytest.skip("etcd is not installed")
    known = subprocess.run(["etcd", "--help"], capture_output=True, text=True, check=False)
    ((_, container),) = [pair for pair in containers() if pair[1]["image"] == "etcd"]
    for flag in container["command"][1:]:
        assert flag.split("=")[0] in known.stdout + known.stderr
