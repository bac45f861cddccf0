SET FOREIGN_KEY_CHECKS = 0;
CREATE TABLE `alerts` (
  `cause` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `key` varchar(512) NOT NULL,
  `event` varchar(32) NOT NULL,
  `severity` varchar(16) NOT NULL,
  `title` longtext NOT NULL,
  `text` longtext NOT NULL,
  `times` int(11) NOT NULL,
  `first_seen_at` datetime(6) NOT NULL,
  `last_seen_at` datetime(6) NOT NULL,
  `told_at` datetime(6) DEFAULT NULL,
  `fault` longtext DEFAULT NULL,
  PRIMARY KEY (`cause`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `artifacts` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `build` bigint(20) NOT NULL,
  `project` varchar(128) NOT NULL,
  `platform` varchar(128) NOT NULL,
  `url` varchar(2048) NOT NULL,
  `size` bigint(20) NOT NULL,
  `sha256` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `priority` int(11) NOT NULL,
  `dependencies` longtext NOT NULL CHECK (json_valid(`dependencies`)),
  `first_seen_at` datetime(6) NOT NULL,
  `updated_at` datetime(6) NOT NULL,
  `inherited` varchar(128) DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uq_artifacts_build_project_platform` (`build`,`project`,`platform`),
  CONSTRAINT `fk_artifacts_build_builds` FOREIGN KEY (`build`) REFERENCES `builds` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB AUTO_INCREMENT=6 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `bound` (
  `question` bigint(20) NOT NULL,
  `digest` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `name` varchar(1024) NOT NULL,
  `destination` varchar(1024) NOT NULL,
  PRIMARY KEY (`question`,`digest`),
  KEY `ix_bound_digest` (`digest`),
  CONSTRAINT `fk_bound_question_questions` FOREIGN KEY (`question`) REFERENCES `questions` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `builds` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `slot` varchar(128) NOT NULL,
  `build_id` varchar(128) NOT NULL,
  `build_date` date NOT NULL,
  `complete` tinyint(1) NOT NULL,
  `index_url` varchar(2048) NOT NULL,
  `artifacts` int(11) NOT NULL,
  `rejected` longtext NOT NULL CHECK (json_valid(`rejected`)),
  `first_seen_at` datetime(6) NOT NULL,
  `updated_at` datetime(6) NOT NULL,
  `serial` bigint(20) DEFAULT NULL,
  `written_at` datetime(6) DEFAULT NULL,
  `base_build` varchar(128) DEFAULT NULL,
  `base_date` date DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uq_builds_slot_build_id` (`slot`,`build_id`),
  KEY `ix_builds_slot_build_date` (`slot`,`build_date`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `changesets` (
  `digest` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `place` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `repository` varchar(128) NOT NULL,
  `destination` varchar(1024) NOT NULL,
  `source_sha256` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `root_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `generation` bigint(20) NOT NULL,
  `base_revision` bigint(20) DEFAULT NULL,
  `body` longtext NOT NULL,
  `created_at` datetime(6) NOT NULL,
  PRIMARY KEY (`digest`),
  KEY `ix_changesets_place_source_sha256` (`place`,`source_sha256`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `created` (
  `run_id` varchar(512) NOT NULL,
  `place` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `repository` varchar(128) NOT NULL,
  `path` varchar(1024) NOT NULL,
  `noted_at` datetime(6) NOT NULL,
  PRIMARY KEY (`run_id`,`place`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `damaged` (
  `repository` varchar(128) NOT NULL,
  `object` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `path` varchar(1024) NOT NULL,
  `reason` longtext NOT NULL,
  `stored_size` bigint(20) DEFAULT NULL,
  `found_at` datetime(6) NOT NULL,
  PRIMARY KEY (`repository`,`object`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `installed` (
  `place` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `artifact_sha256` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `nested_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `updated_at` datetime(6) NOT NULL,
  PRIMARY KEY (`place`,`artifact_sha256`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `interventions` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `repository` varchar(128) NOT NULL,
  `kind` varchar(16) NOT NULL,
  `freeze` varchar(64) NOT NULL,
  `who` varchar(256) NOT NULL,
  `reason` longtext NOT NULL,
  `until` datetime(6) DEFAULT NULL,
  `done_at` datetime(6) NOT NULL,
  PRIMARY KEY (`id`),
  KEY `ix_interventions_repository` (`repository`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `ledger_version` (
  `version_num` varchar(32) NOT NULL,
  PRIMARY KEY (`version_num`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `links` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `place` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `kind` varchar(16) NOT NULL,
  `repository` varchar(128) NOT NULL,
  `path` varchar(1024) NOT NULL,
  `slot` varchar(128) NOT NULL,
  `build_id` varchar(128) NOT NULL,
  `build_date` date NOT NULL,
  `state` varchar(16) NOT NULL,
  `reason` longtext NOT NULL,
  `run_id` varchar(512) NOT NULL,
  `revision` bigint(20) DEFAULT NULL,
  `decided_at` datetime(6) NOT NULL,
  PRIMARY KEY (`id`),
  KEY `ix_links_place` (`place`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `provenance` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `place` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `repository` varchar(128) NOT NULL,
  `path` varchar(1024) NOT NULL,
  `revision` bigint(20) NOT NULL,
  `root_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `nested_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `changeset` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `source` varchar(2048) DEFAULT NULL,
  `artifact_sha256` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `slot` varchar(128) DEFAULT NULL,
  `build_id` varchar(128) DEFAULT NULL,
  `project` varchar(128) DEFAULT NULL,
  `platform` varchar(128) DEFAULT NULL,
  `run_id` varchar(512) NOT NULL,
  `holder` varchar(512) NOT NULL,
  `publisher` varchar(32) NOT NULL,
  `key_id` varchar(128) NOT NULL,
  `published_at` datetime(6) NOT NULL,
  `document` varchar(512) DEFAULT NULL,
  `kind` varchar(16) DEFAULT NULL,
  `came_from` varchar(1024) DEFAULT NULL,
  `from_build` varchar(128) DEFAULT NULL,
  `leads_to` longtext DEFAULT NULL,
  `before` longtext DEFAULT NULL,
  `reason` longtext DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `ix_provenance_place` (`place`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `publications` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `run_id` varchar(512) NOT NULL,
  `place` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `repository` varchar(128) NOT NULL,
  `destination` varchar(1024) NOT NULL,
  `artifact` bigint(20) DEFAULT NULL,
  `artifact_sha256` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `changeset` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `state` varchar(16) NOT NULL,
  `reason` longtext NOT NULL,
  `error_class` varchar(128) DEFAULT NULL,
  `phase` varchar(16) NOT NULL,
  `try_number` int(11) NOT NULL,
  `plan_try` int(11) NOT NULL,
  `prepare_try` int(11) NOT NULL,
  `publish_try` int(11) NOT NULL,
  `revision_before` bigint(20) DEFAULT NULL,
  `revision_after` bigint(20) DEFAULT NULL,
  `root_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `nested_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT NULL,
  `files` bigint(20) DEFAULT NULL,
  `bytes` bigint(20) DEFAULT NULL,
  `objects_new` bigint(20) DEFAULT NULL,
  `objects_reused` bigint(20) DEFAULT NULL,
  `bytes_uploaded` bigint(20) DEFAULT NULL,
  `seconds` longtext NOT NULL CHECK (json_valid(`seconds`)),
  `lease_held_s` float DEFAULT NULL,
  `created_at` datetime(6) NOT NULL,
  `updated_at` datetime(6) NOT NULL,
  `ended_at` datetime(6) DEFAULT NULL,
  `verified_at` datetime(6) DEFAULT NULL,
  `approve_try` int(11) NOT NULL DEFAULT 0,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uq_publications_run_id_place` (`run_id`,`place`),
  KEY `ix_publications_place_artifact_sha256` (`place`,`artifact_sha256`),
  KEY `ix_publications_repository_state` (`repository`,`state`),
  KEY `ix_publications_artifact` (`artifact`),
  CONSTRAINT `fk_publications_artifact_artifacts` FOREIGN KEY (`artifact`) REFERENCES `artifacts` (`id`) ON DELETE SET NULL
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `questions` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `run_id` varchar(512) NOT NULL,
  `number` int(11) NOT NULL,
  `turn` int(11) NOT NULL,
  `kind` varchar(16) NOT NULL,
  `repository` varchar(128) NOT NULL,
  `digest` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `subject` longtext NOT NULL,
  `body` longtext NOT NULL,
  `asked_at` datetime(6) NOT NULL,
  `expires_at` datetime(6) NOT NULL,
  `deadline` datetime(6) NOT NULL,
  `answer` varchar(16) NOT NULL,
  `answered_at` datetime(6) DEFAULT NULL,
  `answered_by` varchar(256) DEFAULT NULL,
  `comment` longtext NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uq_questions_run_id_number` (`run_id`,`number`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `store_traits` (
  `store` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `name` varchar(128) NOT NULL,
  `url` varchar(2048) NOT NULL,
  `put_if_absent` tinyint(1) NOT NULL,
  `replace_if_unchanged` tinyint(1) NOT NULL,
  `bulk_delete` tinyint(1) NOT NULL,
  `anonymous_read` tinyint(1) DEFAULT NULL,
  `etag_quotes` tinyint(1) NOT NULL,
  `probed_at` datetime(6) NOT NULL,
  PRIMARY KEY (`store`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `summaries` (
  `slot` varchar(128) NOT NULL,
  `build_date` date NOT NULL,
  `file` varchar(1024) NOT NULL,
  `headline` longtext NOT NULL,
  `made_at` datetime(6) NOT NULL,
  `told_at` datetime(6) DEFAULT NULL,
  `fault` longtext DEFAULT NULL,
  PRIMARY KEY (`slot`,`build_date`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
CREATE TABLE `undone` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `artifact` bigint(20) NOT NULL,
  `artifact_sha256` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `repository` varchar(128) NOT NULL,
  `destination` varchar(1024) NOT NULL,
  `nested_hash` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `predecessor` varchar(128) DEFAULT NULL,
  `reason` longtext NOT NULL,
  `run_id` varchar(512) NOT NULL,
  `revision` bigint(20) DEFAULT NULL,
  `undone_at` datetime(6) NOT NULL,
  `lifted_at` datetime(6) DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `ix_undone_artifact` (`artifact`),
  CONSTRAINT `fk_undone_artifact_artifacts` FOREIGN KEY (`artifact`) REFERENCES `artifacts` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
INSERT INTO `alerts` (`cause`, `key`, `event`, `severity`, `title`, `text`, `times`, `first_seen_at`, `last_seen_at`, `told_at`, `fault`) VALUES ('769c1eedb649d239a7e345dacb0e13e99b9a1019074ceb3b67a0ecb9d44d581b','run-failed:x','run-failed','error','title','text\n',1,'2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL,'no answer');
INSERT INTO `alerts` (`cause`, `key`, `event`, `severity`, `title`, `text`, `times`, `first_seen_at`, `last_seen_at`, `told_at`, `fault`) VALUES ('7ae49360a22a96360b1613aaddfcb9a212995c1dfa73fca0f6cd4e91b73354d4','task-faults:nightly_install_main/scheduled__2026-11-21T00:30:00+00:00','seen','seen','task-faults:nightly_install_main/scheduled__2026-11-21T00:30:00+00:00','[{\"task\": \"plan\", \"error_class\": \"IndexNotJson\", \"text\": \"not JSON: \\u00e9\", \"subject\": \"compat.example.org\"}]',1,'2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL,NULL);
INSERT INTO `alerts` (`cause`, `key`, `event`, `severity`, `title`, `text`, `times`, `first_seen_at`, `last_seen_at`, `told_at`, `fault`) VALUES ('ae448ac86c4e8e4dec645729708ef41873ae79c6dff84eff73360989487f08e5','another','seen','seen','another','[{\"text\": \"kept\"}]',1,'2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL,NULL);
INSERT INTO `alerts` (`cause`, `key`, `event`, `severity`, `title`, `text`, `times`, `first_seen_at`, `last_seen_at`, `told_at`, `fault`) VALUES ('cd30420c86c5d94fb64f3fd822d2420ec427bd735437b776145a9db294ef3cc0','failed:main:1','failed','error','title: é','text\n\nWhat to do: hint\n\nrun: http://x\n',1,'2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL);
INSERT INTO `artifacts` (`id`, `build`, `project`, `platform`, `url`, `size`, `sha256`, `priority`, `dependencies`, `first_seen_at`, `updated_at`, `inherited`) VALUES (1,1,'Gaudi','x86_64-el9-gcc13-opt','Gaudi.tar.zst',123456,'a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1',10,'[\"LCG\", \"Boost\"]','2026-11-20 02:03:04.567890','2026-11-20 02:03:04.567890',NULL);
INSERT INTO `artifacts` (`id`, `build`, `project`, `platform`, `url`, `size`, `sha256`, `priority`, `dependencies`, `first_seen_at`, `updated_at`, `inherited`) VALUES (2,2,'Gaudi','x86_64-el9-gcc13-opt','Gaudi.tar.zst',123456,'a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1',10,'[\"LCG\", \"Boost\"]','2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL);
INSERT INTO `artifacts` (`id`, `build`, `project`, `platform`, `url`, `size`, `sha256`, `priority`, `dependencies`, `first_seen_at`, `updated_at`, `inherited`) VALUES (3,2,'LHCb','armv8-el9-gcc13-opt','s3://builds/main/LHCb.tar',7,'b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2',0,'[]','2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL);
INSERT INTO `artifacts` (`id`, `build`, `project`, `platform`, `url`, `size`, `sha256`, `priority`, `dependencies`, `first_seen_at`, `updated_at`, `inherited`) VALUES (4,3,'LHCb','armv8-el9-gcc13-opt','s3://builds/main/LHCb.tar',7,'b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2',0,'[]','2026-11-21 03:03:04.567890','2026-11-21 03:03:04.567890',NULL);
INSERT INTO `artifacts` (`id`, `build`, `project`, `platform`, `url`, `size`, `sha256`, `priority`, `dependencies`, `first_seen_at`, `updated_at`, `inherited`) VALUES (5,3,'Gaudi','x86_64-el9-gcc13-opt','Gaudi.tar.zst',123456,'a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1',10,'[\"LCG\", \"Boost\"]','2026-11-21 03:03:04.567890','2026-11-21 03:03:04.567890','b1');
INSERT INTO `bound` (`question`, `digest`, `name`, `destination`) VALUES (1,'200708479e5a2d3ef0af4df362bd03951f340fbddd495d426a0b94590c630799','Gaudi/x86_64','/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt');
INSERT INTO `bound` (`question`, `digest`, `name`, `destination`) VALUES (1,'3c7d244f31671a21b2de4a90e14f734ee4feaf0c2cfdbe5fc1e896911e377f1c','LHCb/armv8','/l');
INSERT INTO `bound` (`question`, `digest`, `name`, `destination`) VALUES (2,'200708479e5a2d3ef0af4df362bd03951f340fbddd495d426a0b94590c630799','Gaudi/x86_64','/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt');
INSERT INTO `bound` (`question`, `digest`, `name`, `destination`) VALUES (2,'3c7d244f31671a21b2de4a90e14f734ee4feaf0c2cfdbe5fc1e896911e377f1c','LHCb/armv8','/l');
INSERT INTO `builds` (`id`, `slot`, `build_id`, `build_date`, `complete`, `index_url`, `artifacts`, `rejected`, `first_seen_at`, `updated_at`, `serial`, `written_at`, `base_build`, `base_date`) VALUES (1,'main','b0','2026-11-20',1,'s3://builds/main/2026-11-21/index.json',1,'[]','2026-11-20 02:03:04.567890','2026-11-20 02:03:04.567890',NULL,NULL,NULL,NULL);
INSERT INTO `builds` (`id`, `slot`, `build_id`, `build_date`, `complete`, `index_url`, `artifacts`, `rejected`, `first_seen_at`, `updated_at`, `serial`, `written_at`, `base_build`, `base_date`) VALUES (2,'main','b1','2026-11-21',1,'s3://builds/main/2026-11-21/index.json',2,'[{\"name\": \"Bad/x86\", \"reason\": \"no sum: \\u00e9\", \"position\": 3, \"project\": \"Bad\", \"platform\": \"x86\"}, {\"name\": \"artifacts[4]\", \"reason\": \"is no object\", \"position\": 4, \"project\": null, \"platform\": null}]','2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',7,'2026-11-21 02:03:04.567890',NULL,NULL);
INSERT INTO `builds` (`id`, `slot`, `build_id`, `build_date`, `complete`, `index_url`, `artifacts`, `rejected`, `first_seen_at`, `updated_at`, `serial`, `written_at`, `base_build`, `base_date`) VALUES (3,'main','b2','2026-11-21',0,'s3://builds/main/2026-11-21/index.json',1,'[]','2026-11-21 03:03:04.567890','2026-11-21 03:03:04.567890',7,'2026-11-21 02:03:04.567890','b1','2026-11-20');
INSERT INTO `changesets` (`digest`, `place`, `repository`, `destination`, `source_sha256`, `root_hash`, `generation`, `base_revision`, `body`, `created_at`) VALUES ('806d3b6039f3fdefbc095f0551bee4d22c760f3239a1396ef2b629e2e2f1e5e5','105006ff0a6571aa67cd52f78482efbab65c0e1cfd0f43fce39a86332077c171','compat.example.org','/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt','a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1','000102030405060708090a0b0c0d0e0f10111213',3,6,'{\"base_revision\":6,\"base_root\":\"28292a2b2c2d2e2f303132333435363738393a3b-shake128\",\"bytes_uploaded\":5678,\"catalogs\":2,\"counters\":{\"below\":{\"chunked\":106,\"chunked_size\":109,\"chunks\":107,\"dir\":104,\"external\":111,\"external_file_size\":112,\"file_size\":108,\"nested\":105,\"regular\":101,\"special\":103,\"symlink\":102,\"xattr\":110},\"own\":{\"chunked\":6,\"chunked_size\":9,\"chunks\":7,\"dir\":4,\"external\":11,\"external_file_size\":12,\"file_size\":8,\"nested\":5,\"regular\":1,\"special\":3,\"symlink\":2,\"xattr\":10}},\"created\":\"2026-11-21T02:03:04.567890+00:00\",\"destination\":\"/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt\",\"format\":1,\"generation\":3,\"notes\":[\"1 socket left out\",\"\\u00e9t\\u00e9\"],\"objects_new\":3,\"objects_reused\":4,\"repository\":\"compat.example.org\",\"root\":\"000102030405060708090a0b0c0d0e0f10111213\",\"root_entry\":{\"gid\":8,\"linkcount\":3,\"mode\":16877,\"mtime\":1795222984,\"size\":4096,\"uid\":7},\"root_size\":32768,\"source\":\"s3://builds/main/2026-11-21/Gaudi.tar.zst\",\"source_sha256\":\"a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1\",\"stored\":true}\n','2026-11-21 02:03:04.567890');
INSERT INTO `created` (`run_id`, `place`, `repository`, `path`, `noted_at`) VALUES ('nightly_install_main/scheduled__2026-11-21T00:30:00+00:00','16853ddcba183442f9e78be5f8a4335cd148f7a66ee2784088af741099bb6656','compat.example.org','/nightlies/main/b1/Gaudi','2026-11-21 02:03:04.567890');
INSERT INTO `created` (`run_id`, `place`, `repository`, `path`, `noted_at`) VALUES ('nightly_install_main/scheduled__2026-11-21T00:30:00+00:00','7d3accce05dea15d27e146fc398347b1d8db60dc0335909a0e82bfe41e659605','compat.example.org','/nightlies/main/b1','2026-11-21 02:03:04.567890');
INSERT INTO `damaged` (`repository`, `object`, `path`, `reason`, `stored_size`, `found_at`) VALUES ('compat.example.org','data/00/0102030405060708090a0b0c0d0e0f10111213C','/nightlies','is absent',NULL,'2026-11-21 02:03:04.567890');
INSERT INTO `damaged` (`repository`, `object`, `path`, `reason`, `stored_size`, `found_at`) VALUES ('compat.example.org','data/14/15161718191a1b1c1d1e1f2021222324252627C','/x','is cut',12,'2026-11-21 02:03:04.567890');
INSERT INTO `installed` (`place`, `artifact_sha256`, `nested_hash`, `updated_at`) VALUES ('105006ff0a6571aa67cd52f78482efbab65c0e1cfd0f43fce39a86332077c171','a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1','1415161718191a1b1c1d1e1f2021222324252627','2026-11-21 02:07:04.567890');
INSERT INTO `installed` (`place`, `artifact_sha256`, `nested_hash`, `updated_at`) VALUES ('5b6ad0e15245272e3abc2cad7cd976e2a7a93c7efb6cd0d09046d1f3afcf77bf','b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2','000102030405060708090a0b0c0d0e0f10111213','2026-11-21 02:03:04.567890');
INSERT INTO `interventions` (`id`, `repository`, `kind`, `freeze`, `who`, `reason`, `until`, `done_at`) VALUES (1,'compat.example.org','freeze','0123456789abcdef','shift@node','disks are moved: é','2026-11-21 03:03:04.567890','2026-11-21 02:03:04.567890');
INSERT INTO `interventions` (`id`, `repository`, `kind`, `freeze`, `who`, `reason`, `until`, `done_at`) VALUES (2,'compat.example.org','thaw','0123456789abcdef','other@node','disks are moved: é','2026-11-21 03:03:04','2026-11-21 02:33:04.567890');
INSERT INTO `ledger_version` (`version_num`) VALUES ('0008');
INSERT INTO `links` (`id`, `place`, `kind`, `repository`, `path`, `slot`, `build_id`, `build_date`, `state`, `reason`, `run_id`, `revision`, `decided_at`) VALUES (1,'163857c038269e43c64f5030ecb0661547aab8ec9fb13317bbe790e087696917','link','compat.example.org','/nightlies/main/latest','main','b1','2026-11-21','moved','from b0: é','nightly_install_main/scheduled__2026-11-21T00:30:00+00:00',7,'2026-11-21 02:03:04.567890');
INSERT INTO `provenance` (`id`, `place`, `repository`, `path`, `revision`, `root_hash`, `nested_hash`, `changeset`, `source`, `artifact_sha256`, `slot`, `build_id`, `project`, `platform`, `run_id`, `holder`, `publisher`, `key_id`, `published_at`, `document`, `kind`, `came_from`, `from_build`, `leads_to`, `before`, `reason`) VALUES (1,'105006ff0a6571aa67cd52f78482efbab65c0e1cfd0f43fce39a86332077c171','compat.example.org','/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt',7,'000102030405060708090a0b0c0d0e0f10111213','1415161718191a1b1c1d1e1f2021222324252627','5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e','s3://builds/main/2026-11-21/Gaudi.tar.zst','a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1','main','b1','Gaudi','x86_64-el9-gcc13-opt','nightly_install/scheduled__2026-11-21T00:30:00+00:00','nightly_install/scheduled__2026-11-21T00:30:00+00:00/artifacts.publish[3] try 2','native','worker','2026-11-21 02:03:04.567890','.nightshift/provenance/8b/8ba2b38a59dbacbb14d61d7a0633f2e1b3b24c3c44f20a30548c1e85e1f90f14/7-bc58992bd49ce449.json','tree',NULL,NULL,NULL,NULL,NULL);
INSERT INTO `provenance` (`id`, `place`, `repository`, `path`, `revision`, `root_hash`, `nested_hash`, `changeset`, `source`, `artifact_sha256`, `slot`, `build_id`, `project`, `platform`, `run_id`, `holder`, `publisher`, `key_id`, `published_at`, `document`, `kind`, `came_from`, `from_build`, `leads_to`, `before`, `reason`) VALUES (2,'163857c038269e43c64f5030ecb0661547aab8ec9fb13317bbe790e087696917','compat.example.org','/nightlies/main/latest',7,'000102030405060708090a0b0c0d0e0f10111213','1415161718191a1b1c1d1e1f2021222324252627','5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e','s3://builds/main/2026-11-21/Gaudi.tar.zst','a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1','main','b1','Gaudi','x86_64-el9-gcc13-opt','nightly_install/scheduled__2026-11-21T00:30:00+00:00','nightly_install/scheduled__2026-11-21T00:30:00+00:00/artifacts.publish[3] try 2','native','worker','2026-11-21 02:03:04.567890','.nightshift/provenance/60/607d3560d3a4a564e797f05da4aba93ebea6d51299c0626c71f9d94a1663d2fd/7-bc58992bd49ce449.json','link','/nightlies/main/b0','b0','/nightlies/main/b1','/nightlies/main/b0','from build b0 of 2026-11-20: naïve');
INSERT INTO `publications` (`id`, `run_id`, `place`, `repository`, `destination`, `artifact`, `artifact_sha256`, `changeset`, `state`, `reason`, `error_class`, `phase`, `try_number`, `plan_try`, `prepare_try`, `publish_try`, `revision_before`, `revision_after`, `root_hash`, `nested_hash`, `files`, `bytes`, `objects_new`, `objects_reused`, `bytes_uploaded`, `seconds`, `lease_held_s`, `created_at`, `updated_at`, `ended_at`, `verified_at`, `approve_try`) VALUES (1,'nightly_install_main/scheduled__2026-11-21T00:30:00+00:00','105006ff0a6571aa67cd52f78482efbab65c0e1cfd0f43fce39a86332077c171','compat.example.org','/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt',2,'a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1','806d3b6039f3fdefbc095f0551bee4d22c760f3239a1396ef2b629e2e2f1e5e5','published','step 3: é',NULL,'publish',1,1,1,1,6,7,'000102030405060708090a0b0c0d0e0f10111213','1415161718191a1b1c1d1e1f2021222324252627',9,99,3,4,50,'{\"prepare\": 1.25, \"publish\": 0.5}',0.125e0,'2026-11-21 02:03:04.567890','2026-11-21 03:03:04.567890','2026-11-21 02:07:04.567890','2026-11-21 03:03:04.567890',0);
INSERT INTO `publications` (`id`, `run_id`, `place`, `repository`, `destination`, `artifact`, `artifact_sha256`, `changeset`, `state`, `reason`, `error_class`, `phase`, `try_number`, `plan_try`, `prepare_try`, `publish_try`, `revision_before`, `revision_after`, `root_hash`, `nested_hash`, `files`, `bytes`, `objects_new`, `objects_reused`, `bytes_uploaded`, `seconds`, `lease_held_s`, `created_at`, `updated_at`, `ended_at`, `verified_at`, `approve_try`) VALUES (2,'nightly_install_main/scheduled__2026-11-21T00:30:00+00:00','5b6ad0e15245272e3abc2cad7cd976e2a7a93c7efb6cd0d09046d1f3afcf77bf','compat.example.org','/nightlies/main/b1/LHCb/armv8',3,'b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2',NULL,'failed','gone','ArtifactMissing','prepare',1,2,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,'2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL,0);
INSERT INTO `publications` (`id`, `run_id`, `place`, `repository`, `destination`, `artifact`, `artifact_sha256`, `changeset`, `state`, `reason`, `error_class`, `phase`, `try_number`, `plan_try`, `prepare_try`, `publish_try`, `revision_before`, `revision_after`, `root_hash`, `nested_hash`, `files`, `bytes`, `objects_new`, `objects_reused`, `bytes_uploaded`, `seconds`, `lease_held_s`, `created_at`, `updated_at`, `ended_at`, `verified_at`, `approve_try`) VALUES (3,'publication/manual__1','dd9025532724e81957a8e2e88d5357e955af29f66a81519a5c6e1c1413c297f2','compat.example.org','/by/hand',NULL,NULL,NULL,'planned','new',NULL,'plan',1,1,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}',NULL,'2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL,NULL,0);
INSERT INTO `questions` (`id`, `run_id`, `number`, `turn`, `kind`, `repository`, `digest`, `subject`, `body`, `asked_at`, `expires_at`, `deadline`, `answer`, `answered_at`, `answered_by`, `comment`) VALUES (1,'nightly_install_main/scheduled__2026-11-21T00:30:00+00:00',1,1,'publication','compat.example.org','36d194d9e7e8cc2841e1de1353fceac7354d4a12ceb7dd96745e1a4ad3f1fb9e','Publish 2 artifacts?','* `2 artifacts of slot main for compat.example.org`\n\n| Artifact | Destination | Content | SHA-256 |\n|---|---|---|---|\n| `Gaudi/x86_64` | `/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt` | `9 files` | `200708479e5a2d3e` |\n| `LHCb/armv8` | `/l` | `a link` | `3c7d244f31671a21` |\n\nYour answer applies to this list only (SHA-256 `36d194d9e7e8cc2841e1de1353fceac7354d4a12ceb7dd96745e1a4ad3f1fb9e`). Without an answer within 240 minutes, and by 2026-11-22 01:03 UTC at the latest, none of it is done.','2026-11-21 02:03:04.567890','2026-11-22 01:03:04','2026-11-21 03:03:04.567890','approved','2026-11-21 02:33:04.567890','shift','gut');
INSERT INTO `questions` (`id`, `run_id`, `number`, `turn`, `kind`, `repository`, `digest`, `subject`, `body`, `asked_at`, `expires_at`, `deadline`, `answer`, `answered_at`, `answered_by`, `comment`) VALUES (2,'publication/manual__1',1,1,'publication','compat.example.org','36d194d9e7e8cc2841e1de1353fceac7354d4a12ceb7dd96745e1a4ad3f1fb9e','Publish 2 artifacts?','* `2 artifacts of slot main for compat.example.org`\n\n| Artifact | Destination | Content | SHA-256 |\n|---|---|---|---|\n| `Gaudi/x86_64` | `/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt` | `9 files` | `200708479e5a2d3e` |\n| `LHCb/armv8` | `/l` | `a link` | `3c7d244f31671a21` |\n\nYour answer applies to this list only (SHA-256 `36d194d9e7e8cc2841e1de1353fceac7354d4a12ceb7dd96745e1a4ad3f1fb9e`). Without an answer within 240 minutes, and by 2026-11-22 01:03 UTC at the latest, none of it is done.','2026-11-21 02:03:04.567890','2026-11-22 01:03:04','2026-11-21 03:03:04.567890','open',NULL,NULL,'');
INSERT INTO `store_traits` (`store`, `name`, `url`, `put_if_absent`, `replace_if_unchanged`, `bulk_delete`, `anonymous_read`, `etag_quotes`, `probed_at`) VALUES ('c79ac11e676126b47262e52f4b3ead377ab6947c9135623ec98b35f553685d79','cvmfs','s3://cvmfs',1,1,0,NULL,0,'2026-11-21 02:03:04.567890');
INSERT INTO `summaries` (`slot`, `build_date`, `file`, `headline`, `made_at`, `told_at`, `fault`) VALUES ('main','2026-11-21','/var/summaries/main/2026-11-21.html','main 2026-11-21: 1 published, 1 unchanged, 2 failed, 1 blocked, 1 open, 1 never arrived','2026-11-21 02:03:04.567890','2026-11-21 02:03:04.567890',NULL);
INSERT INTO `undone` (`id`, `artifact`, `artifact_sha256`, `repository`, `destination`, `nested_hash`, `predecessor`, `reason`, `run_id`, `revision`, `undone_at`, `lifted_at`) VALUES (1,1,'a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1','compat.example.org','/nightlies/main/b1/Gaudi/x86_64-el9-gcc13-opt','1415161718191a1b1c1d1e1f2021222324252627',NULL,'crashes','undo_build/manual__1',7,'2026-11-21 02:03:04.567890',NULL);
