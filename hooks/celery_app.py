"""The value of `celery_config_options`: Airflow's own settings, and a worker that preloads before it forks."""

from __future__ import annotations

from airflow.providers.celery.executors.default_celery import DEFAULT_CELERY_CONFIG
from celery.signals import import_modules

from hooks.preload import preload

CONFIG = DEFAULT_CELERY_CONFIG


def _preload(**_: object) -> None:
    preload()


import_modules.connect(_preload)
