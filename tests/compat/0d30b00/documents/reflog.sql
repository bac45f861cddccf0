PRAGMA user_version = 0;
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER, CONSTRAINT pk_refs PRIMARY KEY (hash));
INSERT INTO "properties" ("key", "value") VALUES ('fqrn', 'compat.example.org');
INSERT INTO "properties" ("key", "value") VALUES ('schema', '1.0');
INSERT INTO "properties" ("key", "value") VALUES ('schema_revision', '0');
INSERT INTO "refs" ("hash", "type", "timestamp") VALUES ('000102030405060708090a0b0c0d0e0f10111213', 0, 9);
INSERT INTO "refs" ("hash", "type", "timestamp") VALUES ('6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d', 3, 7);
INSERT INTO "refs" ("hash", "type", "timestamp") VALUES ('7878787878787878787878787878787878787878', 1, 8);
