#!/bin/sh
# dopsd-worker: update the workspace, deploy its flows, and run them one at a time.
# When asked to end, first end the run in progress and wait until training has saved: the container ends with this script.
set -eu
mkdir -p "$DOPSD_WORKSPACE/work"
cd "$DOPSD_WORKSPACE"
exec 9>work/worker.lock # taken before the checkout could change under another worker's run
flock --nonblock 9 || { echo "dopsd-worker: another worker uses this workspace; choose one with COMPOSE_PROFILES" >&2; exit 2; }
dopsd-workspace
prefect --no-prompt work-pool create dopsd --type process --overwrite
prefect --no-prompt deploy --all
python infra/local/services.py make-automation # it flags runs without updates
python infra/local/services.py resume # one run at a time; the stop of the last worker paused the pool
python infra/local/services.py report-lost-runs # those of a killed container
python infra/local/services.py retry-stopped # those that the stop of the last worker ended

# A shell starts background commands with SIGINT ignored, and Prefect's worker answers SIGTERM by sending itself SIGINT.
env --default-signal=INT prefect worker start --pool dopsd --type process --with-healthcheck 9>&- &
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
