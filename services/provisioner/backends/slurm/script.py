"""What is submitted for an attempt: the arguments of sbatch and its batch script. Neither has a secret."""

import json
import shlex
from pathlib import Path

from services.provisioner.backends.protocol import AttemptSpec
from services.provisioner.backends.slurm.commands import LOOK
from services.provisioner.backends.slurm.jobs import comment_of
from services.provisioner.settings import SlurmPool

MAX_SIGNAL_SECONDS = 65535

SCRIPT = """\
#!/bin/sh
# A job of retune's provisioner: one runner on each node. `started` fences: whatever slurmctld remembers, and whatever
# else has this name, the runners of an attempt start once.
cd {root} || exit 1
[ ! -e stopped ] || exit 0
(set -C; echo "$SLURM_JOB_ID" > started) 2> /dev/null || {{ touch again; exit 0; }}
# Slurm's notice, of a preemption or of the end of the time limit, comes to this shell alone.
trap 'touch asked; scancel --quiet --signal={look} "$SLURM_JOB_ID"' USR1
trap : TERM
srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --distribution=block --kill-on-bad-exit=0 --wait=0 \\
    --unbuffered {srun_flags} \\
    sh -c 'trap "" TERM; exec "$@" "$SLURM_PROCID" "$SLURMD_NODENAME"' sh {keeper} &
while kill -0 $! 2> /dev/null; do wait $!; done
exit 0
"""


def sbatch_arguments(spec: AttemptSpec, pool: SlurmPool, root: Path) -> list[str]:
    named = {
        "account": pool.account,
        "qos": pool.qos,
        "constraint": pool.constraint,
        "exclude": ",".join(spec.excluded),
    }
    notice_seconds = min(max(1, round(spec.grace_seconds)), MAX_SIGNAL_SECONDS)
    return [
        "--parsable",
        f"--job-name={spec.name}",
        f"--comment={comment_of(str(pool.folder), spec.digest)}",
        "--dependency=singleton",
        "--no-requeue",
        f"--partition={pool.partition}",
        f"--nodes={spec.nodes}",
        "--ntasks-per-node=1",
        f"--signal=B:USR1@{notice_seconds}",
        "--open-mode=append",
        f"--output={root}/job.out",
        f"--chdir={root}",
        *(f"--{name}={value}" for name, value in named.items() if value),
        *(flag.replace("{devices}", str(spec.devices_per_node)) for flag in pool.flags),
    ]


def batch_script(spec: AttemptSpec, root: Path, keeper: list[str], srun_flags: tuple[str, ...]) -> str:
    """Return the script. `keeper`: the command that keeps a runner; its index and its machine's name are added."""
    return SCRIPT.format(
        root=shlex.quote(str(root)),
        nodes=spec.nodes,
        srun_flags=shlex.join(srun_flags),
        keeper=shlex.join(keeper),
        look=LOOK,
    )


def keeper_options(root: Path, pool: SlurmPool, env_file: Path) -> str:
    """Return what the keeper of a runner must know beside the attempt's specification."""
    work_dir = str(pool.work_dir) if pool.work_dir else None
    options = {"root": str(root), "env_file": str(pool.env_file or env_file), "work_dir": work_dir}
    return json.dumps(options, sort_keys=True)
