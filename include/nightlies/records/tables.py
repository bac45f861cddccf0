"""The ledger's tables of nightly builds. A change here needs a migration in `include/ledger/migrations/versions`."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    UniqueConstraint,
)

from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata

NAME = exact(128)

builds = Table(
    "builds",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("slot", NAME, nullable=False),
    Column("build_id", NAME, nullable=False),
    Column("build_date", Date, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("index_url", exact(2048), nullable=False),
    Column("artifacts", Integer, nullable=False),
    Column("rejected", JSON, nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    # what the newest index states of itself, and the build that a partial one takes the others from
    Column("serial", BigInteger),
    Column("written_at", UtcTime),
    Column("base_build", NAME),
    Column("base_date", Date),
    UniqueConstraint("slot", "build_id"),
    Index(None, "slot", "build_date"),
    **TABLE_OPTIONS,
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("build", ROW_ID, ForeignKey("builds.id", ondelete="CASCADE"), nullable=False),
    Column("project", NAME, nullable=False),
    Column("platform", NAME, nullable=False),
    Column("url", exact(2048), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", hexadecimal(64), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("dependencies", JSON, nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    # the build that a partial one took it from; NULL: its own index lists it
    Column("inherited", NAME),
    UniqueConstraint("build", "project", "platform"),
    **TABLE_OPTIONS,
)

changesets = Table(
    "changesets",
    metadata,
    Column("digest", hexadecimal(64), primary_key=True),
    Column("place", hexadecimal(64), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("destination", exact(1024), nullable=False),
    Column("source_sha256", hexadecimal(64), nullable=False),
    Column("root_hash", hexadecimal(64), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("base_revision", BigInteger),
    Column("body", long_text(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "place", "source_sha256"),
    **TABLE_OPTIONS,
)

publications = Table(
    "publications",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    # a run plans each destination once; `place` is a hash of (repository, destination), too long to index
    Column("run_id", exact(512), nullable=False),
    Column("place", hexadecimal(64), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("destination", exact(1024), nullable=False),
    Column("artifact", ROW_ID, ForeignKey("artifacts.id", ondelete="SET NULL")),
    Column("artifact_sha256", hexadecimal(64)),
    Column("changeset", hexadecimal(64)),
    Column("state", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    # the code of the error decides; its class is what people knew it by
    Column("code", exact(128)),
    Column("skip_reason", exact(32)),
    Column("blocked_by", exact(512)),
    Column("phase", exact(16), nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("plan_try", Integer, nullable=False),
    Column("prepare_try", Integer, nullable=False),
    Column("publish_try", Integer, nullable=False),
    Column("approve_try", Integer, nullable=False, server_default="0"),
    Column("revision_before", BigInteger),
    Column("revision_after", BigInteger),
    Column("root_hash", hexadecimal(64)),
    Column("nested_hash", hexadecimal(64)),
    Column("files", BigInteger),
    Column("bytes", BigInteger),
    Column("objects_new", BigInteger),
    Column("objects_reused", BigInteger),
    Column("bytes_uploaded", BigInteger),
    Column("seconds", JSON, nullable=False),
    Column("lease_held_s", Float),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("verified_at", UtcTime),
    # the try that moved it last, as `include/gateway/protocol.py` writes it: where its log is
    Column("holder", exact(512)),
    UniqueConstraint("run_id", "place"),
    Index(None, "place", "artifact_sha256"),
    Index(None, "repository", "state"),
    Index(None, "artifact"),
    **TABLE_OPTIONS,
)

progress = Table(
    "progress",
    metadata,
    # how far preparations are that run; one row a publication, replaced as it goes on
    Column("publication", ROW_ID, primary_key=True, autoincrement=False),
    Column("try_number", Integer, nullable=False),
    Column("began_at", UtcTime, nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("bytes_uploaded", BigInteger, nullable=False),
    Column("noted_at", UtcTime, nullable=False),
    **TABLE_OPTIONS,
)

installed = Table(
    "installed",
    metadata,
    # which nested catalog an artifact became at a destination, whenever and in whatever run that was
    Column("place", hexadecimal(64), primary_key=True),
    Column("artifact_sha256", hexadecimal(64), primary_key=True),
    Column("nested_hash", hexadecimal(64), nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    **TABLE_OPTIONS,
)

damaged = Table(
    "damaged",
    metadata,
    # what a repository needs and its store has not, or not whole; see include/nightlies/records/damage.py
    Column("repository", NAME, primary_key=True),
    Column("object", hexadecimal(64), primary_key=True),
    Column("path", exact(1024), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("stored_size", BigInteger),
    Column("found_at", UtcTime, nullable=False),
    **TABLE_OPTIONS,
)

collections = Table(
    "collections",
    metadata,
    # each garbage collection that ended; see include/nightlies/records/damage.py
    Column("repository", NAME, primary_key=True),
    Column("ended_at", UtcTime, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("kept", BigInteger, nullable=False),
    Column("deleted", BigInteger, nullable=False),
    Column("bytes_deleted", BigInteger, nullable=False),
    # condemned and not deleted: once in careful mode, or refused by the store
    Column("garbage", BigInteger, nullable=False),
    Column("lost", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    **TABLE_OPTIONS,
)

created = Table(
    "created",
    metadata,
    # directories above destinations; see include/nightlies/records/undos.py
    Column("run_id", exact(512), primary_key=True),
    Column("place", hexadecimal(64), primary_key=True),
    Column("repository", NAME, nullable=False),
    Column("path", exact(1024), nullable=False),
    Column("noted_at", UtcTime, nullable=False),
    **TABLE_OPTIONS,
)

links = Table(
    "links",
    metadata,
    # what was decided of every link and tag, in order; see include/nightlies/records/links.py
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("place", hexadecimal(64), nullable=False),
    Column("kind", exact(16), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("path", exact(1024), nullable=False),
    Column("slot", NAME, nullable=False),
    Column("build_id", NAME, nullable=False),
    Column("build_date", Date, nullable=False),
    Column("state", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("run_id", exact(512), nullable=False),
    Column("revision", BigInteger),
    Column("decided_at", UtcTime, nullable=False),
    Index(None, "place"),
    Index(None, "slot", "build_date"),
    **TABLE_OPTIONS,
)

undone = Table(
    "undone",
    metadata,
    # which artifacts were taken back, and are not installed again by themselves; see include/nightlies/records/undos.py
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("artifact", ROW_ID, ForeignKey("artifacts.id", ondelete="CASCADE"), nullable=False),
    Column("artifact_sha256", hexadecimal(64), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("destination", exact(1024), nullable=False),
    Column("nested_hash", hexadecimal(64), nullable=False),
    Column("predecessor", NAME),
    Column("reason", long_text(), nullable=False),
    Column("run_id", exact(512), nullable=False),
    Column("revision", BigInteger),
    Column("undone_at", UtcTime, nullable=False),
    Column("lifted_at", UtcTime),
    Index(None, "artifact"),
    **TABLE_OPTIONS,
)

questions = Table(
    "questions",
    metadata,
    # what people were asked to approve, and the answer; see include/nightlies/records/questions.py
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", exact(512), nullable=False),
    Column("number", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("kind", exact(16), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("digest", hexadecimal(64), nullable=False),
    Column("subject", long_text(), nullable=False),
    Column("body", long_text(), nullable=False),
    Column("asked_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("deadline", UtcTime, nullable=False),
    Column("answer", exact(16), nullable=False),
    Column("answered_at", UtcTime),
    Column("answered_by", exact(256)),
    Column("comment", long_text(), nullable=False),
    UniqueConstraint("run_id", "number"),
    Index(None, "answered_at"),
    **TABLE_OPTIONS,
)

bound = Table(
    "bound",
    metadata,
    # what the answer to a question binds: each digest is of one destination and of what it is to have
    Column("question", ROW_ID, ForeignKey("questions.id", ondelete="CASCADE"), primary_key=True),
    Column("digest", hexadecimal(64), primary_key=True),
    Column("name", exact(1024), nullable=False),
    Column("destination", exact(1024), nullable=False),
    Index(None, "digest"),
    **TABLE_OPTIONS,
)

quality = Table(
    "quality",
    metadata,
    # what each suite found in a run; see include/nightlies/records/quality.py
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", exact(512), nullable=False),
    Column("suite", exact(16), nullable=False),
    Column("slot", NAME, nullable=False),
    Column("build_id", NAME, nullable=False),
    Column("verdict", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    # what a person gave as the reason for accepting what the suite found
    Column("accepted", long_text(), nullable=False),
    Column("faults", Integer, nullable=False),
    Column("checked_at", UtcTime, nullable=False),
    # null in what earlier versions recorded
    Column("build_date", Date),
    Column("fault_rows", JSON),
    UniqueConstraint("run_id", "suite"),
    Index(None, "slot", "build_id"),
    Index(None, "checked_at"),
    **TABLE_OPTIONS,
)
