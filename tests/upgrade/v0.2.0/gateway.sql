PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE clock (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    wall_ms     INTEGER NOT NULL,                   -- both clocks, when something was written last
    monotonic_ns INTEGER NOT NULL,
    boot        TEXT NOT NULL
);
INSERT INTO "clock" VALUES(1,1795000000000,1000000000000,'boot-1');
CREATE TABLE disabled (repository TEXT PRIMARY KEY);
INSERT INTO "disabled" VALUES('plain.example.org');
CREATE TABLE finished (
    digest      BLOB PRIMARY KEY,
    repository  TEXT NOT NULL,
    key_id      TEXT NOT NULL,
    old_root    TEXT NOT NULL,
    new_root    TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    deadline_ns INTEGER NOT NULL,
    boot        TEXT NOT NULL
);
INSERT INTO "finished" VALUES(X'6EF6781C831CF42E3594962E7F34CEABEAF185C1166BF72637EEE041C5C9692D','test.example.org','rootkey','1111111111111111111111111111111111111111','2222222222222222222222222222222222222222',7,1795000100000,1100000000000,'boot-1');
CREATE TABLE lease (
    epoch       INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: the fence of a commit
    digest      BLOB NOT NULL UNIQUE,               -- SHA-256 of the token; the token itself is nowhere
    repository  TEXT NOT NULL,
    path        TEXT NOT NULL,
    key_id      TEXT NOT NULL,
    hostname    TEXT NOT NULL,
    version     INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,                   -- wall clock
    deadline_ns INTEGER NOT NULL,                   -- monotonic clock of this boot
    boot        TEXT NOT NULL
);
INSERT INTO "lease" VALUES(1795000000001,X'19B261A4C3863F841E0A67A63A99CA4443847588E1ADEBB1B954329FC3D7847F','test.example.org','/held','rootkey','nightly_install_main/scheduled__2026-11-21T00:30:00+00:00/artifact.publish[3] try 2',2,1795000100000,1100000000000,'boot-1');
INSERT INTO "lease" VALUES(1795000000002,X'57D372549E5D9C91D67A605DE6218EE605AF5B07F79BB84D67E4D409A1DBD42B','test.example.org','/paid','rootkey','nightly_install_main/scheduled__2026-11-21T00:30:00+00:00/artifact.publish[3] try 2',2,1795000100000,1100000000000,'boot-1');
CREATE TABLE payload (
    epoch            INTEGER PRIMARY KEY,  -- of the lease
    generation       TEXT NOT NULL,        -- of collections, before the first object came
    payloads         INTEGER NOT NULL,
    chunks_added     INTEGER NOT NULL,
    chunks_duplicated INTEGER NOT NULL,
    catalogs_added   INTEGER NOT NULL,
    uploaded_bytes   INTEGER NOT NULL,
    uploaded_catalog_bytes INTEGER NOT NULL
);
INSERT INTO "payload" VALUES(1795000000002,'4:idle',1,2,3,4,5,6);
CREATE TABLE revision (
    repository  TEXT NOT NULL,
    number      INTEGER NOT NULL,
    root        TEXT NOT NULL,
    PRIMARY KEY (repository, number, root)
) WITHOUT ROWID;
INSERT INTO "revision" VALUES('test.example.org',6,'1111111111111111111111111111111111111111');
INSERT INTO "revision" VALUES('test.example.org',7,'2222222222222222222222222222222222222222');
CREATE INDEX lease_place ON lease (repository, path);
CREATE INDEX lease_deadline ON lease (deadline_ns);
CREATE INDEX finished_deadline ON finished (deadline_ns);
CREATE TRIGGER payload_goes AFTER DELETE ON lease
    BEGIN DELETE FROM payload WHERE epoch = old.epoch; END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('lease',1795000000003);
COMMIT;
