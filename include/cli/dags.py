"""`nightshift dags on`: unpause the DAGs of Nightshift in Airflow."""

from __future__ import annotations

from typing import Annotated

import typer

from include.cli.repository.open import open_site, refusing

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """DAGs in Airflow."""


@app.command()
def on(
    dags: Annotated[
        list[str] | None, typer.Argument(metavar="[DAG]...", help="Ids of DAGs; default: all that the site needs.")
    ] = None,
    connection: Annotated[
        str,
        typer.Option(
            help="Connection of a user of Airflow's API who may change DAGs; default: of the lab, else of the site."
        ),
    ] = "",
) -> None:
    """Unpause DAGs: those that run by themselves, and those that people and pages start.

    The last tick of a schedule that was missed begins at once then, from the `start` of its slot on. DAGs that Airflow
    has not read yet are waited for.
    """
    with refusing():
        from include.cli.airflow_connections import airflow_api, unpause

        site = open_site()
        api = airflow_api(site.settings, site.secrets, connection)
        unpaused = unpause(api, site.settings, dags or ())
    for dag_id in unpaused:
        typer.echo(f"unpaused {dag_id}")
    if not unpaused:
        typer.echo("none of them was paused")
