"""The manifests of Kubernetes give each component what its container in the compose file has, and no more.

`make lint` holds the gateway's against the schemas of Kubernetes; no chart and no cluster is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from include.gateway.service.http.admin_calls import document
from include.settings.scheduling import Queue
from tests.fakes import compose

ROOT = compose.ROOT
FOLDER = ROOT / "docker/kubernetes"
MANIFESTS = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "gateway.yaml").read_text())}
VALUES = yaml.safe_load((FOLDER / "airflow-values.yaml").read_text())
SERVICES = compose.load()["services"]
POD = MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
(GATEWAY,) = POD["containers"]
CELERY = VALUES["workers"]["celery"]
(COLLECTOR,) = CELERY["sets"]
COMPONENTS = {
    "migrate": VALUES["migrateDatabaseJob"],
    "api-server": VALUES["apiServer"],
    "scheduler": VALUES["scheduler"],
    "dag-processor": VALUES["dagProcessor"],
    "triggerer": VALUES["triggerer"],
    "worker": CELERY,
    "collector": COLLECTOR,
    "gateway": GATEWAY,
}
# Of config/site.yaml alone; here it is one of `nightshift init`.
OF_THE_DEMONSTRATION = {
    "AIRFLOW_CONN_STORE_STAGEOUT", "AIRFLOW_CONN_GATEWAY_NIGHTLIES",
    "NIGHTSHIFT_STAGEOUT", "NIGHTSHIFT_S3_HOST", "NIGHTSHIFT_S3_PORT",
}  # fmt: skip
OPTIONAL = {"AIRFLOW_CONN_AIRFLOW_API", "NIGHTSHIFT_AIRFLOW_CONNECTION"}


def secrets(component: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Variables of a component that come from a Secret, with its name and key."""
    references = {each["name"]: each.get("valueFrom", {}).get("secretKeyRef") for each in component["env"]}
    return {name: (one["name"], one["key"]) for name, one in references.items() if one}


def strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_has_the_secrets_of_its_container_from_secrets_by_name(name: str) -> None:
    environment = SERVICES[name]["environment"]
    held = {key for key, value in environment.items() if ":?" in value or key in OPTIONAL} - OF_THE_DEMONSTRATION
    assert secrets(COMPONENTS[name]).keys() == held
    plain = {each["name"]: each["value"] for each in COMPONENTS[name]["env"] if "value" in each}
    everywhere = {each["name"] for each in VALUES["env"]} | OF_THE_DEMONSTRATION
    assert environment.keys() - held - everywhere <= plain.keys(), name
    for key in plain.keys() - {"NIGHTSHIFT_CONFIG"}:
        assert plain[key] == environment[key], (name, key)


def test_the_job_of_the_tables_makes_the_pools_too() -> None:
    job = VALUES["migrateDatabaseJob"]
    assert [*job["command"], *job["args"]] == SERVICES["migrate"]["command"]
    assert "NIGHTSHIFT_WORKER_CORES" in {one["name"] for one in VALUES["env"]}


def test_the_chart_adds_no_secret_of_its_own_and_no_account() -> None:
    variables = {key for one in COMPONENTS.values() for key in secrets(one) if key.startswith("AIRFLOW__")}
    assert {key for key, on in VALUES["enableBuiltInSecretEnvVars"].items() if on is not False} == set()
    assert variables <= VALUES["enableBuiltInSecretEnvVars"].keys()
    assert VALUES["createUserJob"] == {"enabled": False}
    assert VALUES["rbac"] == {"create": False}
    assert not [each for each in VALUES["env"] if "valueFrom" in each]
    parts = [CELERY, *(VALUES[name] for name in ("apiServer", "scheduler", "triggerer", "dagProcessor"))]
    assert all(part["waitForMigrations"] == {"enabled": False} for part in parts), "its variables take no Secret"
    assert not [text for text in strings([VALUES, *MANIFESTS.values()]) if re.search(r"://\w+:[^@]+@", text)]


def test_what_the_chart_and_the_image_take_for_granted_is_there() -> None:
    """Removal of old logs calls no script that the image lacks; TMPDIR is in the volumes that hide the image's."""
    for part in (CELERY, VALUES["scheduler"], VALUES["triggerer"], VALUES["dagProcessor"]):
        assert part["logGroomerSidecar"]["args"][:2] == ["sh", "-c"]
    (folder,) = re.findall(r"TMPDIR=(\S+)", (ROOT / "docker/Dockerfile").read_text())
    for mounts in (VALUES["volumeMounts"], GATEWAY["volumeMounts"]):
        assert folder in {each["mountPath"] for each in mounts}


def test_one_variable_has_one_secret_and_what_the_page_says_is_what_is_named() -> None:
    named: dict[str, set[str]] = {}
    for component in COMPONENTS.values():
        for secret, key in secrets(component).values():
            named.setdefault(secret, set()).add(key)
    page = (ROOT / "docs/production.md").read_text().partition("## Kubernetes")[2]
    rows = dict(re.findall(r"^\| `(nightshift-[a-z-]+)` \| (.*?) \|", page, re.MULTILINE))
    assert {secret: set(re.findall(r"`([\w-]+)`", rows[secret])) for secret in named} == named
    others = {"nightshift-gateway-keys", "nightshift-site", "nightshift-public-keys"}
    assert rows.keys() == named.keys() | others


def test_every_queue_has_a_worker_and_the_keys_that_sign_are_with_one() -> None:
    assert set(CELERY["queue"].split(",")) | {COLLECTOR["queue"]} == {queue.value for queue in Queue}
    mounted = [one["secret"]["secretName"] for one in COLLECTOR["extraVolumes"]]
    assert mounted == ["nightshift-gateway-keys"]
    assert "nightshift-gateway-keys" not in str({**VALUES, "workers": {**CELERY, "sets": []}})
    keys = [one["subPath"].rpartition(".")[2] for one in COLLECTOR["extraVolumeMounts"]]
    assert keys == ["key", "crt"]


def test_the_gateway_is_one_unprivileged_pod_with_a_volume_and_probes_that_it_answers() -> None:
    spec = MANIFESTS["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    assert tuple(GATEWAY["command"]) == tuple(SERVICES["gateway"]["command"])
    assert GATEWAY["image"].rpartition("/")[2] == SERVICES["gateway"]["image"]
    assert f"{VALUES['images']['airflow']['repository']}:{VALUES['images']['airflow']['tag']}" == GATEWAY["image"]
    assert (POD["securityContext"]["runAsNonRoot"], POD["securityContext"]["runAsUser"]) == (True, 50000)
    context = GATEWAY["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not POD["automountServiceAccountToken"]
    routes = document()["paths"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "get" in routes[GATEWAY[probe]["httpGet"]["path"]]
    mounts = {one["name"]: one["mountPath"] for one in GATEWAY["volumeMounts"]}
    volumes = {one["name"] for one in POD["volumes"]} | {
        one["metadata"]["name"] for one in spec["volumeClaimTemplates"]
    }
    assert mounts.keys() == volumes
    assert mounts["state"] == SERVICES["gateway"]["volumes"][0].partition(":")[2]
    assert GATEWAY["resources"].keys() == {"requests", "limits"}


def test_only_who_needs_the_gateway_reaches_it() -> None:
    policy = MANIFESTS["NetworkPolicy"]["spec"]
    labels = MANIFESTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == MANIFESTS["Service"]["spec"]["selector"] == labels
    (rule,) = policy["ingress"]
    admitted = {one["podSelector"]["matchLabels"].get("component", "prometheus") for one in rule["from"]}
    assert admitted == {"worker", "triggerer", "api-server", "prometheus"}
    assert [one["port"] for one in rule["ports"]] == [one["name"] for one in GATEWAY["ports"]]
    (port,) = MANIFESTS["Service"]["spec"]["ports"]
    assert f":{port['port']}:{port['port']}" in SERVICES["gateway"]["ports"][0]
    assert port["targetPort"] == GATEWAY["ports"][0]["name"]
