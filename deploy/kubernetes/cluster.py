"""A Kubernetes of this machine for tests and for trying: etcd, the control plane and small kubelets on 127.0.0.1.

    <folder>/admin.kubeconfig         of everybody's rights
             provisioner.kubeconfig   of those in role.yaml, in the namespace `retune`
             audit.log                what the provisioner asked for, a line of JSON each
             etcd/ certificates/      what etcd and the API server keep
             <node>/                  folders of the pods of a node, each with its container's log
             *.out                    what the daemons print

The nodes are machines in name only: pods are processes of this machine, which nothing confines.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from deploy.daemons import START_SECONDS, Daemons, Running
from deploy.kubernetes.kubelet import CLUSTER_MARK
from deploy.kubernetes.programs import programs
from deploy.local.errors import StackError
from shared.files import write_whole
from shared.ports import free_port
from shared.processes.environment import inherited

NODES = 3
LOOPBACK = "127.0.0.1"
NAMESPACE = "retune"
PROVISIONER = "retune-provisioner"
ROLE = Path(__file__).parent / "pools/role.yaml"
REQUEST_SECONDS = 10.0
GANG_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
GANG_API = "scheduling.k8s.io/v1alpha2"
CONTROLLERS = (
    *("job-controller", "pod-garbage-collector-controller", "node-lifecycle-controller"),
    *("taint-eviction-controller", "garbage-collector-controller", "namespace-controller"),
    *("ttl-after-finished-controller", "disruption-controller", "podgroup-protection-controller"),
    *("statefulset-controller", "persistentvolume-binder-controller"),
)

AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {{level: Metadata, users: ["system:serviceaccount:{namespace}:{account}"]}}
  - {{level: None}}
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: retune, cluster: {{server: "{server}", certificate-authority: "{authority}"}}}}]
users: [{{name: user, user: {{token: "{token}"}}}}]
contexts: [{{name: retune, context: {{cluster: retune, user: user}}}}]
current-context: retune
"""


class KubernetesCluster(Running):
    """`with KubernetesCluster(folder) as cluster`: its daemons run until the block ends."""

    def __init__(self, folder: Path, *, nodes: int = NODES, lost_after_seconds: int = 6) -> None:
        self._folder = folder.absolute()
        self._programs = programs()
        self._daemons = Daemons(self._folder, mark=CLUSTER_MARK)
        self._lost_after_seconds = lost_after_seconds
        self._etcd = f"http://{LOOPBACK}:{free_port(LOOPBACK)}"
        self._peers = f"http://{LOOPBACK}:{free_port(LOOPBACK)}"
        self._port = free_port(LOOPBACK)
        self._token = token_hex(16)
        self.nodes = tuple(f"k{number}" for number in range(1, nodes + 1))

    @property
    def admin(self) -> Path:
        return self._folder / "admin.kubeconfig"

    @property
    def provisioner(self) -> Path:
        return self._folder / "provisioner.kubeconfig"

    @property
    def audit(self) -> Path:
        return self._folder / "audit.log"

    @property
    def _server(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    @property
    def _certificate(self) -> Path:
        return self._folder / "certificates/apiserver.crt"

    def start(self) -> None:
        self._write()
        self._start_etcd()
        self.start_api_server()
        self.start_controllers()
        self._start(
            "kube-scheduler", f"--kubeconfig={self.admin}", "--leader-elect=false", *_SECURE, GANG_GATES
        )
        for node in self.nodes:
            self.start_node(node)
        self._set_up_namespace()
        self._until(self.are_ready, self.nodes[-1])

    def start_api_server(self) -> None:
        key = self._folder / "service-account.key"
        self._start(
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            f"--secure-port={self._port}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self._certificate.parent}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={self._folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit}",
            f"--runtime-config={GANG_API}=true",
            GANG_GATES,
        )
        self._until(self._is_up, "kube-apiserver")

    def start_controllers(self) -> None:
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.admin}",
            "--leader-elect=false",
            *_SECURE,
            f"--controllers={','.join(CONTROLLERS)}",
            f"--node-monitor-grace-period={self._lost_after_seconds}s",
            "--node-monitor-period=1s",
            GANG_GATES,
        )

    def start_node(self, node: str) -> None:
        command = [
            sys.executable,
            "-m",
            "deploy.kubernetes.kubelet",
            str(self.admin),
            node,
            str(self._folder / node),
        ]
        environment = inherited() | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._daemons.start(node, command, environment=environment)

    def kill(self, name: str) -> None:
        """End a program of the control plane, or the kubelet of a node, as a power cut would; its pods run on."""
        self._daemons.kill(name)

    def stop(self) -> None:
        self._daemons.kill_all()

    def request(self, method: str, path: str, body: Any = None, *, of: str = "json") -> Any:
        """Ask the API server as its admin. `of`: kind of a PATCH. Raises StackError with the server's words."""
        kinds = {"json": "application/json", "merge": "application/merge-patch+json"}
        request = urllib.request.Request(  # noqa: S310 - the server is ours
            self._server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kinds[of]},
        )
        context = ssl.create_default_context(cafile=str(self._certificate))
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS, context=context) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise StackError(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from error
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        write_whole(self._folder / "service-account.key", pem)
        write_whole(self._folder / "tokens.csv", f'{self._token},admin,admin,"system:masters"\n')
        policy = AUDIT.format(namespace=NAMESPACE, account=PROVISIONER)
        write_whole(self._folder / "audit.yaml", policy)
        self._write_kubeconfig(self.admin, self._token)

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        write_whole(path, KUBECONFIG.format(server=self._server, authority=self._certificate, token=token))

    def _start_etcd(self) -> None:
        self._start(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={self._peers}",
            f"--initial-advertise-peer-urls={self._peers}",
            f"--initial-cluster=default={self._peers}",
            "--unsafe-no-fsync",
        )

    def _set_up_namespace(self) -> None:
        """Create the namespace with the provisioner's account, which has the rights of role.yaml and no others."""
        for document in _documents():
            kind = document["kind"]
            place = _PLACES[kind].format(namespace=NAMESPACE)
            self.request("POST", place, document)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{PROVISIONER}/token"
        answer = self.request("POST", account, {"spec": {"expirationSeconds": 86400}})
        self._write_kubeconfig(self.provisioner, answer["status"]["token"])

    def _start(self, program: str, *arguments: str) -> None:
        self._daemons.start(program, [str(self._programs[program]), *arguments], environment=inherited())

    def _until(self, condition: Any, name: str) -> None:
        self._daemons.until(condition, name, self._daemons.output(name), seconds=3 * START_SECONDS)

    def _is_up(self) -> bool:
        try:
            return bool(self.request("GET", "/readyz") == "ok")
        except (OSError, StackError):
            return False

    def are_ready(self) -> bool:
        """Return whether pods can be placed on every node."""
        nodes = self.request("GET", "/api/v1/nodes")["items"]
        return {node["metadata"]["name"] for node in nodes if not node["spec"].get("taints")} == set(
            self.nodes
        )


_SECURE = (f"--bind-address={LOOPBACK}", "--secure-port=0")
_PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def _documents() -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all(ROLE.read_text())
