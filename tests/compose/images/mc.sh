#!/bin/sh
# `mc ready local`: whether the S3 server answers.
set -eu
[ "$*" = "ready local" ]
exec dopsd-healthy http://127.0.0.1:9000/moto-api/
