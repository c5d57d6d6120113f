"""Become another program that the kernel kills as soon as its parent is gone.

    python -I -S leash.py PARENT_PID PROGRAM [ARGUMENT ...]

A wrapper rather than a `preexec_fn`, which is not safe in a process with threads; gRPC has some.
The kernel watches the *thread* that spawned the program: start programs from a thread that lasts
as long as they shall, in practice the main one. The signal is not inherited: a program's own
children need a leash of their own.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent_pid):
        sys.exit(1)  # the parent died before it could be watched
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell is the point
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
