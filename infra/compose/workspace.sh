#!/bin/sh
# dopsd-workspace: the worker's git checkout at DOPSD_REVISION, and its DVC remote. Results, caches and checkpoints that
# lie in it stay: they are not git's. params.yaml and dvc.lock go back to the revision's; every run writes its own settings,
# and what had been run for them comes from DVC's cache.
set -eu
: "${DOPSD_REPOSITORY:?a git URL or path}" "${DOPSD_WORKSPACE:?a folder that outlives this container}"
revision=${DOPSD_REVISION:-main}

mkdir -p "$DOPSD_WORKSPACE/work"
cd "$DOPSD_WORKSPACE"
if [ ! -d .git ]; then
    git init --quiet # clone wants an empty folder, and work/ has the locks already
    git remote add origin "$DOPSD_REPOSITORY"
fi
echo "waiting for commands of an earlier run that still save here, if there are any"
flock work/guard.lock true # flows/guard.py holds it
git remote set-url origin "$DOPSD_REPOSITORY"
git fetch --quiet --tags --force origin
git checkout --quiet --force --detach "$(git rev-parse --verify --quiet "origin/$revision" || git rev-parse --verify "$revision^{commit}")"

if [ -n "${DOPSD_DVC_REMOTE:-}" ]; then
    dvc remote add --quiet --local --force --default store "$DOPSD_DVC_REMOTE"
    if [ -n "${AWS_ENDPOINT_URL:-}" ]; then
        dvc remote modify --quiet --local store endpointurl "$AWS_ENDPOINT_URL"
    fi
fi
