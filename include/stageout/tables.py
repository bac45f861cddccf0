"""The ledger's tables of stage-out. A change here needs a migration in `include/ledger/migrations/versions`.

A component looks for (state, due time), or (state, queue, due time): both are indices, so a claim reads no more rows
than it takes. A claim moves the due time to its end: what a dead process had claimed is due
again by itself.
"""

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, Table, UniqueConstraint, false

from include.ledger.metadata import (
    ROW_ID,
    TABLE_OPTIONS as PLAIN_OPTIONS,
    UtcTime,
    exact,
    hexadecimal,
    long_text,
    metadata,
)

NAME = exact(128)
LOGICAL_NAME = exact(1024)
TABLE_OPTIONS = {**PLAIN_OPTIONS, "sqlite_autoincrement": True}
"""An id is never used again, also on SQLite: the archive has those of rows that are deleted."""

stageout_requests = Table(
    "stageout_requests",
    metadata,
    # what was sent in one call; the same key again is the same request
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("owner", NAME, nullable=False),
    Column("key", NAME, nullable=False),
    Column("workflow", NAME, nullable=False),
    Column("digest", hexadecimal(64), nullable=False),
    Column("files", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("owner", "key"),
    Index(None, "workflow", "owner"),
    Index(None, "created_at"),
    **TABLE_OPTIONS,
)

stageout_queues = Table(
    "stageout_queues",
    metadata,
    # what an FTS job is made of; `digest` represents the other columns, which are too long to index
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("digest", hexadecimal(64), nullable=False),
    Column("owner", NAME, nullable=False),
    Column("source", NAME, nullable=False),
    Column("destination", NAME, nullable=False),
    Column("activity", NAME, nullable=False),
    Column("kind", exact(16), nullable=False),
    # of files of a task: the connection of its FTS server, the checksums that FTS compares, the priority at FTS
    Column("fts", NAME),
    Column("verify", exact(8)),
    Column("priority", Integer),
    UniqueConstraint("digest"),
    Index(None, "owner"),
    **TABLE_OPTIONS,
)

stageout_jobs = Table(
    "stageout_jobs",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    # both are known before the request is sent: what FTS makes the id of, and the id
    Column("sid", hexadecimal(32), nullable=False),
    Column("fts_id", hexadecimal(36), nullable=False),
    Column("server", NAME, nullable=False),
    Column("queue", ROW_ID, ForeignKey("stageout_queues.id"), nullable=False),
    Column("files", Integer, nullable=False),
    # its files may replace what is at their destinations
    Column("overwrites", Boolean, nullable=False, server_default=false()),
    # submissions without a clear reply
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("state", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("due_at", UtcTime, nullable=False),
    Column("claim", hexadecimal(32)),
    Column("claimed_by", NAME),
    Column("created_at", UtcTime, nullable=False),
    Column("moved_at", UtcTime, nullable=False),
    UniqueConstraint("fts_id"),
    Index(None, "state", "due_at"),
    **TABLE_OPTIONS,
)

stageout_blocks = Table(
    "stageout_blocks",
    metadata,
    # files of one data set that are registered together; `digest` represents owner, workflow and data set
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("digest", hexadecimal(64), nullable=False),
    Column("owner", NAME, nullable=False),
    Column("workflow", NAME, nullable=False),
    Column("dataset", exact(512), nullable=False),
    # fixed before the catalogue is called: a lost answer is found again
    Column("name", exact(640), nullable=False),
    Column("files", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("state", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("due_at", UtcTime, nullable=False),
    Column("claim", hexadecimal(32)),
    Column("claimed_by", NAME),
    Column("created_at", UtcTime, nullable=False),
    Column("moved_at", UtcTime, nullable=False),
    Index(None, "state", "due_at"),
    Index(None, "digest", "state"),
    Index(None, "owner", "workflow"),
    **TABLE_OPTIONS,
)

stageout_transfers = Table(
    "stageout_transfers",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("request", ROW_ID, ForeignKey("stageout_requests.id"), nullable=False),
    Column("queue", ROW_ID, ForeignKey("stageout_queues.id"), nullable=False),
    # represents destination site and name, which are too long to index
    Column("place", hexadecimal(64), nullable=False),
    Column("source_name", LOGICAL_NAME, nullable=False),
    Column("destination_name", LOGICAL_NAME, nullable=False),
    Column("size", BigInteger),
    Column("checksum", hexadecimal(32)),
    # a data set requires registration; NULL: none is required
    Column("dataset", exact(512)),
    Column("user_job", NAME),
    Column("state", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("retries", Integer, nullable=False),
    # an attempt passed FTS's check that the destination does not exist: what is there now is its own
    Column("may_overwrite", Boolean, nullable=False, server_default=false()),
    # the copy of an attempt that is over may write to the destination until then; NULL: no such copy is known
    Column("may_write_until", UtcTime),
    # when the last attempt began to copy that left no proof of what it wrote
    Column("began_at", UtcTime),
    # the class of the last failure
    Column("failure", exact(32)),
    Column("copied_at", UtcTime),
    Column("block", ROW_ID),
    Column("job", ROW_ID, ForeignKey("stageout_jobs.id")),
    Column("due_at", UtcTime, nullable=False),
    Column("claim", hexadecimal(32)),
    Column("claimed_by", NAME),
    Column("created_at", UtcTime, nullable=False),
    Column("moved_at", UtcTime, nullable=False),
    # who asked that the source is not removed
    Column("kept_by", NAME),
    UniqueConstraint("place"),
    Index(None, "state", "due_at"),
    Index(None, "state", "queue", "due_at"),
    Index(None, "job"),
    Index(None, "block"),
    Index(None, "request", "state", "queue"),  # transfers of a workflow are counted from it alone
    Index(None, "source_name", mysql_length=255),
    **TABLE_OPTIONS,
)

stageout_moves = Table(
    "stageout_moves",
    metadata,
    # the history: one row for each move of a transfer or, where `transfer` is NULL, of a job
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("transfer", ROW_ID),
    Column("job", ROW_ID),
    Column("state_before", exact(16), nullable=False),
    Column("state", exact(16), nullable=False),
    Column("component", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("moved_at", UtcTime, nullable=False),
    Index(None, "transfer"),
    Index(None, "job"),
    **TABLE_OPTIONS,
)

stageout_archive = Table(
    "stageout_archive",
    metadata,
    # transfers that have ended, with their history as JSON; the id is that of the transfer
    Column("id", ROW_ID, primary_key=True, autoincrement=False),
    Column("request", ROW_ID, nullable=False),
    Column("owner", NAME, nullable=False),
    Column("workflow", NAME, nullable=False),
    Column("source", NAME, nullable=False),
    Column("destination", NAME, nullable=False),
    Column("source_name", LOGICAL_NAME, nullable=False),
    Column("destination_name", LOGICAL_NAME, nullable=False),
    Column("size", BigInteger),
    Column("checksum", hexadecimal(32)),
    Column("dataset", exact(512)),
    Column("user_job", NAME),
    Column("fts_id", hexadecimal(36)),
    Column("state", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("retries", Integer, nullable=False),
    Column("failure", exact(32)),
    Column("copied_at", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("moved_at", UtcTime, nullable=False),
    Column("history", long_text(), nullable=False),
    Index(None, "request"),
    Index(None, "owner"),
    Index(None, "workflow"),
    Index(None, "moved_at"),
    Index(None, "source_name", mysql_length=255),
    **TABLE_OPTIONS,
)

stageout_workflows = Table(
    "stageout_workflows",
    metadata,
    # what was done to a workflow as a whole; `digest` represents owner and name
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("digest", hexadecimal(64), nullable=False),
    Column("owner", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("closed_at", UtcTime),
    Column("killed_at", UtcTime),
    UniqueConstraint("digest"),
    Index(None, "closed_at"),
    **TABLE_OPTIONS,
)

stageout_catalogue = Table(
    "stageout_catalogue",
    metadata,
    # files of data sets; `digest` represents data set and name
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("digest", hexadecimal(64), nullable=False),
    Column("dataset", exact(512), nullable=False),
    Column("name", LOGICAL_NAME, nullable=False),
    Column("site", NAME, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("checksum", hexadecimal(32)),
    Column("block", exact(640), nullable=False),
    Column("registered_at", UtcTime, nullable=False),
    UniqueConstraint("digest"),
    Index(None, "dataset"),
    Index(None, "block"),
    **TABLE_OPTIONS,
)

stageout_analytics = Table(
    "stageout_analytics",
    metadata,
    # what ended on a day, summed; `digest` represents the columns up to `failure`
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("digest", hexadecimal(64), nullable=False),
    Column("day", UtcTime, nullable=False),
    Column("owner", NAME, nullable=False),
    Column("workflow", NAME, nullable=False),
    Column("source", NAME, nullable=False),
    Column("destination", NAME, nullable=False),
    Column("state", exact(16), nullable=False),
    Column("failure", exact(32)),
    Column("files", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("retries", Integer, nullable=False),
    # seconds, summed over the files: until submitted, until copied, until verified, until the end
    Column("waited_s", Float, nullable=False),
    Column("copied_s", Float, nullable=False),
    Column("verified_s", Float, nullable=False),
    Column("ended_s", Float, nullable=False),
    UniqueConstraint("digest"),
    Index(None, "day"),
    Index(None, "owner", "workflow"),
    **TABLE_OPTIONS,
)

stageout_times = Table(
    "stageout_times",
    metadata,
    # complete transfers of a day by the time from request to registration; `digest` represents the columns to `bucket`
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("digest", hexadecimal(64), nullable=False),
    Column("day", UtcTime, nullable=False),
    Column("owner", NAME, nullable=False),
    Column("source", NAME, nullable=False),
    Column("destination", NAME, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("files", Integer, nullable=False),
    UniqueConstraint("digest"),
    Index(None, "day"),
    **TABLE_OPTIONS,
)

stageout_passes = Table(
    "stageout_passes",
    metadata,
    # when a pass of each component began last
    Column("component", exact(16), primary_key=True),
    Column("began_at", UtcTime, nullable=False),
    **PLAIN_OPTIONS,
)

stageout_findings = Table(
    "stageout_findings",
    metadata,
    # what the last census found
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("found_at", UtcTime, nullable=False),
    Column("kind", exact(32), nullable=False),
    Column("site", NAME),
    Column("transfer", ROW_ID),
    Column("job", ROW_ID),
    Column("name", LOGICAL_NAME),
    Column("bytes", BigInteger),
    Column("reason", long_text(), nullable=False),
    Column("outcome", exact(16), nullable=False),
    Index(None, "found_at"),
    **TABLE_OPTIONS,
)
