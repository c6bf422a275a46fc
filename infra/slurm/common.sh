# shellcheck shell=bash
# What both batch scripts share: the environment, and how a job ends. They source it in the project's root.

# shellcheck source=/dev/null
source "${DOPSD_VENV:-.venv}/bin/activate"
export PYTHONUNBUFFERED=1 DO_NOT_TRACK=1 DVC_NO_ANALYTICS=1 MLFLOW_DISABLE_TELEMETRY=true
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" # compute nodes rarely reach the hub: download before you submit
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun does not take it over from sbatch

set -m # background commands get a process group of their own
# A command with SIGINT as it is by default: who started this job may have it ignored, and that is inherited.
interruptible='import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])'
work="" asked="" stopped_by="" ask_to_save=""

stop() {
    [[ -z $stopped_by ]] || return 0
    stopped_by=$1
    echo "dopsd: SIG$stopped_by; saving, then the job $([[ $stopped_by == USR1 ]] && echo "is requeued" || echo ends)" >&2
    ask
}

ask() { # once: a second signal would end training without a checkpoint
    [[ -n $stopped_by && -n $work && $asked != "$work" ]] || return 0
    asked=$work
    "$ask_to_save" || true # it may just have ended by itself
}

trap 'stop USR1' USR1 # --signal: the time is almost up
trap 'stop TERM' TERM # scancel or preemption

# Like Ctrl-C. DVC waits for its stage, which saves; SIGTERM would end DVC at once and the stage with the job.
interrupt_group() { kill -INT -- "-$work"; }

# To the tasks, one torchrun a node, and not through srun: at a SIGTERM that kills its tasks at once.
terminate_steps() { scancel --signal=TERM "$SLURM_JOB_ID"; }

# attend HOW COMMAND...: run it; when the job must stop, ask it by HOW to save, wait until it has, and leave.
attend() {
    ask_to_save=$1
    shift
    leave_if_stopped
    python -c "$interruptible" "$@" </dev/null &
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
        USR1)
            scontrol requeue "$SLURM_JOB_ID"
            exit 0
            ;;
        TERM) exit 143 ;; # no requeue: scancel is meant, and a preempted job is requeued by Slurm itself
    esac
}
