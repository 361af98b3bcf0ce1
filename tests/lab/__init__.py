"""Real schedulers on one machine: a four-node Slurm, and hosts with an sshd.

`make lab` installs what they need, `make test-lab` runs the tests of this folder. By hand,

    python -m tests.lab            # or: python -m tests.lab slurm, python -m tests.lab ssh

holds both up until Ctrl-C and prints the environment in which sbatch, squeue and ssh reach them.

A machine of a lab (machine.py) is a UTS namespace: it has a host name of its own, a loopback address of its own, and what
runs on it can be told by its namespace, whatever its session or parent. File system, process ids and network are those of
this machine. Labs can stand side by side (site.py): each has a number, and addresses and names that go with it.

A lab leaves nothing behind. Its keeper (keeper.py) is a process that waits for the end of its input, which comes when the
lab is closed and when the process with the lab dies of whatever.
"""
