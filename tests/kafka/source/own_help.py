"""A broker that tests may kill and freeze, with a listener that requires passwords."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest
from tests.kafka.source.kafka_help import admin_of

from sluicegate.testing import EmbeddedKafka
from sluicegate.testing.servers.program import free_port

if TYPE_CHECKING:
    from collections.abc import Generator

USER, PASSWORD = "reader", "Right-1234-secret"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_TOPIC, _GROUP, _LITERAL = 2, 3, 3
_ALLOW = 3
Right = Literal["read", "write"]
_RIGHTS: dict[Right, int] = {"read": 3, "write": 4}


class OwnKafka(EmbeddedKafka):
    """Without a login everything is allowed; with one, only what was granted."""

    def __init__(self) -> None:
        plain, logins, controller = free_port(), free_port(), free_port()
        listeners = f"PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{logins}"
        super().__init__(
            {
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT"
                ),
                "inter.broker.listener.name": "PLAINTEXT",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": (
                    f'{_PLAIN} required user_{USER}="{PASSWORD}";'
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "group.min.session.timeout.ms": "1000",
            },
            "256m",
        )
        self.bootstrap = f"127.0.0.1:{plain}"
        self.logins = f"127.0.0.1:{logins}"
        """The address that requires a password."""

    def restart_at_once(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()


@contextlib.contextmanager
def own_kafka() -> Generator[OwnKafka]:
    """Start one; kill it and remove its data when the context ends."""
    kafka = OwnKafka()
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.close()


def login(password: str = PASSWORD) -> dict[str, Any]:
    """The options of an access that logs in."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_password": password,
    }


async def grant(
    kafka: OwnKafka, *, topic: str | None = None, group: str | None = None, to: Right = "read"
) -> None:
    """Allow the user to read a topic, or to write to it, or to use a group."""
    async with admin_of(kafka) as admin:
        asked = CreateAclsRequest(*_right(topic, group, to))
        answer = await admin._send_request(asked)
    for code, told in answer.creation_responses:
        if code:
            raise for_code(code)(told)


async def revoke(kafka: OwnKafka, *, topic: str, to: Right = "read") -> None:
    """Revoke the permission. The broker may take a moment."""
    async with admin_of(kafka) as admin:
        await admin._send_request(DeleteAclsRequest(*_right(topic, None, to)))


def _right(topic: str | None, group: str | None, to: Right) -> tuple[Any, ...]:
    kind, name = (_TOPIC, topic) if topic is not None else (_GROUP, group)
    return kind, name or "", _LITERAL, f"User:{USER}", "*", _RIGHTS[to], _ALLOW
