#!/bin/sh
# Run once by the image of PostgreSQL, as its superuser: databases of Airflow and of Celery's results, each with an owner that may do no more.
set -eu
for name in airflow celery; do
    case $name in airflow) password=$AIRFLOW_PASSWORD ;; celery) password=$CELERY_PASSWORD ;; esac
    psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --set=name="$name" --set=password="$password" --username=postgres --dbname=postgres <<'SQL'
CREATE ROLE :"name" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT, TEMPORARY ON DATABASE :"name" FROM PUBLIC;
SQL
done
