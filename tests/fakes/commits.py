"""A commit of one change, without a gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from include.cvmfs.commit.commit import Change, Head, NewTag, SwitchStep, commit_group
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import ManifestSigner
from include.cvmfs.revision.repository import ManifestVerifier
from include.storage.store import Store


def _ignore(*_: object) -> None: ...


def commit_change(
    store: Store,
    *,
    fqrn: str,
    signer: ManifestSigner,
    lease_path: str,
    old_root: ObjectHash,
    new_root: ObjectHash,
    now: int,
    tag: NewTag | None = None,
    voucher: ManifestVerifier | None = None,
    catalogs: CatalogCache | None = None,
    before_switch: Callable[[], None] = _ignore,
    on_step: Callable[[SwitchStep], None] = _ignore,
) -> Head:
    """A group of one: merge the change ``old_root`` -> ``new_root`` inside ``lease_path`` and switch to the result.

    Raises what stopped it: MergeError, BaseChanged, ManifestConflict, ObjectMissing, SignatureError, StoreError, or
    what ``before_switch`` raised.
    """

    def fence(_: Sequence[int]) -> Mapping[int, Exception]:
        try:
            before_switch()
        except Exception as error:  # noqa: BLE001 - raised again below
            return {0: error}
        return {}

    [outcome] = commit_group(
        store, [Change(lease_path, old_root, new_root, tag)],
        fqrn=fqrn, signer=signer, now=now, voucher=voucher, catalogs=catalogs, fence=fence, on_step=on_step,
    )  # fmt: skip
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
