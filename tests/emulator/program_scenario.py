"""Random scenarios of a Spark program with up to four queries on one run, whose processes are killed, frozen and stopped, beside a rival.

Each query must read every record once and in order, and none may stand still for a minute with work to do. Nobody reads without the
lease, which goes to another process only if its owner has ended or was silent for the lease timeout; and a run has one host at a time.
"""

import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from kinesis_efo.errors import AlreadyRunningError, LeaseLostError
from kinesis_efo_local import AwsError
from tests.emulator.faults import ScriptedFaults
from tests.emulator.machine import Machine, SimulatedProcess
from tests.emulator.program import LEASE_TIMEOUT, STREAM, Job, ProgramWorld, SparkProgram, in_virtual_time
from tests.emulator.script import generate

MANY: Final = 1_000_000
SECONDS = 60.0
"""How long records are written and disturbances happen."""

STILL_SECONDS = 60.0
REFUSED_SECONDS = 3 * LEASE_TIMEOUT
"""Another driver is told by then that somebody has the lease."""

ENDS_SECONDS = 3 * 3600.0
"""A scenario is over by then after the last disturbance: a server that says now and then that nothing is there gives a record in seconds."""


@dataclass
class Outcome:
    """The outcome of a scenario.

    Attributes:
        records: Number of records written, each of which every query has read.
        moves: How often each move happened.
        errors: How often queries failed with each error.
        takeovers: How often a lease went from one owner to another.
    """

    records: int = 0
    moves: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    takeovers: int = 0


class Scenario:
    """One scenario.

    Args:
        seed: Determines everything that happens.
        machine: Runs it.
        directory: Where the processes of programs find each other.
    """

    def __init__(self, seed: int, machine: Machine, directory: Path) -> None:
        self.seed = seed
        self.machine = machine
        self.random = random = Random(f"{seed}: program")
        self.outcome = Outcome()
        shards = random.randint(1, 3)
        settings: dict[str, object] = {
            "subscription_seconds": random.choice((7.0, 20.0, 300.0)),
            "reshard_seconds": random.choice((0.0, 3.0)),
            "max_event_records": random.choice((1, 3, 500)),
        }
        if random.random() < 0.5:
            settings["wrong_answers"] = random.choice(("quiet", "behind", "last-number", "empty", "all"))
            settings["wrong_answers_rate"] = 0.5
        self.began = machine.now
        script = generate(random, SECONDS, shards) if random.random() < 0.3 else []
        # What ends a query if it happens again and again, as it should.
        script = [fault for fault in script if not fault.code.startswith(("ResourceInUse", "ExpiredToken"))]
        self.writing = self.disturbing = True
        # What has not struck by the end of the disturbances does not.
        self.faults = ScriptedFaults(script, lambda: machine.now - self.began if self.disturbing else -1.0)
        self.world = ProgramWorld(machine, directory, Random(random.random()), shards, self.faults, settings)
        self.options = {
            "bufferBytes": random.choice(("1m", "4m")),
            "leaseTimeout": f"{LEASE_TIMEOUT:g}s",
            "slowQueries": "apart",
        }
        self.program = self._program("program", "here")
        self.jobs = [self._job(f"q{number}") for number in range(random.randint(1, 4))]
        self.rival: tuple[SparkProgram, Job] | None = None
        self.excused = machine.now
        self.ending = False
        self.rivals = 0

    def _program(self, name: str, host: str) -> SparkProgram:
        return SparkProgram(self.world, name, host)

    def _job(self, name: str) -> Job:
        job = Job(self.world, name, Random(self.random.random()), **self.options)
        job.slowness = self.random.choice((0.0, 0.0, 0.2, 1.0))
        return job

    def play(self) -> Outcome:
        """Play the scenario, and check its outcome.

        Raises:
            AssertionError: Something happened that must not.
        """
        machine, world = self.machine, self.world
        run = partial(machine.run, machine.main.process)
        for job in self.jobs:
            run(partial(self._supervise, job))
        run(self._write)
        run(self._disturb)
        while self.writing or self.disturbing or not all(job.has_all for job in self.jobs):
            machine.sleep(1.0)
            self._raise_failures()
            self._watch()
        self.ending = True
        for job in self.jobs:
            job.stopping = True
        self._wait_for_the_end()
        for job in self.jobs:
            job.check(whole=True)
        owners = {lease.owner for key in world.table.items if (lease := world.table.lease(key)).owner is not None}
        assert not [owner for owner in owners if world.owners[owner].exited], f"{owners} have ended and keep the lease"
        outcome = self.outcome
        outcome.records = sum(world.written.values())
        outcome.takeovers = len(world.taken_over)
        outcome.moves.update(fault.kind for _, fault in self.faults.strikes)
        return outcome

    def _wait_for_the_end(self) -> None:
        give_up_at = self.machine.now + 120
        while any(process.lives for process in self.program.processes):
            assert self.machine.now < give_up_at, "a process goes on although all queries have ended"
            self.machine.sleep(1.0)
            self._raise_failures()

    def _raise_failures(self) -> None:
        if self.machine.failures:
            raise self.machine.failures[0]

    def _watch(self) -> None:
        now = self.machine.now
        hosting = self.program.host  # there is one at most
        for job in self.jobs:
            if job.has_all:
                job.moved_at = now
            still = now - max(job.moved_at, self.excused, self.began + self.faults.quiet_since)
            assert still < STILL_SECONDS, (
                f"{job.name} has stood still for {still:.0f} s at {job.log[-1:]}, with {len(job.rows)} rows of "
                f"{sum(self.world.written.values())}; the host is {hosting and hosting.name}"
            )
        assert now - self.began < SECONDS + ENDS_SECONDS, "it is not over"

    # -- queries

    def _supervise(self, job: Job) -> None:
        """Start a query again and again, in a process of the program that is there."""
        machine = self.machine
        while not self.ending:
            machine.sleep(self.random.choice((0.0, 0.5, 3.0)))
            if self.ending or not self.program.lives:
                continue
            job.moved_at = machine.now
            job.running = process = self.program.start(job)
            errors = len(job.errors)
            while process.lives and job.running is process:
                machine.sleep(0.5)
            for error in job.errors[errors:]:
                self._check_error(job, error)

    def _check_error(self, job: Job, error: Exception) -> None:
        self.outcome.errors[type(error).__name__] += 1
        # Only another driver that has the lease ends a query.
        if not (isinstance(error, (AlreadyRunningError, LeaseLostError)) and self.rivals):
            raise AssertionError(f"{job.name} failed: {error!r}") from error

    # -- writes and disturbances

    def _write(self) -> None:
        random = Random(f"{self.seed}: write")
        until = self.machine.now + SECONDS
        sizes = random.choice(((1, 50), (100, 3_000), (1, 30_000)))
        keys = [f"key{number}" for number in range(random.randint(1, 20))]
        while self.machine.now < until:
            for _ in range(random.randint(1, 8)):
                self.world.put(random.choice(keys), random.randint(*sizes))
            self.machine.sleep(random.expovariate(1.0))
        self.writing = False

    def _disturb(self) -> None:
        random = self.random
        moves = [
            *(self._kill_host,) * 3, self._kill, self._stop, self._freeze, self._freeze_host, self._kill_program,
            self._come_as_rival, self._come_as_rival, self._reshard, self._reshard, self._slow_down, self._lose_calls,
        ]  # fmt: skip
        while self.machine.now < self.began + SECONDS:
            self.machine.sleep(random.expovariate(1 / 6))
            move = random.choice(moves)
            if move():
                self.outcome.moves[move.__name__.removeprefix("_")] += 1
        for job in self.jobs:
            job.pause, job.slowness = 0.0, 0.0
        self.world.lossy = 0.0
        if self.rival is not None:
            self._end_rival()
        self.disturbing = False

    def _any(self) -> SimulatedProcess | None:
        living = [process for process in self.program.processes if process.lives]
        return self.random.choice(living) if living else None

    def _kill_host(self) -> bool:
        if (host := self.program.host) is None:
            return False
        self.machine.kill(host)
        return True

    def _kill(self) -> bool:
        if (process := self._any()) is None:
            return False
        self.machine.kill(process)
        return True

    def _kill_program(self) -> bool:
        """End the driver; the next one may run on another machine, where nobody knows that the owner of the lease has ended."""
        host = self.program.jvm.host
        self.program.kill()
        self.machine.sleep(self.random.choice((0.0, 5.0)))
        self.program = self._program("program", self.random.choice((host, "there")))
        return True

    def _stop(self) -> bool:
        job = self.random.choice(self.jobs)
        if job.running is None:
            return False
        stopped, job.stopping = job.running, True
        while job.running is stopped and stopped.lives:
            self.machine.sleep(0.1)
        job.stopping = False
        return True

    def _freeze(self) -> bool:
        return self._froze(self._any())

    def _freeze_host(self) -> bool:
        return self._froze(self.program.host)

    def _froze(self, process: SimulatedProcess | None) -> bool:
        if process is None:
            return False
        if self.rival is None and self.random.random() < 0.5:
            self._come_as_rival()
        self.machine.freeze(process, self.random.choice((1.0, 8.0, 15.0, 40.0)))
        # A process that is paused is waited for.
        self.excused = self.machine.now
        return True

    def _come_as_rival(self) -> bool:
        """Start another driver of the application, or end it."""
        if self.rival is not None:
            self._end_rival()
            return False
        self.rivals += 1
        program = self._program(f"rival{self.rivals}", self.random.choice(("here", "there")))
        job = self._job(f"r{self.rivals}")
        self.rival = program, job
        self.machine.run(self.machine.main.process, partial(self._try_to_read, program, job))
        return True

    def _try_to_read(self, program: SparkProgram, job: Job) -> None:
        while program.lives:
            errors = len(job.errors)
            job.running = process = program.start(job)
            waiting, before = 0.0, None
            while process.lives and job.running is process:
                self.machine.sleep(0.5)
                if job.rows:
                    self.excused = self.machine.now
                holder = self.world.holder
                reads = holder is not None and holder not in program.processes and holder.lives and not holder.frozen
                waiting = waiting + 0.5 if reads and holder is before else 0.0
                before = holder
                assert waiting < REFUSED_SECONDS, f"{job.name} still waits for the lease of {holder}"
            for error in job.errors[errors:]:
                self.outcome.errors[f"{type(error).__name__} of a rival"] += 1
                assert isinstance(error, (AlreadyRunningError, LeaseLostError)), f"{job.name} failed: {error!r}"
            if job.stopping:
                break
            self.machine.sleep(self.random.choice((1.0, 10.0)))

    def _end_rival(self) -> None:
        assert self.rival is not None
        program, job = self.rival
        self.rival = None
        if self.random.random() < 0.5:
            program.kill()
        else:
            job.stopping = True
            while any(process.lives for process in program.processes):
                self.machine.sleep(0.5)
        self.machine.kill(program.jvm)
        job.check(whole=False)
        if job.rows:
            self.outcome.moves["rival that reads"] += 1
            # Its lease may have to expire.
            self.excused = self.machine.now + LEASE_TIMEOUT

    def _reshard(self) -> bool:
        random, kinesis = self.random, self.world.kinesis
        shards = kinesis.state.streams[STREAM].open_shards
        try:
            if len(shards) > 1 and random.random() < 0.4:
                index = random.randrange(len(shards) - 1)
                one, other = shards[index : index + 2]
                kinesis.call("MergeShards", StreamName=STREAM, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
            else:
                shard = random.choice(shards)
                middle = str(sum(shard.hash_range) // 2 + 1)
                kinesis.call("SplitShard", StreamName=STREAM, ShardToSplit=shard.id, NewStartingHashKey=middle)
        except AwsError as refused:
            if refused.code not in ("ResourceInUseException", "InvalidArgumentException", "LimitExceededException"):
                raise
            return False
        return True

    def _slow_down(self) -> bool:
        """Let a query dawdle, or read little at a time."""
        job = self.random.choice(self.jobs)
        job.pause = self.random.choice((0.0, 0.3, 3.0))
        job.limit(self.random.choice((5, MANY)))
        return True

    def _lose_calls(self) -> bool:
        """Let calls between processes and to the lease table lose their answers for some time."""
        self.world.lossy = 0.2
        for network in self.world.networks:
            network.lose_answers = 0.2
        self.machine.sleep(self.random.uniform(1, 8))
        self.world.lossy = 0.0
        for network in self.world.networks:
            network.lose_answers = 0.0
        return True


def play(seed: int) -> Outcome:
    """Play the scenario of a seed.

    Args:
        seed: The seed.

    Raises:
        AssertionError: Something happened that must not.
    """
    machine = Machine()
    # The library's backoffs.
    random.seed(f"{seed}: backoffs")
    with tempfile.TemporaryDirectory() as directory, in_virtual_time(machine):
        scenario = Scenario(seed, machine, Path(directory))
        try:
            return scenario.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, at {machine.now:.1f}: {error}\n{scenario.outcome}") from error
