"""`backup`: ledger, gateway state, keys and settings into one file, every night. The file only declares."""

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from operators.operations import CreateBackupOperator
from operators.publishing import dag_defaults

DOC = """
### Backup

Copies the ledger while others write to it, the gateway's state, the keys and the configuration into one file with sums,
checks it, and puts it into the store of `backup.store`; the newest `backup.keep` stay. Keys are encrypted to the
passphrase of `backup.connection`, or to the public key `backup.recipient`; master keys are never in it.

The task runs where ledger, gateway state and keys are. What the machine does not have is a warning in the log.
Airflow's own database is not in it. By hand: `nightshift backup create`; to restore: docs/backup.md.
"""

_site = load()
if _site.backup.store is not None:
    with DAG(
        dag_id="backup",
        dag_display_name="Backup",
        description="Back up ledger, gateway state, keys and settings",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=6),
        **dag_defaults(_site.backup.schedule, retries=2, priority=50, execution_timeout=timedelta(hours=3)),
        tags=["care"],
    ) as backup:
        CreateBackupOperator(
            task_id="create",
            task_display_name="Create a backup",
            doc_md="Makes a backup, checks it, and deletes old ones.",
        )
