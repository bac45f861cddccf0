"""An embedded FTS for labs and tests: the part of FTS3's REST interface that clients of transfers use."""
