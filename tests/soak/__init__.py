"""Random programs against a simple model: ring 2 of the tests of failures.

A seed makes a program (`generate`): some 20 operations on 1 to 70 simulated processes, among them spawns, calls of every
kind, actors that call each other, kills, failures, stops, restarts with and without a policy, and a network that delays,
holds back, repeats and loses frames and whose connections break. `run` carries it out on an InProcessCluster in virtual
time, where every actor notes what it handles; `model` holds rules over these notes that must hold however the threads and
processes raced.

A test that fails names its seed and prints the program, cut down to the operations that matter, the promise it broke, and of
something that never ended where each message is (`message_log`):

    python -m tests.soak 1234                  the program of seed 1234, and what is wrong with it
    python -m tests.soak 1234 --times 100      until it fails: the program is the same each time, the races are not
    python -m tests.soak 1234 --shrink         cut down
    python -m tests.soak 1234 --faults         over real Unix sockets whose system calls fail now and then (`sockets`)
    python -m tests.soak 1234 --processes      in real processes, some of which are stopped for moments
    python -m tests.soak --seeds 10000         seeds 0 to 9999, on all cores (also: make soak SEEDS=10000)
    python -m tests.soak --seeds 10000 --load  beside two busy loops, with threads switched every 10 µs

To add an operation: a dataclass in `program`, a maker in `generate`, a case in `run`, and what it excuses in `model`. To add
a promise: a generator of its violations in `model.RULES`.
"""
