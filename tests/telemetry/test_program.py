"""Telemetry of real programs: what they do is in the tables soon, and what befalls the observer befalls only that."""

from __future__ import annotations

import textwrap

import pytest

from monarch.telemetry.runs import read_run
from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = pytest.mark.procs

BEGINNING = """
    import logging, os, signal, threading, time
    import monarch.metrics, monarch.telemetry
    from monarch.actor import Actor, endpoint, get_meter, span, this_host

    class Worker(Actor):
        def __init__(self):
            self.level = get_meter().create_gauge("level", "%")

        @endpoint
        def work(self, count=1):
            with span("part"):
                self.level.set(0.5, {"rank": 0})
            logging.getLogger("my.program").warning("worked")
            monarch.metrics.log(step=count, loss=0.25)
            return count

        @endpoint
        def wait(self, path):
            while not os.path.exists(path):
                time.sleep(0.01)

        @endpoint
        def end(self):
            os.kill(os.getpid(), signal.SIGKILL)

    def value(telemetry, sql):
        (row,) = telemetry.query(sql, timeout=60)["rows"]
        return next(iter(row.values()))

    def until(telemetry, sql, wanted):
        \"\"\"Asks again as long as the answer is another; the test's own time limit ends it.\"\"\"
        while True:
            telemetry.flush(60)
            found = value(telemetry, sql)
            if found == wanted:
                return
            time.sleep(0.05)

    def main():
        telemetry = monarch.telemetry.start(snapshot_interval_secs=0, host_metrics_interval_secs=1.0)
"""
END = """
    if __name__ == "__main__":
        main()
        print("done")
"""


def run(scripts: Scripts, body: str) -> str:
    """Returns what a program wrote whose main goes on with `body`."""
    text = textwrap.dedent(BEGINNING) + textwrap.indent(textwrap.dedent(body), "    ") + textwrap.dedent(END)
    done = scripts.run(text)
    assert done.stdout.endswith("done\n"), done.stdout
    return done.stdout + done.stderr


def test_what_a_program_does_is_in_the_tables(scripts: Scripts) -> None:
    run(
        scripts,
        """
        workers = this_host().spawn_procs({"gpus": 2}, name="trainers").spawn("workers", Worker)
        for _ in range(5):
            workers.work.call().get()
        workers.work.broadcast()
        workers.work.call().get()  # behind it
        assert telemetry.flush(60)
        ask = lambda sql: telemetry.query(sql, timeout=60)["rows"]
        count = lambda sql: value(telemetry, sql)
        assert count("SELECT count(*) FROM messages WHERE endpoint = 'work'") == 14
        assert count("SELECT count(*) FROM messages WHERE endpoint <> 'work'") == 0, "of the runtime itself"
        assert count("SELECT count(*) FROM message_status_events WHERE status = 'complete'") == 14
        assert count("SELECT count(*) FROM sent_messages") == 7
        named = "name = 'python_user_span' AND json_extract_string(fields_json, '$.name')"
        assert count(f"SELECT count(*) FROM spans WHERE {named} = 'part'") == 14
        assert count("SELECT count(*) FROM spans WHERE name IN ('call', 'broadcast')") == 7
        assert count("SELECT count(DISTINCT process_id) FROM spans") == 3
        assert count("SELECT count(*) FROM events WHERE target = 'my.program'") == 14
        assert count("SELECT count(*) FROM metric_gauges WHERE name = 'level' AND value_f64 = 0.5") >= 2
        logged = count("SELECT count(*) FROM metrics WHERE name = 'loss' AND step = 1 AND mesh = 'workers' AND rank = 1")
        assert logged == 7 and count("SELECT sum(value) FROM metrics") == 3.5
        names = {(row["class"], row["given_name"]) for row in ask("SELECT class, given_name FROM meshes")}
        assert {("Proc", "trainers"), ("Python<Worker>", "workers"), ("Host", "local")} <= names, names
        rows = ask("SELECT new_status AS status, count(*) AS n FROM actor_status_events GROUP BY 1")
        assert {row["status"]: row["n"] for row in rows} == {"Client": 1, "Created": 2, "Initializing": 2, "Idle": 2}, rows
        # Every message: from whom, to whom, over how long.
        joined = '''SELECT s.full_name AS sender, r.full_name AS receiver,
                min(e.timestamp_us) < max(e.timestamp_us) AS ordered
            FROM messages m JOIN actors s ON s.id = from_actor_id JOIN actors r ON r.id = to_actor_id
            JOIN message_status_events e ON e.message_id = m.id GROUP BY ALL'''
        found = ask(joined)
        assert len(found) == 2 and all(row["sender"].startswith("client") and row["ordered"] for row in found), found
        assert all(row["receiver"].startswith("workers<") for row in found), found
        assert value(telemetry, "SELECT count(*) FROM host_metrics") >= 1
        # The client's own rows stay when a mesh has stopped.
        others = this_host().spawn_procs({"gpus": 1}).spawn("others", Worker)
        others.work.call_one().get()
        others.stop().get()
        until(telemetry, "SELECT count(*) FROM actor_status_events WHERE lower(new_status) = 'processing'", 1)
        assert count("SELECT count(*) FROM messages JOIN actors a ON a.id = to_actor_id WHERE full_name LIKE 'others%'") == 1
        telemetry.stop()
        workers.work.call().get()
        again = monarch.telemetry.start(snapshot_interval_secs=0)
        assert again is not telemetry
        workers.work.call().get()
        again.flush(60)
        assert value(again, "SELECT count(*) FROM messages") == 2
        assert value(again, "SELECT count(*) FROM actors") == 3, "those that were there before"
        """,
    )


@full
def test_a_run_is_kept_and_gone_on_with(scripts: Scripts) -> None:
    for step in (1, 2):
        run(
            scripts,
            f"""
            path = monarch.metrics.keep("runs", "a")
            assert path == os.path.abspath("runs/a.json") and path == monarch.metrics.keep("runs")
            try:
                monarch.metrics.keep("runs", "b")
            except ValueError as exc:
                assert f"is kept already, in {{path}}" in str(exc)
            else:
                raise AssertionError
            workers = this_host().spawn_procs({{"gpus": 2}}).spawn("workers", Worker)
            workers.work.call({step}).get()
            monarch.metrics.log(step={step}, mine=1)
            """,
        )
    kept = {(curve.mesh, curve.name): curve for curve in read_run(str(scripts.folder / "runs/a.json")).curves}
    assert set(kept) == {("workers", "loss"), ("client", "mine")}
    assert kept["workers", "loss"].steps == [1, 2] and kept["workers", "loss"].count == [2, 2]


@full
def test_a_stuck_message_is_seen_while_it_lasts(scripts: Scripts) -> None:
    run(
        scripts,
        """
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "go")
            worker = this_host().spawn_procs({"gpus": 1}).spawn("worker", Worker)
            stuck = worker.wait.call_one(path)
            behind = worker.work.call_one()
            latest = '''SELECT string_agg(endpoint || ' ' || status, ', ' ORDER BY endpoint) FROM (
                SELECT m.endpoint, arg_max(e.status, e.timestamp_us) AS status
                FROM messages m JOIN message_status_events e ON e.message_id = m.id GROUP BY m.id, m.endpoint)'''
            until(telemetry, latest, "wait active, work queued")
            open(path, "w").close()
            stuck.get()
            behind.get()
            until(telemetry, latest, "wait complete, work complete")
        """,
    )


@full
def test_a_rank_that_was_killed_has_failed_in_the_tables(scripts: Scripts) -> None:
    run(
        scripts,
        """
        from monarch.actor import SupervisionError
        workers = this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)
        workers.work.call().get()
        telemetry.flush(60)
        try:
            workers.slice(gpus=1).end.call_one().get()
        except SupervisionError:
            pass
        sql = '''SELECT string_agg(a.rank || ' ' || reason, ';') FROM actor_status_events e JOIN actors a ON a.id = e.actor_id
            WHERE new_status = 'Failed' '''
        until(telemetry, sql.replace("reason", "left(reason, 45)"), "1 its process has ended, killed by signal 9")
        """,
    )


@full
def test_an_observer_that_is_killed_is_started_again_and_the_program_goes_on(scripts: Scripts) -> None:
    output = run(
        scripts,
        """
        workers = this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)
        workers.work.call().get()
        assert telemetry.flush(60)
        before = telemetry.url
        os.kill(telemetry._observer.process.pid, signal.SIGKILL)
        for _ in range(100):
            workers.work.call().get()
        while telemetry.url == before:
            time.sleep(0.05)
        workers.work.call(7).get()
        until(telemetry, "SELECT count(*) FROM actors", 3)
        assert value(telemetry, "SELECT count(*) FROM messages") >= 2
        """,
    )
    assert "the observer) has ended, and what it kept is lost; another runs" in output


@full
def test_an_observer_that_stands_still_holds_up_nothing(scripts: Scripts) -> None:
    run(
        scripts,
        """
        workers = this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)
        workers.work.call().get()
        assert telemetry.flush(60)
        pid = telemetry._observer.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(200):
                workers.work.call().get()
            assert not telemetry.flush(0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(telemetry, "SELECT count(*) FROM messages", 402)
        """,
    )


@full
def test_odd_lines_and_long_names_neither_end_telemetry_nor_take_others_with_them(scripts: Scripts) -> None:
    output = run(
        scripts,
        """
        from monarch.telemetry import frames
        class Odd(Actor):
            @endpoint
            def lines(self):
                for number in range(20):
                    logging.getLogger("odd").warning("%d %s", number, "caf\\udce9" if number % 5 == 0 else "plain")

            @endpoint
            def spans(self):
                for _ in range(5_000):
                    with span("\u20ac" * 20_000):
                        pass

        odd = this_host().spawn_procs({"gpus": 1}).spawn("odd", Odd)
        for _ in range(8):  # more batches than may be on their way
            odd.lines.call_one().get()
            assert telemetry.flush(60)
        odd.spans.call_one().get()
        until(telemetry, "SELECT count(*) FROM spans WHERE length(json_extract_string(fields_json, '$.name')) = 1000", 5_000)
        assert value(telemetry, "SELECT count(*) FROM events WHERE target = 'odd'") == 160
        assert value(telemetry, "SELECT count(*) FROM events WHERE target = 'odd' AND fields_json LIKE '%udce9%'") == 32
        assert value(telemetry, "SELECT sum(dropped) + sum(batches_lost) FROM telemetry_sources") == 0
        # What the observer does not take closes the connection, and that is what is said.
        relay, pid, first = telemetry._relay, telemetry._observer.process.pid, telemetry._relay._sock
        with relay._lock:
            relay._waiting.put("odd", frames.HEAD.pack(frames.LARGEST + 1, frames.ROWS))
        relay._loop.call_soon(relay._write)
        while relay._sock in (first, None):  # what is on its way then is lost
            time.sleep(0.05)
        odd.lines.call_one().get()
        until(telemetry, "SELECT count(*) FROM events WHERE target = 'odd'", 180)
        assert telemetry._observer.process.pid == pid
        """,
    )
    assert "the observer) has closed the connection; it still has what it kept, and recording goes on" in output


@full
def test_processes_that_are_spawned_later_record_too_and_hand_over_what_they_have_at_their_end(
    scripts: Scripts,
) -> None:
    run(
        scripts,
        """
        procs = this_host().spawn_procs({"gpus": 2})
        workers = procs.spawn("workers", Worker)
        workers.work.call().get()
        procs.stop().get()
        until(telemetry, "SELECT count(*) FROM message_status_events WHERE status = 'complete'", 2)
        until(telemetry, "SELECT count(*) FROM actor_status_events WHERE new_status = 'Stopped'", 2)
        """,
    )
