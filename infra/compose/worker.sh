#!/bin/sh
# dopsd-worker: brings the workspace up to date, deploys its flows, and runs them in it, one at a time. Asked to end, it first
# ends the run in progress and waits until training has saved: the container would end with this script.
set -eu
mkdir -p "$DOPSD_WORKSPACE/work"
cd "$DOPSD_WORKSPACE"
exec 9>work/worker.lock # before the checkout changes under the other one's run
flock --nonblock 9 || { echo "another worker has this workspace: choose one, by COMPOSE_PROFILES" >&2; exit 2; }
dopsd-workspace
prefect --no-prompt work-pool create dopsd --type process --overwrite
prefect --no-prompt work-pool set-concurrency-limit dopsd 1
prefect --no-prompt deploy --all
python infra/local/services.py resume # what stopped the last worker paused the pool
python infra/local/services.py report-lost-runs # of a container that was killed

# A shell starts background commands with SIGINT ignored, and Prefect's worker answers SIGTERM by sending itself SIGINT.
env --default-signal=INT prefect worker start --pool dopsd --type process 9>&- &
worker=$!
end() {
    trap '' TERM INT
    python infra/local/services.py stop-runs
    kill -TERM "$worker" 2>/dev/null || true
    wait "$worker" || true
    exit 143
}
trap end TERM INT
wait "$worker"
