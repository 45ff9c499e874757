"""The accounts of a versitygw, through the routes that it adds to the S3 protocol for its administrator."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Signer
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session

from deploy.bootstrap.site import REGION, Credentials

OK = 300


def replace_accounts(
    endpoint: str, root: Credentials, accounts: Iterable[Credentials], *, ca_file: Path | None = None
) -> None:
    """Make these the accounts of the server, with these keys; others are deleted."""
    server = _Server(endpoint, root, ca_file)
    expected = {account.access_key: account.secret_key for account in accounts}
    existing = server.accounts()
    for name, secret in expected.items():
        if name not in existing:
            server.create(name, secret)
        elif existing[name] != secret:
            server.set_secret(name, secret)
    for name in existing.keys() - expected.keys():
        server.delete(name)


class _Server:
    def __init__(self, endpoint: str, root: Credentials, ca_file: Path | None) -> None:
        self._endpoint = endpoint
        self._signer = S3SigV4Auth(Signer(root.access_key, root.secret_key), "s3", REGION)
        verify: Any = str(ca_file) if ca_file else True  # a path, too, whatever the stubs know
        self._http = URLLib3Session(verify=verify)

    def accounts(self) -> dict[str, str]:
        """Access key -> secret key."""
        elements = ET.fromstring(self._ask("list-users")).iter("Accounts")  # noqa: S314 - our own server
        return {account.findtext("Access", ""): account.findtext("Secret", "") for account in elements}

    def create(self, name: str, secret: str) -> None:
        self._ask("create-user", body=_xml("Account", Access=name, Secret=secret, Role="user"))

    def set_secret(self, name: str, secret: str) -> None:
        self._ask("update-user", {"access": name}, _xml("MutableProps", Secret=secret))

    def delete(self, name: str) -> None:
        self._ask("delete-user", {"access": name})

    def _ask(self, route: str, parameters: dict[str, str] | None = None, body: bytes = b"") -> bytes:
        url = f"{self._endpoint}/{route}"
        request = AWSRequest(method="PATCH", url=url, params=parameters or {}, data=body)
        self._signer.add_auth(request)
        answer = self._http.send(request.prepare())
        if answer.status_code >= OK:
            code = str(answer.status_code)
            raise ClientError({"Error": {"Code": code, "Message": answer.text}}, route)
        content: bytes = answer.content
        return content


def _xml(name: str, **fields: str) -> bytes:
    element = ET.Element(name)
    for field, value in fields.items():
        ET.SubElement(element, field).text = value
    return ET.tostring(element)
