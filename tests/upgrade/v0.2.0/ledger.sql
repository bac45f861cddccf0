PRAGMA user_version = 0;
BEGIN TRANSACTION;
CREATE TABLE alerts (
	cause VARCHAR(64) NOT NULL, 
	"key" VARCHAR(512) NOT NULL, 
	event VARCHAR(32) NOT NULL, 
	severity VARCHAR(16) NOT NULL, 
	title TEXT NOT NULL, 
	text TEXT NOT NULL, 
	times INTEGER NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	last_seen_at DATETIME NOT NULL, 
	told_at DATETIME, 
	fault TEXT, 
	CONSTRAINT pk_alerts PRIMARY KEY (cause)
);
INSERT INTO "alerts" VALUES('cd30420c86c5d94fb64f3fd822d2420ec427bd735437b776145a9db294ef3cc0','failed:main:1','failed','error','title: é','text
',1,'2026-11-27 13:20:39.850600','2026-11-27 13:20:39.850600','2026-11-27 13:20:39.850600',NULL);
CREATE TABLE artifacts (
	id INTEGER NOT NULL, 
	build INTEGER NOT NULL, 
	project VARCHAR(128) NOT NULL, 
	platform VARCHAR(128) NOT NULL, 
	url VARCHAR(2048) NOT NULL, 
	size BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	priority INTEGER NOT NULL, 
	dependencies JSON NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	inherited VARCHAR(128), 
	CONSTRAINT pk_artifacts PRIMARY KEY (id), 
	CONSTRAINT uq_artifacts_build_project_platform UNIQUE (build, project, platform), 
	CONSTRAINT fk_artifacts_build_builds FOREIGN KEY(build) REFERENCES builds (id) ON DELETE CASCADE
);
INSERT INTO "artifacts" VALUES(1,1,'Gaudi','x86_64','main/2026-11-01/b20261101/Gaudi-x86_64.tar.gz',88,'81b67e43c82001fb0de64cb2f3662799eebc05e47f9b31a63a72e38e8b92b894',0,'[]','2026-11-27 13:20:38.014537','2026-11-27 13:20:38.014537',NULL);
INSERT INTO "artifacts" VALUES(2,1,'LHCb','x86_64','main/2026-11-01/b20261101/LHCb-x86_64.tar.gz',88,'78ea404ebc78290ccb6552fbdef3603923868291c3a677a0140399d3b7658966',0,'[]','2026-11-27 13:20:38.014537','2026-11-27 13:20:38.014537',NULL);
INSERT INTO "artifacts" VALUES(3,2,'Gaudi','x86_64','main/2026-11-02/b20261102/Gaudi-x86_64.tar.gz',88,'efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f',0,'[]','2026-11-27 13:20:38.908057','2026-11-27 13:20:38.908057',NULL);
CREATE TABLE benchmark_baselines (
	id INTEGER NOT NULL, 
	target VARCHAR(128) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	campaign VARCHAR(200) NOT NULL, 
	accepted_by VARCHAR(128) NOT NULL, 
	accepted_at DATETIME NOT NULL, 
	CONSTRAINT pk_benchmark_baselines PRIMARY KEY (id)
);
INSERT INTO "benchmark_baselines" VALUES(1,'target-1','digest-1','campaign-1','accepted_by-1','2026-11-21 00:00:00.000000');
INSERT INTO "benchmark_baselines" VALUES(2,'target-2','digest-2','campaign-2','accepted_by-2','2026-11-22 00:00:00.000000');
CREATE TABLE benchmark_campaigns (
	id INTEGER NOT NULL, 
	campaign VARCHAR(200) NOT NULL, 
	target VARCHAR(128) NOT NULL, 
	preset VARCHAR(128) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	began_at DATETIME NOT NULL, 
	verdict VARCHAR(16) NOT NULL, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_benchmark_campaigns PRIMARY KEY (id), 
	CONSTRAINT uq_benchmark_campaigns_campaign UNIQUE (campaign)
);
INSERT INTO "benchmark_campaigns" VALUES(1,'campaign-1','target-1','preset-1','digest-1','2026-11-21 00:00:00.000000','verdict-1','document-1');
INSERT INTO "benchmark_campaigns" VALUES(2,'campaign-2','target-2','preset-2','digest-2','2026-11-22 00:00:00.000000','verdict-2','document-2');
CREATE TABLE bound (
	question INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR(1024) NOT NULL, 
	destination VARCHAR(1024) NOT NULL, 
	CONSTRAINT pk_bound PRIMARY KEY (question, digest), 
	CONSTRAINT fk_bound_question_questions FOREIGN KEY(question) REFERENCES questions (id) ON DELETE CASCADE
);
INSERT INTO "bound" VALUES(1,'digest-1','name-1','destination-1');
INSERT INTO "bound" VALUES(1,'digest-2','name-2','destination-2');
CREATE TABLE builds (
	id INTEGER NOT NULL, 
	slot VARCHAR(128) NOT NULL, 
	build_id VARCHAR(128) NOT NULL, 
	build_date DATE NOT NULL, 
	complete BOOLEAN NOT NULL, 
	index_url VARCHAR(2048) NOT NULL, 
	artifacts INTEGER NOT NULL, 
	rejected JSON NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	serial BIGINT, 
	written_at DATETIME, 
	base_build VARCHAR(128), 
	base_date DATE, 
	CONSTRAINT pk_builds PRIMARY KEY (id), 
	CONSTRAINT uq_builds_slot_build_id UNIQUE (slot, build_id)
);
INSERT INTO "builds" VALUES(1,'main','b20261101','2026-11-01',1,'file:///tmp/tmpmuzrkt_y/cvmfs/main/2026-11-01/index.json',2,'[]','2026-11-27 13:20:38.014537','2026-11-27 13:20:38.014537',NULL,NULL,NULL,NULL);
INSERT INTO "builds" VALUES(2,'main','b20261102','2026-11-02',1,'file:///tmp/tmpmuzrkt_y/cvmfs/main/2026-11-02/index.json',1,'[]','2026-11-27 13:20:38.908057','2026-11-27 13:20:38.908057',NULL,NULL,'b20261101','2026-11-01');
CREATE TABLE changesets (
	digest VARCHAR(64) NOT NULL, 
	place VARCHAR(64) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	destination VARCHAR(1024) NOT NULL, 
	source_sha256 VARCHAR(64) NOT NULL, 
	root_hash VARCHAR(64) NOT NULL, 
	generation BIGINT NOT NULL, 
	base_revision BIGINT, 
	body TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_changesets PRIMARY KEY (digest)
);
INSERT INTO "changesets" VALUES('0c65a35fb1ab8cfce932df2067fe3286a0641bf080fcc16c2aeaf075f919eec3','c39d4a630d27592c7f2095e130dde4806f7aa3d1a91b28b54adc40758ef2da1d','nights.example.org','/nightlies/main/b20261101/Gaudi/x86_64','81b67e43c82001fb0de64cb2f3662799eebc05e47f9b31a63a72e38e8b92b894','bdaaf7bd1f45cc05daf6a96ea1233ff647a3adb0',0,0,'{"base_revision":0,"base_root":"c214b68ad2bed5fc344d18af152c36c39296dd25","bytes_uploaded":1835,"catalogs":1,"counters":{"below":{"chunked":0,"chunked_size":0,"chunks":0,"dir":0,"external":0,"external_file_size":0,"file_size":0,"nested":0,"regular":0,"special":0,"symlink":0,"xattr":0},"own":{"chunked":0,"chunked_size":0,"chunks":0,"dir":1,"external":0,"external_file_size":0,"file_size":1,"nested":0,"regular":2,"special":0,"symlink":0,"xattr":0}},"created":"2026-11-27T13:20:38.231810+00:00","destination":"/nightlies/main/b20261101/Gaudi/x86_64","format":1,"generation":0,"notes":[],"objects_new":3,"objects_reused":0,"repository":"nights.example.org","root":"bdaaf7bd1f45cc05daf6a96ea1233ff647a3adb0","root_entry":{"gid":0,"linkcount":2,"mode":16877,"mtime":1700000000,"size":4096,"uid":0},"root_size":57344,"source":"Gaudi/x86_64","source_sha256":"81b67e43c82001fb0de64cb2f3662799eebc05e47f9b31a63a72e38e8b92b894","stored":true}
','2026-11-27 13:20:38.231810');
INSERT INTO "changesets" VALUES('5d4c93ee914b6b386bb1e3907efa7c52fcae82ed347308c8bc41f52bac36d5a7','a70504d14ab0a9c0333eab6be39c8c9baad65063ba323111073ac0effa473ff3','nights.example.org','/nightlies/main/b20261101/LHCb/x86_64','78ea404ebc78290ccb6552fbdef3603923868291c3a677a0140399d3b7658966','8d9d9e8cb088cdfb59e6d3b26343036d83597a2b',0,0,'{"base_revision":0,"base_root":"c214b68ad2bed5fc344d18af152c36c39296dd25","bytes_uploaded":1836,"catalogs":1,"counters":{"below":{"chunked":0,"chunked_size":0,"chunks":0,"dir":0,"external":0,"external_file_size":0,"file_size":0,"nested":0,"regular":0,"special":0,"symlink":0,"xattr":0},"own":{"chunked":0,"chunked_size":0,"chunks":0,"dir":1,"external":0,"external_file_size":0,"file_size":1,"nested":0,"regular":2,"special":0,"symlink":0,"xattr":0}},"created":"2026-11-27T13:20:38.305152+00:00","destination":"/nightlies/main/b20261101/LHCb/x86_64","format":1,"generation":0,"notes":[],"objects_new":3,"objects_reused":0,"repository":"nights.example.org","root":"8d9d9e8cb088cdfb59e6d3b26343036d83597a2b","root_entry":{"gid":0,"linkcount":2,"mode":16877,"mtime":1700000000,"size":4096,"uid":0},"root_size":57344,"source":"LHCb/x86_64","source_sha256":"78ea404ebc78290ccb6552fbdef3603923868291c3a677a0140399d3b7658966","stored":true}
','2026-11-27 13:20:38.305152');
INSERT INTO "changesets" VALUES('6392e3a881b18453d6cf56d02c2e3e133e222d7376c25abb9ee1c07d2e6d905f','c9d23f6aa5259e91a0bb6d52d375981339460fce2c8841b110087fa4a4ba8d3e','nights.example.org','/nightlies/main/b20261102/Gaudi/x86_64','efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f','4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1',0,4,'{"base_revision":4,"base_root":"54df6d7c15b779f831ace9d983829b640a7aed03","bytes_uploaded":1830,"catalogs":1,"counters":{"below":{"chunked":0,"chunked_size":0,"chunks":0,"dir":0,"external":0,"external_file_size":0,"file_size":0,"nested":0,"regular":0,"special":0,"symlink":0,"xattr":0},"own":{"chunked":0,"chunked_size":0,"chunks":0,"dir":1,"external":0,"external_file_size":0,"file_size":1,"nested":0,"regular":2,"special":0,"symlink":0,"xattr":0}},"created":"2026-11-27T13:20:38.937691+00:00","destination":"/nightlies/main/b20261102/Gaudi/x86_64","format":1,"generation":0,"notes":[],"objects_new":2,"objects_reused":1,"repository":"nights.example.org","root":"4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1","root_entry":{"gid":0,"linkcount":2,"mode":16877,"mtime":1700000000,"size":4096,"uid":0},"root_size":57344,"source":"Gaudi/x86_64","source_sha256":"efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f","stored":true}
','2026-11-27 13:20:38.937691');
INSERT INTO "changesets" VALUES('b3fcc31601f2b9c9969bf30efd34a689836dae574a0f05f25baa3df1c03610ac','6c9281d9208ab18ba374f9c31b7fd5ce57d08f5d1a97ad53234fe142e1476afd','nights.example.org','/by/hand','20e20116d662d992334ae85f403403e87e7ca3385579a9d6bd9b2880086120b1','2cfaa1ee03ba5d3640fa1092ac3ae3836b7484a3',0,8,'{"base_revision":8,"base_root":"2140e15aeaa6a7f99869a38183ad67ad05ac435c","bytes_uploaded":1793,"catalogs":1,"counters":{"below":{"chunked":0,"chunked_size":0,"chunks":0,"dir":0,"external":0,"external_file_size":0,"file_size":0,"nested":0,"regular":0,"special":0,"symlink":0,"xattr":0},"own":{"chunked":0,"chunked_size":0,"chunks":0,"dir":1,"external":0,"external_file_size":0,"file_size":1,"nested":0,"regular":2,"special":0,"symlink":0,"xattr":0}},"created":"2026-11-27T13:20:39.636809+00:00","destination":"/by/hand","format":1,"generation":0,"notes":[],"objects_new":3,"objects_reused":0,"repository":"nights.example.org","root":"2cfaa1ee03ba5d3640fa1092ac3ae3836b7484a3","root_entry":{"gid":0,"linkcount":2,"mode":16877,"mtime":1700000000,"size":4096,"uid":0},"root_size":57344,"source":"/by/hand","source_sha256":"20e20116d662d992334ae85f403403e87e7ca3385579a9d6bd9b2880086120b1","stored":true}
','2026-11-27 13:20:39.636809');
CREATE TABLE collections (
	repository VARCHAR(128) NOT NULL, 
	ended_at DATETIME NOT NULL, 
	number BIGINT NOT NULL, 
	kept BIGINT NOT NULL, 
	deleted BIGINT NOT NULL, 
	bytes_deleted BIGINT NOT NULL, 
	garbage BIGINT NOT NULL, 
	lost BIGINT NOT NULL, 
	seconds FLOAT NOT NULL, 
	CONSTRAINT pk_collections PRIMARY KEY (repository, ended_at)
);
INSERT INTO "collections" VALUES('repository-1','2026-11-21 00:00:00.000000',1,1,1,1,1,1,1.0);
INSERT INTO "collections" VALUES('repository-2','2026-11-22 00:00:00.000000',2,2,2,2,2,2,2.0);
CREATE TABLE created (
	run_id VARCHAR(512) NOT NULL, 
	place VARCHAR(64) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	path VARCHAR(1024) NOT NULL, 
	noted_at DATETIME NOT NULL, 
	CONSTRAINT pk_created PRIMARY KEY (run_id, place)
);
INSERT INTO "created" VALUES('night/1','933141bac20cb6b0fcb29cd3929a1e395079058dce83b0077e30360ca34815b0','nights.example.org','/nightlies','2026-11-27 13:20:38.401669');
INSERT INTO "created" VALUES('night/1','53d5c2f7e66a91f87bee0fb743dc3ceddec4ff20208a61b5c0215b21010144bc','nights.example.org','/nightlies/main','2026-11-27 13:20:38.401669');
INSERT INTO "created" VALUES('night/1','a6508e4baca8995f7f45bf4333a26bbf33f054766e40de642353388b699eea14','nights.example.org','/nightlies/main/b20261101','2026-11-27 13:20:38.401669');
INSERT INTO "created" VALUES('night/1','1925f5fa84693566565bd81f251f67476f4d3876395f884edc8db38b78eeb569','nights.example.org','/nightlies/main/b20261101/Gaudi','2026-11-27 13:20:38.401669');
INSERT INTO "created" VALUES('night/1','0d72e57d4ab5bc5edf84303049726015c16a5cc88cf6303f20decd5a22d500a3','nights.example.org','/nightlies/main/b20261101/LHCb','2026-11-27 13:20:38.401669');
INSERT INTO "created" VALUES('night/2','76c55d78b4830121599615106cb255591e166389ee7b849f86495a05b96ecedf','nights.example.org','/nightlies/main/b20261102','2026-11-27 13:20:38.992845');
INSERT INTO "created" VALUES('night/2','b6d1dfa2cba93ecb7a26db92513ac877d3d0d934c549d4cd87d307023e0c74c8','nights.example.org','/nightlies/main/b20261102/Gaudi','2026-11-27 13:20:38.992845');
INSERT INTO "created" VALUES('publication/0','28e5d6d8eb5f4ead2c10454c2f570799cf73f6f158ff1be7bff42da9b50944e9','nights.example.org','/by','2026-11-27 13:20:39.664365');
CREATE TABLE damaged (
	repository VARCHAR(128) NOT NULL, 
	object VARCHAR(64) NOT NULL, 
	path VARCHAR(1024) NOT NULL, 
	reason TEXT NOT NULL, 
	stored_size BIGINT, 
	found_at DATETIME NOT NULL, 
	CONSTRAINT pk_damaged PRIMARY KEY (repository, object)
);
INSERT INTO "damaged" VALUES('repository-1','object-1','path-1','reason-1',1,'2026-11-21 00:00:00.000000');
INSERT INTO "damaged" VALUES('repository-2','object-2','path-2','reason-2',2,'2026-11-22 00:00:00.000000');
CREATE TABLE installed (
	place VARCHAR(64) NOT NULL, 
	artifact_sha256 VARCHAR(64) NOT NULL, 
	nested_hash VARCHAR(64) NOT NULL, 
	updated_at DATETIME NOT NULL, 
	CONSTRAINT pk_installed PRIMARY KEY (place, artifact_sha256)
);
INSERT INTO "installed" VALUES('c39d4a630d27592c7f2095e130dde4806f7aa3d1a91b28b54adc40758ef2da1d','81b67e43c82001fb0de64cb2f3662799eebc05e47f9b31a63a72e38e8b92b894','bdaaf7bd1f45cc05daf6a96ea1233ff647a3adb0','2026-11-27 13:20:38.647559');
INSERT INTO "installed" VALUES('a70504d14ab0a9c0333eab6be39c8c9baad65063ba323111073ac0effa473ff3','78ea404ebc78290ccb6552fbdef3603923868291c3a677a0140399d3b7658966','8d9d9e8cb088cdfb59e6d3b26343036d83597a2b','2026-11-27 13:20:38.774010');
INSERT INTO "installed" VALUES('c9d23f6aa5259e91a0bb6d52d375981339460fce2c8841b110087fa4a4ba8d3e','efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f','4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1','2026-11-27 13:20:39.297830');
INSERT INTO "installed" VALUES('6c9281d9208ab18ba374f9c31b7fd5ce57d08f5d1a97ad53234fe142e1476afd','20e20116d662d992334ae85f403403e87e7ca3385579a9d6bd9b2880086120b1','2cfaa1ee03ba5d3640fa1092ac3ae3836b7484a3','2026-11-27 13:20:39.787229');
CREATE TABLE interventions (
	id INTEGER NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	freeze VARCHAR(64) NOT NULL, 
	who VARCHAR(256) NOT NULL, 
	reason TEXT NOT NULL, 
	until DATETIME, 
	done_at DATETIME NOT NULL, 
	CONSTRAINT pk_interventions PRIMARY KEY (id)
);
INSERT INTO "interventions" VALUES(1,'nights.example.org','freeze','5d0ab38f7bebbf53','shift@node','disks are moved: é','2026-11-27 14:20:39.850600','2026-11-27 13:20:39.850600');
INSERT INTO "interventions" VALUES(2,'nights.example.org','thaw','5d0ab38f7bebbf53','other@node','disks are moved: é','2026-11-27 14:20:39.000000','2026-11-27 13:20:39.850600');
CREATE TABLE ledger_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT ledger_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "ledger_version" VALUES('v0001');
CREATE TABLE links (
	id INTEGER NOT NULL, 
	place VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	path VARCHAR(1024) NOT NULL, 
	slot VARCHAR(128) NOT NULL, 
	build_id VARCHAR(128) NOT NULL, 
	build_date DATE NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	run_id VARCHAR(512) NOT NULL, 
	revision BIGINT, 
	decided_at DATETIME NOT NULL, 
	CONSTRAINT pk_links PRIMARY KEY (id)
);
INSERT INTO "links" VALUES(1,'6fef4e23912b91567b3a7da64f5ac568dc818f04b36f0857202adf84975cc114','link','nights.example.org','/nightlies/main/latest','main','b20261101','2026-11-01','moved','new','night/1',4,'2026-11-27 13:20:38.877127');
INSERT INTO "links" VALUES(2,'9e6bdf5c7144f84edcd96bf1e6b7bf76ff9607f93b9c0a28b8dd1d82fa4addd3','link','nights.example.org','/nightlies/main/Sun','main','b20261101','2026-11-01','moved','new','night/1',4,'2026-11-27 13:20:38.877139');
INSERT INTO "links" VALUES(3,'86645e1801c01d14e9233729a9c2bd8a18adc2310bc6286bb4e899148186b317','tag','nights.example.org','main-b20261101','main','b20261101','2026-11-01','moved','names revision 4','night/1',4,'2026-11-27 13:20:38.877142');
INSERT INTO "links" VALUES(4,'6fef4e23912b91567b3a7da64f5ac568dc818f04b36f0857202adf84975cc114','link','nights.example.org','/nightlies/main/latest','main','b20261102','2026-11-02','moved','from build b20261101 of 2026-11-01','night/2',7,'2026-11-27 13:20:39.455204');
INSERT INTO "links" VALUES(5,'d65d18d1380bca837a4426663499dd3d4f4bd8e9210402c67f4834e504f81d0f','link','nights.example.org','/nightlies/main/Mon','main','b20261102','2026-11-02','moved','new','night/2',7,'2026-11-27 13:20:39.455215');
INSERT INTO "links" VALUES(6,'5df2f58d093c582392e8f57e0c0ccabb0e3576e5f2f740e66c8c47cc8138ce1a','tag','nights.example.org','main-b20261102','main','b20261102','2026-11-02','moved','names revision 7','night/2',7,'2026-11-27 13:20:39.455218');
INSERT INTO "links" VALUES(7,'6fef4e23912b91567b3a7da64f5ac568dc818f04b36f0857202adf84975cc114','link','nights.example.org','/nightlies/main/latest','main','b20261101','2026-11-01','moved','build b20261102 of 2026-11-02 is undone: it crashes','test/undo',8,'2026-11-27 13:20:39.559809');
INSERT INTO "links" VALUES(8,'d65d18d1380bca837a4426663499dd3d4f4bd8e9210402c67f4834e504f81d0f','link','nights.example.org','/nightlies/main/Mon','main','b20261102','2026-11-02','removed','build b20261102 of 2026-11-02 is undone: it crashes','test/undo',8,'2026-11-27 13:20:39.559809');
CREATE TABLE progress (
	publication INTEGER NOT NULL, 
	try_number INTEGER NOT NULL, 
	began_at DATETIME NOT NULL, 
	files BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	bytes_uploaded BIGINT NOT NULL, 
	noted_at DATETIME NOT NULL, 
	CONSTRAINT pk_progress PRIMARY KEY (publication)
);
INSERT INTO "progress" VALUES(1,1,'2026-11-21 00:00:00.000000',1,1,1,'2026-11-21 00:00:00.000000');
INSERT INTO "progress" VALUES(2,2,'2026-11-22 00:00:00.000000',2,2,2,'2026-11-22 00:00:00.000000');
CREATE TABLE provenance (
	id INTEGER NOT NULL, 
	place VARCHAR(64) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	path VARCHAR(1024) NOT NULL, 
	revision BIGINT NOT NULL, 
	root_hash VARCHAR(64), 
	nested_hash VARCHAR(64), 
	changeset VARCHAR(64), 
	source VARCHAR(2048), 
	artifact_sha256 VARCHAR(64), 
	slot VARCHAR(128), 
	build_id VARCHAR(128), 
	project VARCHAR(128), 
	platform VARCHAR(128), 
	run_id VARCHAR(512) NOT NULL, 
	holder VARCHAR(512) NOT NULL, 
	publisher VARCHAR(32) NOT NULL, 
	key_id VARCHAR(128) NOT NULL, 
	published_at DATETIME NOT NULL, 
	document VARCHAR(512), 
	kind VARCHAR(16), 
	came_from VARCHAR(1024), 
	from_build VARCHAR(128), 
	leads_to TEXT, 
	"before" TEXT, 
	reason TEXT, 
	CONSTRAINT pk_provenance PRIMARY KEY (id)
);
INSERT INTO "provenance" VALUES(1,'c39d4a630d27592c7f2095e130dde4806f7aa3d1a91b28b54adc40758ef2da1d','nights.example.org','/nightlies/main/b20261101/Gaudi/x86_64',2,'ad1739a8ef5175834c2f1a15a4e746bf904451df','bdaaf7bd1f45cc05daf6a96ea1233ff647a3adb0','0c65a35fb1ab8cfce932df2067fe3286a0641bf080fcc16c2aeaf075f919eec3','file:///tmp/tmpmuzrkt_y/cvmfs/main/2026-11-01/b20261101/Gaudi-x86_64.tar.gz','81b67e43c82001fb0de64cb2f3662799eebc05e47f9b31a63a72e38e8b92b894','main','b20261101','Gaudi','x86_64','night/1','test','native','worker','2026-11-27 13:20:38.647559','.nightshift/provenance/82/820d8bb668d92be3ebb837aab220c4556078a340feac523822651d7529183dfb/2-7f0ace0ee635dead.json','tree',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "provenance" VALUES(2,'a70504d14ab0a9c0333eab6be39c8c9baad65063ba323111073ac0effa473ff3','nights.example.org','/nightlies/main/b20261101/LHCb/x86_64',3,'b67343255d5fc28fd41a25eee2216c56690c9886','8d9d9e8cb088cdfb59e6d3b26343036d83597a2b','5d4c93ee914b6b386bb1e3907efa7c52fcae82ed347308c8bc41f52bac36d5a7','file:///tmp/tmpmuzrkt_y/cvmfs/main/2026-11-01/b20261101/LHCb-x86_64.tar.gz','78ea404ebc78290ccb6552fbdef3603923868291c3a677a0140399d3b7658966','main','b20261101','LHCb','x86_64','night/1','test','native','worker','2026-11-27 13:20:38.774010','.nightshift/provenance/e1/e19d592dfbfd9192d9d10857633d3cdf8169a315db7d18d88e78755d8aac1f62/3-7f0ace0ee635dead.json','tree',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "provenance" VALUES(3,'6fef4e23912b91567b3a7da64f5ac568dc818f04b36f0857202adf84975cc114','nights.example.org','/nightlies/main/latest',4,NULL,NULL,NULL,NULL,NULL,'main','b20261101',NULL,NULL,'night/1','test','native','worker','2026-11-27 13:20:38.881389','.nightshift/provenance/60/607d3560d3a4a564e797f05da4aba93ebea6d51299c0626c71f9d94a1663d2fd/4-7f0ace0ee635dead.json','link',NULL,NULL,'/nightlies/main/b20261101',NULL,'new');
INSERT INTO "provenance" VALUES(4,'9e6bdf5c7144f84edcd96bf1e6b7bf76ff9607f93b9c0a28b8dd1d82fa4addd3','nights.example.org','/nightlies/main/Sun',4,NULL,NULL,NULL,NULL,NULL,'main','b20261101',NULL,NULL,'night/1','test','native','worker','2026-11-27 13:20:38.881389','.nightshift/provenance/b6/b61aa81fee58b59d489aa760de440f4547c0235b5aac64319cce730ba764d421/4-7f0ace0ee635dead.json','link',NULL,NULL,'/nightlies/main/b20261101',NULL,'new');
INSERT INTO "provenance" VALUES(5,'c9d23f6aa5259e91a0bb6d52d375981339460fce2c8841b110087fa4a4ba8d3e','nights.example.org','/nightlies/main/b20261102/Gaudi/x86_64',6,'d048539ec6a932ee7f037e84fd8f738c14f500e1','4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1','6392e3a881b18453d6cf56d02c2e3e133e222d7376c25abb9ee1c07d2e6d905f','file:///tmp/tmpmuzrkt_y/cvmfs/main/2026-11-02/b20261102/Gaudi-x86_64.tar.gz','efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f','main','b20261102','Gaudi','x86_64','night/2','test','native','worker','2026-11-27 13:20:39.297830','.nightshift/provenance/6c/6c95026cf118b1438a3da656b62b99cd5c73aa725cc685f9edbde89867d64ca8/6-ea903a6270969057.json','tree',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "provenance" VALUES(6,'6fef4e23912b91567b3a7da64f5ac568dc818f04b36f0857202adf84975cc114','nights.example.org','/nightlies/main/latest',7,NULL,NULL,NULL,NULL,NULL,'main','b20261102',NULL,NULL,'night/2','test','native','worker','2026-11-27 13:20:39.459567','.nightshift/provenance/60/607d3560d3a4a564e797f05da4aba93ebea6d51299c0626c71f9d94a1663d2fd/7-ea903a6270969057.json','link',NULL,NULL,'/nightlies/main/b20261102','/nightlies/main/b20261101','from build b20261101 of 2026-11-01');
INSERT INTO "provenance" VALUES(7,'d65d18d1380bca837a4426663499dd3d4f4bd8e9210402c67f4834e504f81d0f','nights.example.org','/nightlies/main/Mon',7,NULL,NULL,NULL,NULL,NULL,'main','b20261102',NULL,NULL,'night/2','test','native','worker','2026-11-27 13:20:39.459567','.nightshift/provenance/7c/7ce1284def43fc8b448aae738979662904376d77c6e9b32e59110d4e63fafbcf/7-ea903a6270969057.json','link',NULL,NULL,'/nightlies/main/b20261102',NULL,'new');
INSERT INTO "provenance" VALUES(8,'6fef4e23912b91567b3a7da64f5ac568dc818f04b36f0857202adf84975cc114','nights.example.org','/nightlies/main/latest',8,NULL,NULL,NULL,NULL,NULL,'main','b20261101',NULL,NULL,'test/undo','test','native','worker','2026-11-27 13:20:39.559809','.nightshift/provenance/60/607d3560d3a4a564e797f05da4aba93ebea6d51299c0626c71f9d94a1663d2fd/8-8040c2397cddee26.json','link',NULL,NULL,'/nightlies/main/b20261101','/nightlies/main/b20261102','build b20261102 of 2026-11-02 is undone: it crashes');
INSERT INTO "provenance" VALUES(9,'d65d18d1380bca837a4426663499dd3d4f4bd8e9210402c67f4834e504f81d0f','nights.example.org','/nightlies/main/Mon',8,NULL,NULL,NULL,NULL,NULL,'main','b20261102',NULL,NULL,'test/undo','test','native','worker','2026-11-27 13:20:39.559809','.nightshift/provenance/7c/7ce1284def43fc8b448aae738979662904376d77c6e9b32e59110d4e63fafbcf/8-8040c2397cddee26.json','removed',NULL,NULL,NULL,'/nightlies/main/b20261102','build b20261102 of 2026-11-02 is undone: it crashes');
INSERT INTO "provenance" VALUES(10,'c9d23f6aa5259e91a0bb6d52d375981339460fce2c8841b110087fa4a4ba8d3e','nights.example.org','/nightlies/main/b20261102/Gaudi/x86_64',8,NULL,NULL,NULL,NULL,'efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f','main','b20261102','Gaudi','x86_64','test/undo','test','native','worker','2026-11-27 13:20:39.559809','.nightshift/provenance/6c/6c95026cf118b1438a3da656b62b99cd5c73aa725cc685f9edbde89867d64ca8/8-8040c2397cddee26.json','removed',NULL,NULL,NULL,'4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1','it crashes');
INSERT INTO "provenance" VALUES(11,'6c9281d9208ab18ba374f9c31b7fd5ce57d08f5d1a97ad53234fe142e1476afd','nights.example.org','/by/hand',10,'75388e8416a8ffc670f96d86730f583ad94c2c5b','2cfaa1ee03ba5d3640fa1092ac3ae3836b7484a3','b3fcc31601f2b9c9969bf30efd34a689836dae574a0f05f25baa3df1c03610ac','file:///tmp/tmpmuzrkt_y/cvmfs/publication/0.tar.gz','20e20116d662d992334ae85f403403e87e7ca3385579a9d6bd9b2880086120b1',NULL,NULL,NULL,NULL,'publication/0','test','native','worker','2026-11-27 13:20:39.787229','.nightshift/provenance/41/41883c1b34cdeb2dd0808257b4643e46f2ad3ba256a7ed92311aa545a72b9043/10-89057e638f4115d0.json','tree',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE publications (
	id INTEGER NOT NULL, 
	run_id VARCHAR(512) NOT NULL, 
	place VARCHAR(64) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	destination VARCHAR(1024) NOT NULL, 
	artifact INTEGER, 
	artifact_sha256 VARCHAR(64), 
	changeset VARCHAR(64), 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	code VARCHAR(128), 
	skip_reason VARCHAR(32), 
	blocked_by VARCHAR(512), 
	phase VARCHAR(16) NOT NULL, 
	try_number INTEGER NOT NULL, 
	plan_try INTEGER NOT NULL, 
	prepare_try INTEGER NOT NULL, 
	publish_try INTEGER NOT NULL, 
	approve_try INTEGER DEFAULT '0' NOT NULL, 
	revision_before BIGINT, 
	revision_after BIGINT, 
	root_hash VARCHAR(64), 
	nested_hash VARCHAR(64), 
	files BIGINT, 
	bytes BIGINT, 
	objects_new BIGINT, 
	objects_reused BIGINT, 
	bytes_uploaded BIGINT, 
	seconds JSON NOT NULL, 
	lease_held_s FLOAT, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	verified_at DATETIME, 
	holder VARCHAR(512), 
	CONSTRAINT pk_publications PRIMARY KEY (id), 
	CONSTRAINT uq_publications_run_id_place UNIQUE (run_id, place), 
	CONSTRAINT fk_publications_artifact_artifacts FOREIGN KEY(artifact) REFERENCES artifacts (id) ON DELETE SET NULL
);
INSERT INTO "publications" VALUES(1,'night/1','c39d4a630d27592c7f2095e130dde4806f7aa3d1a91b28b54adc40758ef2da1d','nights.example.org','/nightlies/main/b20261101/Gaudi/x86_64',1,'81b67e43c82001fb0de64cb2f3662799eebc05e47f9b31a63a72e38e8b92b894','0c65a35fb1ab8cfce932df2067fe3286a0641bf080fcc16c2aeaf075f919eec3','published','in revision 2',NULL,NULL,NULL,'publish',1,1,1,1,0,1,2,'ad1739a8ef5175834c2f1a15a4e746bf904451df','bdaaf7bd1f45cc05daf6a96ea1233ff647a3adb0',2,1,3,0,1835,'{"prepare": 0.055, "changeset": 0.001, "lease": 0.004365, "base": 0.00351, "hang": 0.001016, "upload": 0.003462, "commit": 0.067969, "confirm": 0.003237}',0.076021,'2026-11-27 13:20:38.206140','2026-11-27 13:20:38.792997','2026-11-27 13:20:38.647559','2026-11-27 13:20:38.792997','test');
INSERT INTO "publications" VALUES(2,'night/1','a70504d14ab0a9c0333eab6be39c8c9baad65063ba323111073ac0effa473ff3','nights.example.org','/nightlies/main/b20261101/LHCb/x86_64',2,'78ea404ebc78290ccb6552fbdef3603923868291c3a677a0140399d3b7658966','5d4c93ee914b6b386bb1e3907efa7c52fcae82ed347308c8bc41f52bac36d5a7','published','in revision 3',NULL,NULL,NULL,'publish',1,1,1,1,0,2,3,'b67343255d5fc28fd41a25eee2216c56690c9886','8d9d9e8cb088cdfb59e6d3b26343036d83597a2b',2,1,3,0,1836,'{"prepare": 0.028, "changeset": 0.000905, "lease": 0.012012, "base": 0.007038, "hang": 0.001108, "upload": 0.009293, "commit": 0.032984, "confirm": 0.003366}',0.05052,'2026-11-27 13:20:38.206140','2026-11-27 13:20:38.792997','2026-11-27 13:20:38.774010','2026-11-27 13:20:38.792997','test');
INSERT INTO "publications" VALUES(3,'night/2','c9d23f6aa5259e91a0bb6d52d375981339460fce2c8841b110087fa4a4ba8d3e','nights.example.org','/nightlies/main/b20261102/Gaudi/x86_64',3,'efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f','6392e3a881b18453d6cf56d02c2e3e133e222d7376c25abb9ee1c07d2e6d905f','published','in revision 6',NULL,NULL,NULL,'publish',1,1,1,1,0,5,6,'d048539ec6a932ee7f037e84fd8f738c14f500e1','4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1',2,1,2,1,1830,'{"prepare": 0.036, "changeset": 0.000996, "lease": 0.004894, "base": 0.002936, "hang": 0.001162, "upload": 0.073387, "commit": 0.114636, "confirm": 0.003392}',0.192201,'2026-11-27 13:20:38.918941','2026-11-27 13:20:39.334252','2026-11-27 13:20:39.297830','2026-11-27 13:20:39.334252','test');
INSERT INTO "publications" VALUES(4,'publication/0','6c9281d9208ab18ba374f9c31b7fd5ce57d08f5d1a97ad53234fe142e1476afd','nights.example.org','/by/hand',NULL,'20e20116d662d992334ae85f403403e87e7ca3385579a9d6bd9b2880086120b1','b3fcc31601f2b9c9969bf30efd34a689836dae574a0f05f25baa3df1c03610ac','published','in revision 10',NULL,NULL,NULL,'publish',1,1,1,1,0,9,10,'75388e8416a8ffc670f96d86730f583ad94c2c5b','2cfaa1ee03ba5d3640fa1092ac3ae3836b7484a3',2,1,3,0,1793,'{"prepare": 0.015, "changeset": 0.000884, "lease": 0.003452, "base": 0.001952, "hang": 0.000747, "upload": 0.004776, "commit": 0.024623, "confirm": 0.005005}',0.032159,'2026-11-27 13:20:39.619666','2026-11-27 13:20:39.787229','2026-11-27 13:20:39.787229',NULL,'test');
CREATE TABLE quality (
	id INTEGER NOT NULL, 
	run_id VARCHAR(512) NOT NULL, 
	suite VARCHAR(16) NOT NULL, 
	slot VARCHAR(128) NOT NULL, 
	build_id VARCHAR(128) NOT NULL, 
	verdict VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	accepted TEXT NOT NULL, 
	faults INTEGER NOT NULL, 
	checked_at DATETIME NOT NULL, 
	build_date DATE, 
	fault_rows JSON, 
	CONSTRAINT pk_quality PRIMARY KEY (id), 
	CONSTRAINT uq_quality_run_id_suite UNIQUE (run_id, suite)
);
INSERT INTO "quality" VALUES(1,'run_id-1','suite-1','slot-1','build_id-1','verdict-1','reason-1','accepted-1',1,'2026-11-21 00:00:00.000000','2026-11-21','null');
INSERT INTO "quality" VALUES(2,'run_id-2','suite-2','slot-2','build_id-2','verdict-2','reason-2','accepted-2',2,'2026-11-22 00:00:00.000000','2026-11-22','null');
CREATE TABLE questions (
	id INTEGER NOT NULL, 
	run_id VARCHAR(512) NOT NULL, 
	number INTEGER NOT NULL, 
	turn INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	body TEXT NOT NULL, 
	asked_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	deadline DATETIME NOT NULL, 
	answer VARCHAR(16) NOT NULL, 
	answered_at DATETIME, 
	answered_by VARCHAR(256), 
	comment TEXT NOT NULL, 
	CONSTRAINT pk_questions PRIMARY KEY (id), 
	CONSTRAINT uq_questions_run_id_number UNIQUE (run_id, number)
);
INSERT INTO "questions" VALUES(1,'run_id-1',1,1,'kind-1','repository-1','digest-1','subject-1','body-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','answer-1','2026-11-21 00:00:00.000000','answered_by-1','comment-1');
INSERT INTO "questions" VALUES(2,'run_id-2',2,2,'kind-2','repository-2','digest-2','subject-2','body-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','answer-2','2026-11-22 00:00:00.000000','answered_by-2','comment-2');
CREATE TABLE replicas (
	repository VARCHAR(128) NOT NULL, 
	replica VARCHAR(128) NOT NULL, 
	url VARCHAR(2048) NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	reason TEXT NOT NULL, 
	looked_at DATETIME NOT NULL, 
	state_since DATETIME NOT NULL, 
	head_revision BIGINT NOT NULL, 
	revision BIGINT, 
	highest_revision BIGINT, 
	behind_since DATETIME, 
	snapshot_since DATETIME, 
	last_snapshot DATETIME, 
	CONSTRAINT pk_replicas PRIMARY KEY (repository, replica)
);
INSERT INTO "replicas" VALUES('repository-1','replica-1','url-1','state-1','reason-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000',1,1,1,'2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000');
INSERT INTO "replicas" VALUES('repository-2','replica-2','url-2','state-2','reason-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000',2,2,2,'2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000');
CREATE TABLE stageout_analytics (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	day DATETIME NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	workflow VARCHAR(128) NOT NULL, 
	source VARCHAR(128) NOT NULL, 
	destination VARCHAR(128) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	failure VARCHAR(32), 
	files INTEGER NOT NULL, 
	bytes BIGINT NOT NULL, 
	retries INTEGER NOT NULL, 
	waited_s FLOAT NOT NULL, 
	copied_s FLOAT NOT NULL, 
	verified_s FLOAT NOT NULL, 
	ended_s FLOAT NOT NULL, 
	CONSTRAINT uq_stageout_analytics_digest UNIQUE (digest)
);
INSERT INTO "stageout_analytics" VALUES(1,'digest-1','2026-11-21 00:00:00.000000','owner-1','workflow-1','source-1','destination-1','state-1','failure-1',1,1,1,1.0,1.0,1.0,1.0);
INSERT INTO "stageout_analytics" VALUES(2,'digest-2','2026-11-22 00:00:00.000000','owner-2','workflow-2','source-2','destination-2','state-2','failure-2',2,2,2,2.0,2.0,2.0,2.0);
CREATE TABLE stageout_archive (
	id INTEGER NOT NULL, 
	request INTEGER NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	workflow VARCHAR(128) NOT NULL, 
	source VARCHAR(128) NOT NULL, 
	destination VARCHAR(128) NOT NULL, 
	source_name VARCHAR(1024) NOT NULL, 
	destination_name VARCHAR(1024) NOT NULL, 
	size BIGINT, 
	checksum VARCHAR(32), 
	dataset VARCHAR(512), 
	user_job VARCHAR(128), 
	fts_id VARCHAR(36), 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	retries INTEGER NOT NULL, 
	failure VARCHAR(32), 
	copied_at DATETIME, 
	created_at DATETIME NOT NULL, 
	moved_at DATETIME NOT NULL, 
	history TEXT NOT NULL, 
	CONSTRAINT pk_stageout_archive PRIMARY KEY (id)
);
INSERT INTO "stageout_archive" VALUES(1,1,'owner-1','workflow-1','source-1','destination-1','source_name-1','destination_-1',1,'checksum-1','dataset-1','user_job-1','fts_id-1','state-1','reason-1',1,'failure-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','history-1');
INSERT INTO "stageout_archive" VALUES(2,2,'owner-2','workflow-2','source-2','destination-2','source_name-2','destination_-2',2,'checksum-2','dataset-2','user_job-2','fts_id-2','state-2','reason-2',2,'failure-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','history-2');
CREATE TABLE stageout_blocks (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	workflow VARCHAR(128) NOT NULL, 
	dataset VARCHAR(512) NOT NULL, 
	name VARCHAR(640) NOT NULL, 
	files INTEGER NOT NULL, 
	bytes BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	due_at DATETIME NOT NULL, 
	claim VARCHAR(32), 
	claimed_by VARCHAR(128), 
	created_at DATETIME NOT NULL, 
	moved_at DATETIME NOT NULL
);
INSERT INTO "stageout_blocks" VALUES(1,'digest-1','owner-1','workflow-1','dataset-1','name-1',1,1,'state-1','reason-1','2026-11-21 00:00:00.000000','claim-1','claimed_by-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000');
INSERT INTO "stageout_blocks" VALUES(2,'digest-2','owner-2','workflow-2','dataset-2','name-2',2,2,'state-2','reason-2','2026-11-22 00:00:00.000000','claim-2','claimed_by-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000');
CREATE TABLE stageout_catalogue (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	dataset VARCHAR(512) NOT NULL, 
	name VARCHAR(1024) NOT NULL, 
	site VARCHAR(128) NOT NULL, 
	size BIGINT NOT NULL, 
	checksum VARCHAR(32), 
	block VARCHAR(640) NOT NULL, 
	registered_at DATETIME NOT NULL, 
	CONSTRAINT uq_stageout_catalogue_digest UNIQUE (digest)
);
INSERT INTO "stageout_catalogue" VALUES(1,'digest-1','dataset-1','name-1','site-1',1,'checksum-1','block-1','2026-11-21 00:00:00.000000');
INSERT INTO "stageout_catalogue" VALUES(2,'digest-2','dataset-2','name-2','site-2',2,'checksum-2','block-2','2026-11-22 00:00:00.000000');
CREATE TABLE stageout_findings (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	found_at DATETIME NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	site VARCHAR(128), 
	transfer INTEGER, 
	job INTEGER, 
	name VARCHAR(1024), 
	bytes BIGINT, 
	reason TEXT NOT NULL, 
	outcome VARCHAR(16) NOT NULL
);
INSERT INTO "stageout_findings" VALUES(1,'2026-11-21 00:00:00.000000','kind-1','site-1',1,1,'name-1',1,'reason-1','outcome-1');
INSERT INTO "stageout_findings" VALUES(2,'2026-11-22 00:00:00.000000','kind-2','site-2',2,2,'name-2',2,'reason-2','outcome-2');
CREATE TABLE stageout_jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	sid VARCHAR(32) NOT NULL, 
	fts_id VARCHAR(36) NOT NULL, 
	server VARCHAR(128) NOT NULL, 
	queue INTEGER NOT NULL, 
	files INTEGER NOT NULL, 
	overwrites BOOLEAN DEFAULT 0 NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	due_at DATETIME NOT NULL, 
	claim VARCHAR(32), 
	claimed_by VARCHAR(128), 
	created_at DATETIME NOT NULL, 
	moved_at DATETIME NOT NULL, 
	CONSTRAINT uq_stageout_jobs_fts_id UNIQUE (fts_id), 
	CONSTRAINT fk_stageout_jobs_queue_stageout_queues FOREIGN KEY(queue) REFERENCES stageout_queues (id)
);
INSERT INTO "stageout_jobs" VALUES(1,'sid-1','fts_id-1','server-1',1,1,1,1,'state-1','reason-1','2026-11-21 00:00:00.000000','claim-1','claimed_by-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000');
INSERT INTO "stageout_jobs" VALUES(2,'sid-2','fts_id-2','server-2',1,2,1,2,'state-2','reason-2','2026-11-22 00:00:00.000000','claim-2','claimed_by-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000');
CREATE TABLE stageout_moves (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	transfer INTEGER, 
	job INTEGER, 
	state_before VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	component VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	moved_at DATETIME NOT NULL
);
INSERT INTO "stageout_moves" VALUES(1,1,1,'state_before-1','state-1','component-1','reason-1','2026-11-21 00:00:00.000000');
INSERT INTO "stageout_moves" VALUES(2,2,2,'state_before-2','state-2','component-2','reason-2','2026-11-22 00:00:00.000000');
CREATE TABLE stageout_passes (
	component VARCHAR(16) NOT NULL, 
	began_at DATETIME NOT NULL, 
	CONSTRAINT pk_stageout_passes PRIMARY KEY (component)
);
INSERT INTO "stageout_passes" VALUES('component-1','2026-11-21 00:00:00.000000');
INSERT INTO "stageout_passes" VALUES('component-2','2026-11-22 00:00:00.000000');
CREATE TABLE stageout_queues (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	source VARCHAR(128) NOT NULL, 
	destination VARCHAR(128) NOT NULL, 
	activity VARCHAR(128) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	fts VARCHAR(128), 
	verify VARCHAR(8), 
	priority INTEGER, 
	CONSTRAINT uq_stageout_queues_digest UNIQUE (digest)
);
INSERT INTO "stageout_queues" VALUES(1,'9da7716c11af8ed8bf7ba1734f0d949fa6fb3e3eb64f141025d3e29589068a58','ann','pisa','bari','default','output',NULL,NULL,NULL);
CREATE TABLE stageout_requests (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	owner VARCHAR(128) NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	workflow VARCHAR(128) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	files INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT uq_stageout_requests_owner_key UNIQUE (owner, "key")
);
INSERT INTO "stageout_requests" VALUES(1,'ann','key-2','workflow','070403e9c8c8f34a4e6d0d40f3de2bc61cc74932740759582d535581f0264218',2,'2026-11-27 13:20:39.850600');
CREATE TABLE stageout_restores (
	since DATETIME NOT NULL, 
	noted_at DATETIME NOT NULL, 
	noted_by VARCHAR(128) NOT NULL, 
	CONSTRAINT pk_stageout_restores PRIMARY KEY (since)
);
INSERT INTO "stageout_restores" VALUES('2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','noted_by-1');
INSERT INTO "stageout_restores" VALUES('2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','noted_by-2');
CREATE TABLE stageout_transfers (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	request INTEGER NOT NULL, 
	queue INTEGER NOT NULL, 
	place VARCHAR(64) NOT NULL, 
	source_name VARCHAR(1024) NOT NULL, 
	destination_name VARCHAR(1024) NOT NULL, 
	size BIGINT, 
	checksum VARCHAR(32), 
	dataset VARCHAR(512), 
	user_job VARCHAR(128), 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	retries INTEGER NOT NULL, 
	may_overwrite BOOLEAN DEFAULT 0 NOT NULL, 
	may_write_until DATETIME, 
	began_at DATETIME, 
	failure VARCHAR(32), 
	copied_at DATETIME, 
	block INTEGER, 
	job INTEGER, 
	due_at DATETIME NOT NULL, 
	claim VARCHAR(32), 
	claimed_by VARCHAR(128), 
	created_at DATETIME NOT NULL, 
	moved_at DATETIME NOT NULL, 
	CONSTRAINT uq_stageout_transfers_place UNIQUE (place), 
	CONSTRAINT fk_stageout_transfers_request_stageout_requests FOREIGN KEY(request) REFERENCES stageout_requests (id), 
	CONSTRAINT fk_stageout_transfers_queue_stageout_queues FOREIGN KEY(queue) REFERENCES stageout_queues (id), 
	CONSTRAINT fk_stageout_transfers_job_stageout_jobs FOREIGN KEY(job) REFERENCES stageout_jobs (id)
);
INSERT INTO "stageout_transfers" VALUES(1,1,1,'df4f2c870963e347c910fb6c30ffbadf991f4121611168fed533a9aff2aef28e','/store/temp/user/ann/out_0.root','/store/user/ann/out_0.root',10,NULL,NULL,NULL,'new','requested',0,0,NULL,NULL,NULL,NULL,NULL,NULL,'2026-11-27 13:20:39.850600',NULL,NULL,'2026-11-27 13:20:39.850600','2026-11-27 13:20:39.850600');
INSERT INTO "stageout_transfers" VALUES(2,1,1,'15f92b1127f75cb3915203a353ab985742b6138b1329f09ef78fa516b436374b','/store/temp/user/ann/out_1.root','/store/user/ann/out_1.root',10,NULL,NULL,NULL,'new','requested',0,0,NULL,NULL,NULL,NULL,NULL,NULL,'2026-11-27 13:20:39.850600',NULL,NULL,'2026-11-27 13:20:39.850600','2026-11-27 13:20:39.850600');
CREATE TABLE stageout_workflows (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	closed_at DATETIME, 
	killed_at DATETIME, 
	CONSTRAINT uq_stageout_workflows_digest UNIQUE (digest)
);
INSERT INTO "stageout_workflows" VALUES(1,'digest-1','owner-1','name-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000');
INSERT INTO "stageout_workflows" VALUES(2,'digest-2','owner-2','name-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000');
CREATE TABLE store_traits (
	store VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	url VARCHAR(2048) NOT NULL, 
	put_if_absent BOOLEAN NOT NULL, 
	replace_if_unchanged BOOLEAN NOT NULL, 
	bulk_delete BOOLEAN NOT NULL, 
	anonymous_read BOOLEAN, 
	etag_quotes BOOLEAN NOT NULL, 
	probed_at DATETIME NOT NULL, 
	CONSTRAINT pk_store_traits PRIMARY KEY (store)
);
INSERT INTO "store_traits" VALUES('store-1','name-1','url-1',1,1,1,1,1,'2026-11-21 00:00:00.000000');
INSERT INTO "store_traits" VALUES('store-2','name-2','url-2',1,1,1,1,1,'2026-11-22 00:00:00.000000');
CREATE TABLE summaries (
	slot VARCHAR(128) NOT NULL, 
	build_date DATE NOT NULL, 
	file VARCHAR(1024) NOT NULL, 
	headline TEXT NOT NULL, 
	made_at DATETIME NOT NULL, 
	told_at DATETIME, 
	fault TEXT, 
	CONSTRAINT pk_summaries PRIMARY KEY (slot, build_date)
);
INSERT INTO "summaries" VALUES('slot-1','2026-11-21','file-1','headline-1','2026-11-21 00:00:00.000000','2026-11-21 00:00:00.000000','fault-1');
INSERT INTO "summaries" VALUES('slot-2','2026-11-22','file-2','headline-2','2026-11-22 00:00:00.000000','2026-11-22 00:00:00.000000','fault-2');
CREATE TABLE undone (
	id INTEGER NOT NULL, 
	artifact INTEGER NOT NULL, 
	artifact_sha256 VARCHAR(64) NOT NULL, 
	repository VARCHAR(128) NOT NULL, 
	destination VARCHAR(1024) NOT NULL, 
	nested_hash VARCHAR(64) NOT NULL, 
	predecessor VARCHAR(128), 
	reason TEXT NOT NULL, 
	run_id VARCHAR(512) NOT NULL, 
	revision BIGINT, 
	undone_at DATETIME NOT NULL, 
	lifted_at DATETIME, 
	CONSTRAINT pk_undone PRIMARY KEY (id), 
	CONSTRAINT fk_undone_artifact_artifacts FOREIGN KEY(artifact) REFERENCES artifacts (id) ON DELETE CASCADE
);
INSERT INTO "undone" VALUES(1,3,'efd8b28b8a3966fc9a05312d20854654dc1fe861f3d69f0213bb096b8d1f1a8f','nights.example.org','/nightlies/main/b20261102/Gaudi/x86_64','4df0d4eab51c97575cb92c65a6fb3b8fa60f9cd1',NULL,'it crashes','test/undo',8,'2026-11-27 13:20:39.559809',NULL);
CREATE INDEX ix_benchmark_baselines_target_digest ON benchmark_baselines (target, digest);
CREATE INDEX ix_benchmark_campaigns_target_preset_began_at ON benchmark_campaigns (target, preset, began_at);
CREATE INDEX ix_builds_slot_build_date ON builds (slot, build_date);
CREATE INDEX ix_changesets_place_source_sha256 ON changesets (place, source_sha256);
CREATE INDEX ix_interventions_repository ON interventions (repository);
CREATE INDEX ix_links_place ON links (place);
CREATE INDEX ix_links_slot_build_date ON links (slot, build_date);
CREATE INDEX ix_provenance_repository_revision ON provenance (repository, revision);
CREATE INDEX ix_provenance_place ON provenance (place);
CREATE INDEX ix_quality_slot_build_id ON quality (slot, build_id);
CREATE INDEX ix_stageout_analytics_day ON stageout_analytics (day);
CREATE INDEX ix_stageout_analytics_owner_workflow ON stageout_analytics (owner, workflow);
CREATE INDEX ix_stageout_archive_source_name ON stageout_archive (source_name);
CREATE INDEX ix_stageout_archive_request ON stageout_archive (request);
CREATE INDEX ix_stageout_archive_moved_at ON stageout_archive (moved_at);
CREATE INDEX ix_stageout_archive_workflow ON stageout_archive (workflow);
CREATE INDEX ix_stageout_archive_owner ON stageout_archive (owner);
CREATE INDEX ix_stageout_blocks_state_due_at ON stageout_blocks (state, due_at);
CREATE INDEX ix_stageout_blocks_digest_state ON stageout_blocks (digest, state);
CREATE INDEX ix_stageout_blocks_owner_workflow ON stageout_blocks (owner, workflow);
CREATE INDEX ix_stageout_catalogue_dataset ON stageout_catalogue (dataset);
CREATE INDEX ix_stageout_catalogue_block ON stageout_catalogue (block);
CREATE INDEX ix_stageout_findings_found_at ON stageout_findings (found_at);
CREATE INDEX ix_stageout_moves_job ON stageout_moves (job);
CREATE INDEX ix_stageout_moves_transfer ON stageout_moves (transfer);
CREATE INDEX ix_stageout_queues_owner ON stageout_queues (owner);
CREATE INDEX ix_stageout_requests_created_at ON stageout_requests (created_at);
CREATE INDEX ix_stageout_requests_workflow_owner ON stageout_requests (workflow, owner);
CREATE INDEX ix_stageout_workflows_closed_at ON stageout_workflows (closed_at);
CREATE INDEX ix_bound_digest ON bound (digest);
CREATE INDEX ix_stageout_jobs_state_due_at ON stageout_jobs (state, due_at);
CREATE INDEX ix_publications_artifact ON publications (artifact);
CREATE INDEX ix_publications_place_artifact_sha256 ON publications (place, artifact_sha256);
CREATE INDEX ix_publications_repository_state ON publications (repository, state);
CREATE INDEX ix_stageout_transfers_state_queue_due_at ON stageout_transfers (state, queue, due_at);
CREATE INDEX ix_stageout_transfers_block ON stageout_transfers (block);
CREATE INDEX ix_stageout_transfers_request ON stageout_transfers (request);
CREATE INDEX ix_stageout_transfers_job ON stageout_transfers (job);
CREATE INDEX ix_stageout_transfers_state_due_at ON stageout_transfers (state, due_at);
CREATE INDEX ix_stageout_transfers_source_name ON stageout_transfers (source_name);
CREATE INDEX ix_undone_artifact ON undone (artifact);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('stageout_requests',1);
INSERT INTO "sqlite_sequence" VALUES('stageout_queues',1);
INSERT INTO "sqlite_sequence" VALUES('stageout_transfers',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_analytics',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_blocks',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_catalogue',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_findings',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_moves',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_workflows',2);
INSERT INTO "sqlite_sequence" VALUES('stageout_jobs',2);
COMMIT;
