# shellcheck shell=bash
# What the batch scripts share: the environment, and how a job ends. They source it in the project's root.

# shellcheck source=/dev/null
source "${DOPSD_VENV:-.venv}/bin/activate"
export PYTHONUNBUFFERED=1 DO_NOT_TRACK=1 DVC_NO_ANALYTICS=1 MLFLOW_DISABLE_TELEMETRY=true
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" # compute nodes rarely reach the hub: download before you submit
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun does not take it over from sbatch

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
    "$ask_to_save" || true # it may just have ended by itself
}

trap 'stop USR1' USR1 # --signal: the time is almost up
trap 'stop TERM' TERM # scancel, requeue or preemption: Slurm sends it to every process of the job, not only to this one

terminate() { kill -TERM "$work"; } # `dopsd repro` lets DVC's stage save, and ends after it

# To the tasks, one torchrun a node, and not through srun: at a SIGTERM that kills its tasks at once.
terminate_steps() { scancel --signal=TERM "$SLURM_JOB_ID"; }

# attend HOW COMMAND...: run it; when the job must stop, ask it by HOW to save, wait until it has, and leave.
attend() {
    ask_to_save=$1
    shift
    leave_if_stopped
    "$@" </dev/null &
    work=$!
    ask # for a signal that came before there was something to ask
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
        TERM) exit 143 ;; # no requeue: scancel is meant, and a preempted job is requeued by Slurm itself
    esac
}

# All that a run can leave for the next one: checkpoints, evaluated problems, finished stages.
progress() {
    {
        find work -maxdepth 2 -path 'work/train-*/step-*' 2>/dev/null | sort
        find work/eval work/record work/pretrain-* -type f -printf '%p %s %T@\n' 2>/dev/null | sort
        cat dvc.lock 2>/dev/null || true
    } | cksum
}

requeue() { # a job whose time is too short for a single checkpoint would otherwise come back for ever
    local file="work/requeued-$SLURM_JOB_ID" now
    now=$(progress)
    if [[ -f $file && $(<"$file") == "$now" ]]; then
        rm "$file"
        echo "dopsd: job $SLURM_JOB_ID: two runs in a row ended without a new checkpoint or a finished stage; not requeued." \
            "Ask for more time (sbatch --time) or make updates smaller (train.prompts_per_collect)" >&2
        exit 1
    fi
    mkdir -p work
    echo "$now" >"$file"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}

check_stage() { # NAME: refuse a stage that params.yaml's matrix does not have, before anything runs
    known=$(python -m dvc stage list --name-only)
    grep -qxF -e "$1" <<<"$known" && return
    echo "$1: no such stage; params.yaml's matrix has $(grep '^train@' <<<"$known" | tr '\n' ' ')" >&2
    exit 2
}

prepare() { # TASK: what training reads; there is a stage `pretrain` only for tasks with an embedded base
    local before
    mapfile -t before < <(grep -x -e "prepare@$1" -e "pretrain@$1" <<<"$known")
    attend terminate python -m dopsd repro "${before[@]}"
}
