"""`nightshift settings roles`: the S3 policies that keep publisher, gateway, collector and readers apart."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from include.settings.load import load
from include.settings.model import SiteSettings
from include.storage.errors import StoreError
from include.storage.roles import GRANTS, PolicyServer, Role, bucket_policy, user_policy

HINTS = {
    PolicyServer.AWS: "make the users in IAM, without policies of their own",
    PolicyServer.RADOSGW: "radosgw-admin user create --uid={user} --display-name={user}",
    PolicyServer.SEAWEEDFS: 'in the file of -s3.config: {{"name": "{user}", "credentials": [...], "actions": []}}',
}


def roles(
    store: Annotated[str, typer.Option("--store", help="A store of the configuration.")],
    server: Annotated[PolicyServer, typer.Option(help="How the server names its users.")] = PolicyServer.RADOSGW,
    account: Annotated[str, typer.Option(help="AWS: the account's twelve digits. radosgw: the users' tenant.")] = "",
    user_prefix: Annotated[str, typer.Option(help="What the users' names begin with.")] = "nightshift-",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document: the bucket's and each user's.")] = False,
) -> None:
    """Print the bucket policy that gives each role its rights, and no other's. It changes nothing."""
    settings = load()
    try:
        document = policies(settings, store, server, account=account, user_prefix=user_prefix)
    except StoreError as error:
        raise typer.BadParameter(f"store {store}: {error}") from None
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    for role, user in document["users"].items():
        rights = "; ".join(
            f"{grant.name.lower()} {' '.join(grant.below or ())}".rstrip() for grant in GRANTS[Role(role)]
        )
        typer.echo(f"# {role}: user {user}: {rights}")
    typer.echo(f"# users without any rights of their own: {HINTS[server].format(user=user_prefix + '...')}")
    for note in notes(server):
        typer.echo(f"# {note}")
    typer.echo(json.dumps(document["bucket_policy"], indent=1))


def policies(
    settings: SiteSettings, store: str, server: PolicyServer, *, account: str = "", user_prefix: str = ""
) -> dict[str, Any]:
    """What a store's owner has to set, for all repositories in it. Raises StoreError for one that is not on S3."""
    url = settings.store(store).url
    repositories = sorted(repository.fqrn for repository in settings.repositories.values() if repository.store == store)
    users: dict[Role, str] = {role: f"{user_prefix}{role.value}" for role in Role if role is not Role.READER}
    principals = {role: server.principal(user, account) for role, user in users.items()}
    return {
        "store": store,
        "url": url,
        "server": server.value,
        "repositories": repositories,
        "users": {role.value: user for role, user in users.items()},
        "bucket_policy": bucket_policy(url, repositories, principals),
        "user_policies": {role.value: user_policy(url, repositories, role) for role in users},
        "notes": list(notes(server)),
    }


def notes(server: PolicyServer) -> tuple[str, ...]:
    """What a server cannot enforce, or does in its own way."""
    match server:
        case PolicyServer.RADOSGW:
            return (
                "requests that delete many objects need the right on the bucket too; each object is judged as well",
                "an object belongs to whom wrote it last: the bucket's owner reads it by the readers' rule only",
            )
        case PolicyServer.SEAWEEDFS:
            return ("a user with any action of the file has them in addition to the policy: leave them empty",)
    return ()
