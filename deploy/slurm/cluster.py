"""A Slurm of this machine for tests and for trying: munged, slurmctld and several slurmds on 127.0.0.1.

    <folder>/slurm.conf cgroup.conf   its configuration; clients find it by SLURM_CONF
             munge.key munge.sock     its own credentials
             state/ spool/ *.log      what the daemons keep and say

Two partitions share all nodes: `spot`, whose jobs the other preempts with a grace of 10 s, and `ondemand`.
"""

import getpass
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from deploy.daemons import Daemons, Running
from deploy.local.errors import StackError
from deploy.slurm.packages import SLURM
from shared.ports import free_port
from shared.processes.environment import inherited

NODES = 4
LOOPBACK = "127.0.0.1"
MARK = "RETUNE_SLURM"

CONF = """\
ClusterName=retune
SlurmctldHost={host}({loopback})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout={lost_after}
KillWait=2
MinJobAge=300
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=DEFAULT Nodes={names} OverSubscribe=EXCLUSIVE
PartitionName=spot Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=ondemand PriorityTier=10 PreemptMode=OFF
"""


class SlurmCluster(Running):
    """`with SlurmCluster(folder) as cluster`: its daemons run until the block ends."""

    def __init__(
        self, folder: Path, *, nodes: int = NODES, grace_seconds: int = 10, lost_after_seconds: int = 5
    ) -> None:
        self._folder = folder.absolute()
        self._programs = SLURM.paths()
        self._daemons = Daemons(self._folder, mark=MARK)
        self._ports = {name: free_port(LOOPBACK) for name in ("slurmctld", *_names(nodes))}
        self._grace_seconds = grace_seconds
        self._lost_after_seconds = lost_after_seconds
        self.nodes = _names(nodes)

    @property
    def conf(self) -> Path:
        return self._folder / "slurm.conf"

    @property
    def environment(self) -> Mapping[str, str]:
        """What clients of this cluster need."""
        return inherited() | {"SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        self._write()
        munge = (f"--{name}={self._folder}/munge.{end}" for name, end in _MUNGE_FILES.items())
        self._start("munged", "--foreground", "--force", *munge)
        self._daemons.until((self._folder / "munge.sock").exists, "munged", self._folder / "munge.log")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self._daemons.until(self._are_idle, "slurmd", self._folder / "slurmctld.log")

    def start_controller(self) -> None:
        self._start("slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, node: str) -> None:
        self._start(node, "-D", "-N", node, "-f", str(self.conf), program="slurmd")

    def kill(self, name: str) -> None:
        """End `slurmctld`, or the slurmd of a node, as a power cut would; what a node computes runs on."""
        self._daemons.kill(name)

    def run(self, program: str, *arguments: str) -> str:
        """Run one of Slurm's commands on this cluster; return what it prints."""
        done = subprocess.run(
            [program, *arguments], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise StackError(f"{program} {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def stop(self) -> None:
        self._daemons.kill_all()

    def _write(self) -> None:
        for folder in (self._folder, *(self._folder / name for name in ("state", "spool"))):
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        (self._folder / "munge.key").write_bytes(os.urandom(128))
        (self._folder / "munge.key").chmod(0o600)
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        host = socket.gethostname()
        nodes = (
            f"NodeName={name} NodeHostname={host} NodeAddr={LOOPBACK} Port={self._ports[name]} CPUs=2 RealMemory=4000"
            for name in self.nodes
        )
        text = CONF.format(
            host=host,
            loopback=LOOPBACK,
            port=self._ports["slurmctld"],
            user=getpass.getuser(),
            folder=self._folder,
            nodes="\n".join(nodes),
            names=",".join(self.nodes),
            grace=self._grace_seconds,
            lost_after=self._lost_after_seconds,
        )
        self.conf.write_text(text)

    def _start(self, name: str, *arguments: str, program: str = "") -> None:
        command = [str(self._programs[program or name]), *arguments]
        self._daemons.start(name, command, environment=self.environment)

    def _are_idle(self) -> bool:
        command = ["sinfo", "--noheader", "--Node", "--partition=spot", "--states=idle", "--format=%N"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return sorted(done.stdout.split()) == sorted(self.nodes)


_MUNGE_FILES = {
    "key-file": "key",
    "socket": "sock",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, count + 1))
