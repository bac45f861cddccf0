"""The settings of a slot's quality gate: what judges its builds, and how far a night may differ (docs/quality.md)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from include.settings.block import Block
from include.settings.text_types import fault


class Suite(Enum):
    """What is judged together. Each is a field of `QualitySettings`."""

    INDEX = "index"
    PUBLISHED = "published"
    NIGHT = "night"
    GROWTH = "growth"


class QualityMode(Enum):
    """What follows from what a suite finds: the run stops, it is only reported, or the suite is left out."""

    BLOCK = "block"
    WARN = "warn"
    OFF = "off"


# YAML reads a bare `off` as false
Mode = Annotated[QualityMode, BeforeValidator(lambda value: "off" if value is False else value)]


class QualitySettings(Block):
    """What each suite may do, and how far a build may differ from the nights before it."""

    index: Mode = QualityMode.BLOCK
    """The build index, before anything is published: digests, sizes, artifacts that the build before had."""
    published: Mode = QualityMode.BLOCK
    """What the repository holds of the build: files, sizes, empty libraries, executables, links."""
    night: Mode = QualityMode.WARN
    """Files, bytes and working time, compared with the last seven nights."""
    growth: Mode = QualityMode.WARN
    """Bytes and objects that the night added to the repository, compared with the last seven nights."""
    band: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The share by which files and bytes may differ from their median over seven nights, and files be fewer."""
    factor: Annotated[float, Field(ge=1, le=1000)] = 3.0
    """How many times their median the working time, and what a night adds, may be."""
    keep_runs: Annotated[int, Field(ge=1, le=10_000)] = 30
    """Runs of the slot whose Data Docs are kept."""

    @model_validator(mode="after")
    def _something_is_judged(self) -> QualitySettings:
        if all(self.mode(suite) is QualityMode.OFF for suite in Suite):
            raise fault("a quality gate whose suites are all off", "Turn one on, or remove `quality:`.")
        return self

    def mode(self, suite: Suite) -> QualityMode:
        mode: QualityMode = getattr(self, suite.value)
        return mode
