"""Secrets: made once, readable by their owner only, never shown."""

from dataclasses import asdict, fields
from pathlib import Path

from cryptography.fernet import Fernet
from hypothesis import given, strategies as st

from lab.errors import LabError
from lab.secrets import JWT_BYTES, LabSecrets, load_or_create
from tests.fakes.refused import refused

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@given(st.builds(LabSecrets, **{field.name: WORDS for field in fields(LabSecrets)}))
def test_secrets_read_back_what_was_written(secrets: LabSecrets) -> None:
    assert LabSecrets.parse(secrets.format(), name="x") == secrets


def test_the_file_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secrets.env"
    made = load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert load_or_create(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["secrets.env"]


def test_a_missing_or_empty_secret_is_an_error_and_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    whole = LabSecrets.generate().format()
    lacking = "".join(line for line in whole.splitlines(keepends=True) if "FERNET" not in line)
    for text in (lacking, whole.replace("JWT_SECRET=", "JWT_SECRET=\n#")):
        path.write_text(text)
        with refused(LabError):
            load_or_create(path)
        assert path.read_text() == text


def test_the_secrets_are_as_strong_as_their_users_want_and_differ_each_time() -> None:
    one, other = LabSecrets.generate(), LabSecrets.generate()
    assert len(one.jwt_secret.encode()) >= JWT_BYTES
    Fernet(one.fernet_key)
    assert not set(asdict(one).values()) & set(asdict(other).values())
    assert not [value for value in asdict(one).values() if value in repr(one)]
