"""`site_health`: probes the storage sites, and marks those that fail. The file only declares."""

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from operators.params import choose_sites
from operators.stageout import CheckSitesOperator, dag_settings

DOC = """
### Health of sites

Reads a known file of each site that has a `probe`: the first byte, a range, its checksum; where `probe.folder` is set, a
small file is also written, copied by the site itself, and removed. Failures of transfers and of readers since the last
run count as well.

| state | by | what happens |
|---|---|---|
| `ok` | | |
| `degraded` | one bad round; or a tenth of the transfers fail, a write, a copy | readers try it after others |
| `failed` | two bad rounds in a row; one where probe and transfers agree | nothing is sent to it, no storage of it is asked |

It is taken back after two good rounds in a row, and after twice as many for each time that it turned worse within a day.
Where three sites or more, and over half of all that were tried, turn bad in one round, our own network is the cause: one
message, and none is marked for four rounds. Each change is one message.

By hand: the DAG `intervene` and `nightshift site hold` keep a site out whatever its probes say. More: docs/federation.md.
"""  # noqa: E501 - a row of a table is one line

_site = load()
if _site.sites:
    with DAG(
        dag_id="site_health",
        dag_display_name="Site health",
        description="Probe the storage sites, and mark those that fail",
        doc_md=DOC,
        **dag_settings(
            "*/15 * * * *",
            params={"sites": choose_sites(sorted(_site.sites), "Probe only these sites. Empty: all.")},
            longest=timedelta(minutes=12),
        ),
    ) as site_health:
        CheckSitesOperator(
            task_id="check",
            task_display_name="Check sites",
            doc_md="Probes all sites at the same time, judges them, and tells what changed.",
        )
