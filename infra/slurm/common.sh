# shellcheck shell=bash
# Common part of the batch scripts: the environment, and how a job ends. Source it in the project's root.

# shellcheck source=/dev/null
source "${DOPSD_VENV:-.venv}/bin/activate"
export PYTHONUNBUFFERED=1 DO_NOT_TRACK=1 DVC_NO_ANALYTICS=1 MLFLOW_DISABLE_TELEMETRY=true
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" # compute nodes rarely reach the hub: download before submitting
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun does not inherit it from sbatch

set -m # background commands get a process group of their own
work="" asked="" stopped_by="" ask_to_save=""

stop() {
    [[ -z $stopped_by ]] || return 0
    stopped_by=$1
    echo "dopsd: SIG$stopped_by; saving, then the job $([[ $stopped_by == USR1 ]] && echo "is requeued" || echo ends)" >&2
    ask
}

ask() { # once for each command
    [[ -n $stopped_by && -n $work && $asked != "$work" ]] || return 0
    asked=$work
    "$ask_to_save" || true # the command may have just ended by itself
}

trap 'stop USR1' USR1 # --signal: the time limit is near
trap 'stop TERM' TERM # scancel, requeue or preemption: Slurm signals every process of the job, not only this one

terminate() { kill -TERM "$work"; } # `dopsd repro` waits until DVC's stage has saved, then ends

# Signals the tasks, one torchrun per node. srun gets no SIGTERM, because it would kill its tasks at once.
terminate_steps() { scancel --signal=TERM "$SLURM_JOB_ID"; }

# attend HOW COMMAND...: run the command; when the job must stop, ask the command with HOW to save, wait for it, and leave.
attend() {
    ask_to_save=$1
    shift
    leave_if_stopped
    "$@" </dev/null &
    work=$!
    ask # in case a signal came before the command started
    while kill -0 "$work" 2>/dev/null; do
        wait "$work" || true # a signal ends `wait`, not the command
    done
    local status=0
    wait "$work" || status=$?
    work=""
    leave_if_stopped
    return "$status"
}

leave_if_stopped() {
    case $stopped_by in
        USR1) requeue ;;
        TERM) exit 143 ;; # no requeue: scancel ends the job for good, and Slurm itself requeues preempted jobs
    esac
}

# Checksum of all progress that a later run can use: checkpoints, evaluated problems, finished stages.
progress() {
    {
        find work -maxdepth 2 -path 'work/train-*/step-*' 2>/dev/null | sort
        find work/eval work/record work/pretrain-* -type f -printf '%p %s %T@\n' 2>/dev/null | sort
        cat dvc.lock 2>/dev/null || true
    } | cksum
}

requeue() { # twice without progress is an error: a job too short for one checkpoint would be requeued for ever
    local file="work/requeued-$SLURM_JOB_ID" now
    now=$(progress)
    if [[ -f $file && $(<"$file") == "$now" ]]; then
        rm "$file"
        echo "dopsd: job $SLURM_JOB_ID: two runs in a row ended without a new checkpoint or a finished stage; not requeued." \
            "Give the job more time (sbatch --time) or make updates smaller (train.prompts_per_collect)" >&2
        exit 1
    fi
    mkdir -p work
    echo "$now" >"$file"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}

check_stage() { # NAME: before anything runs, refuse a stage that is not in params.yaml's matrix
    known=$(python -m dvc stage list --name-only)
    grep -qxF -e "$1" <<<"$known" && return
    echo "dopsd: $1: no such stage; params.yaml's matrix has $(grep '^train@' <<<"$known" | tr '\n' ' ')" >&2
    exit 2
}

prepare() { # TASK: make the inputs of training; only tasks with an embedded base have a stage `pretrain`
    local before
    mapfile -t before < <(grep -x -e "prepare@$1" -e "pretrain@$1" <<<"$known")
    attend terminate python -m dopsd repro "${before[@]}"
}
