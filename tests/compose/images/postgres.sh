#!/bin/sh
# As the entrypoint of the official image: make user, database and what /docker-entrypoint-initdb.d holds in a new volume.
set -eu
programs=$(echo /usr/lib/postgresql/*/bin)
PATH=$programs:$PATH
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }

install --directory --owner=postgres --group=postgres --mode=700 "$PGDATA"
cd "$PGDATA"
if [ ! -s PG_VERSION ]; then
    (umask 077 && echo "$POSTGRES_PASSWORD" >/run/postgresql/password && chown postgres /run/postgresql/password)
    as_postgres initdb --pgdata . --username "$POSTGRES_USER" --pwfile /run/postgresql/password --auth-local trust --auth-host scram-sha-256
    rm /run/postgresql/password
    echo "host all all all scram-sha-256" >>pg_hba.conf
    as_postgres pg_ctl --pgdata . --wait -o "-c listen_addresses=" start
    createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*.sql; do
        psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 --file "$file"
    done
    as_postgres pg_ctl --pgdata . --mode fast --wait stop
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -D . -c 'listen_addresses=*'
