"""Logins to Kafka, as the nouns `tenants` and `subscribers` have them."""

from collections.abc import Callable
from typing import Any

from cli.commands.context import admin_api
from cli.output import show, show_table


def login_text(user: dict[str, Any]) -> str:
    lines = [f"username      {user['username']}", f"password      {user['password']}"]
    if user["state"] == "pending":
        return "\n".join([*lines, "accounts has not answered: the login works once it has"])
    topics = {"reads": ", ".join(user["reads"]), "writes": ", ".join(user["writes"])}
    lines += [f"{name:13} {text}" for name, text in topics.items() if text]
    return "\n".join([*lines, f"groups        {user['group_prefix']}*"])


def rotate(name: str) -> None:
    user = admin_api().post(f"/admin/kafka-users/{name}/rotate")
    show(user, login_text(user))


def remove(name: str) -> None:
    answer = admin_api().delete(f"/admin/kafka-users/{name}")
    show(
        answer,
        f"{name}: {'removed' if answer['deleted'] else 'accounts has not answered; it is removed later'}",
    )


def show_users(is_shown: Callable[[dict[str, Any]], bool]) -> None:
    users = [user for user in admin_api().pages("/admin/kafka-users") if is_shown(user)]
    rows = [
        (user["username"], ", ".join(user["reads"]), ", ".join(user["writes"]), f"{user['group_prefix']}*")
        for user in users
    ]
    show_table(users, ("user", "reads", "writes", "groups"), rows)
