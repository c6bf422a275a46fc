#!/bin/sh
# dopsd-worker: brings the workspace up to date, deploys its flows, and runs them in it, one at a time.
set -eu
dopsd-workspace
cd "$DOPSD_WORKSPACE"
prefect --no-prompt work-pool create dopsd --type process --overwrite
prefect --no-prompt work-pool set-concurrency-limit dopsd 1
prefect --no-prompt deploy --all
exec prefect worker start --pool dopsd --type process
