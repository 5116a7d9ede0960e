"""Prints which cores this process may use: "cores HOST COUNT QUOTA CORE...". scripts/diagnose.py runs it on every rank.

usage: cores.py [CGROUP [ROOT]]   (/proc/self/cgroup and /sys/fs/cgroup; others in tests)

COUNT: those that the host has. CORE...: those to which the process is bound. QUOTA: a container's share of the time of
all cores, in cores ("docker run --cpus 1.5" is 1.5); "inf" if there is no limit. No list of cores shows it.
"""
import os
import sys
from pathlib import Path


def numbers_in(*files):
    return [int(word) if word.isdigit() else -1 for file in files for word in file.read_text().split()]  # "max": -1


def quota(groups, root):
    """The smallest of the limits of all groups that hold this process. Inside a container the paths of its groups may
    not exist, and then the container's own group is the root."""
    least = float("inf")
    for line in Path(groups).read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = Path(root) / ("cpu" if controllers else "")
        group = base / path.strip("/")
        for directory in [group, *group.parents]:
            try:
                names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"] if controllers else ["cpu.max"]
                limit, period = numbers_in(*(directory / name for name in names))
            except (OSError, ValueError):
                limit, period = -1, 1
            least = min(least, limit / period) if limit > 0 else least
            if directory == base:
                break
    return least


groups, root = [*sys.argv[1:], *["/proc/self/cgroup", "/sys/fs/cgroup"][len(sys.argv) - 1:]]
print("cores", os.uname().nodename, os.cpu_count(), quota(groups, root), *os.sched_getaffinity(0))
