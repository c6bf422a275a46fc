#!/bin/sh
# `minio server FOLDER`: an S3 server on port 9000. It holds everything in memory, and checks no passwords.
set -eu
[ "$1" = server ]
exec moto_server --host 0.0.0.0 --port 9000
