#!/bin/sh
# dopsd-workspace: check out DOPSD_REVISION in the worker's workspace, and set its DVC remote.
# Results, caches and checkpoints stay, since git does not track them. params.yaml and dvc.lock return to those of the
# revision: every run writes its own settings, and earlier results come from DVC's cache.
set -eu
: "${DOPSD_REPOSITORY:?a git URL or path}" "${DOPSD_WORKSPACE:?a folder that outlives this container}"
revision=${DOPSD_REVISION:-main}

mkdir -p "$DOPSD_WORKSPACE/work"
cd "$DOPSD_WORKSPACE"
echo "waiting for commands of an earlier run that still save here"
trap 'kill "$!" || true; exit 143' TERM # as a container's first process, a shell would not hear of it
flock work/guard.lock true & # the commands of flows hold it
wait "$!"
trap - TERM
[ ! -d .git ] || find .git -name '*.lock' -delete # of a checkout that was killed
git init --quiet # not clone, which needs an empty folder: work/ already holds the locks
git config remote.origin.url "$DOPSD_REPOSITORY"
git config remote.origin.fetch "+refs/heads/*:refs/remotes/origin/*"
git fetch --quiet --tags --force origin
git checkout --quiet --force --detach "$(git rev-parse --verify --quiet "origin/$revision" || git rev-parse --verify "$revision^{commit}")"

if [ -n "${DOPSD_DVC_REMOTE:-}" ]; then
    dvc remote add --quiet --local --force --default store "$DOPSD_DVC_REMOTE"
    if [ -n "${AWS_ENDPOINT_URL:-}" ]; then
        dvc remote modify --quiet --local store endpointurl "$AWS_ENDPOINT_URL"
    fi
fi
