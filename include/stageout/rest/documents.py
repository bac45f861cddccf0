"""The JSON documents of the REST API. What a client sends may have no other fields, and no values of other types."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from include.stageout.files import MAX_FILES, FileKind, FileToTransfer, StageoutRequest
from include.stageout.rest.questions import BODY_INVALID
from include.validation import first_fault

T = TypeVar("T", bound="SentDocument")


class SentDocument(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def read(cls: type[T], body: bytes) -> T:
        """From a body of bounded size. Raises StageoutError, BODY_INVALID, with the first thing that is wrong."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            fault = first_fault(error)
            raise BODY_INVALID(fault.where or "the body", fault.what) from None


class FileDocument(SentDocument):
    """A file, from the site where a job wrote it to the site where it stays."""

    source: str = Field(description="Name of the site that has it", examples=["T2_IT_Pisa"])
    source_name: str = Field(description="Its logical name there; a URL is refused")
    destination: str = Field(description="Name of the site that it goes to")
    destination_name: str = Field(description="Its logical name there, below the name space of the user")
    kind: FileKind = FileKind.OUTPUT
    activity: str = "default"
    size: int | None = Field(None, description="Bytes")
    checksum: str | None = Field(None, description="Adler-32 or CRC-32C, in any case", examples=["adler32:0a1b2c3d"])
    dataset: str | None = Field(None, description="Where it is registered; without one it is not registered")
    user_job: str | None = Field(None, description="The job of the workflow that wrote it")


class RequestDocument(SentDocument):
    """Files that are recorded together, all or none."""

    key: str | None = Field(None, description="The idempotency key, if the header `Idempotency-Key` does not have it")
    workflow: str
    files: Annotated[tuple[FileDocument, ...], FailFast()] = Field(description=f"At most {MAX_FILES}")

    def to_request(self, owner: str, header: str | None) -> StageoutRequest:
        """As the ledger takes it. Raises StageoutError, BODY_INVALID, without a key or with two."""
        keys = {key for key in (self.key, header) if key is not None}
        if len(keys) != 1:
            what = "the header and the body have different keys" if keys else "it has no idempotency key"
            raise BODY_INVALID("the request", what)
        files = tuple(FileToTransfer(**dict(file)) for file in self.files)
        return StageoutRequest(owner, keys.pop(), self.workflow, files)


class ReceiptDocument(BaseModel):
    """A recorded request. `repeated`: an earlier call has recorded it, and this one changed nothing."""

    request: int
    files: int
    repeated: bool


class RefusalDocument(BaseModel):
    """Why a call was refused; a program decides by the code."""

    code: str
    message: str
    hint: str
