"""The producer's decisions under any interleaving of answers, refusals, lost answers, splits and time."""

from collections import Counter, defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import (
    AccessRefusedError,
    KeyUnusableError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamNotFoundError,
)
from kinesis_efo.producer.faults import Retry, judge
from kinesis_efo.producer.queue import PutRecordsRequest, RecordQueue, RequestOutcome
from kinesis_efo.producer.record import Record, SizeLimit, make_record
from kinesis_efo.producer.routing import ANY_SHARD, MAX_HASH, HashRange, ShardMap
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, ProducerSettings
from kinesis_efo.records.distribution import Distribution
from tests.support.messages import raises
from tests.support.transports import refused
from tests.support.write_model import THROTTLE, Answer, ModelStream, even_shards

LIMIT = SizeLimit(10 << 20)
SHARD = "shardId-000000000000"
TAKEN, THROTTLED, INVALID = (
    Answer(SHARD),
    Answer(code=THROTTLE),
    Answer(code="ValidationException", message="too large"),
)
OUTAGE = judge(refused("InternalFailure", "the first cause", 500))
REFUSAL = judge(refused("ValidationException", "too large", 400))
ANY = ShardMap([HashRange(ANY_SHARD, 0, MAX_HASH)], Distribution.AUTO)


def queue_of(stream: ModelStream | int, count: int = 0, seed: int = 1, **wanted: object) -> RecordQueue:
    """A queue for a stream, or one with so many shards, with records `key-0`, `key-1` and so on."""
    shards = ModelStream(even_shards(stream)).map if isinstance(stream, int) else stream.map
    queue = RecordQueue("orders", ProducerSettings(**wanted), shards, 1 << 20, Random(seed))  # type: ignore[arg-type]
    fill(queue, range(count))
    return queue


def fill(queue: RecordQueue, numbers: range, now: float = 0.0) -> None:
    queue.add([record(number, f"key-{number}", now=now) for number in numbers])


def record(position: int, key: str = "k", data: bytes = b"x", now: float = 0.0, hash_key: int | None = None) -> Record:
    made = make_record(data, key, hash_key, LIMIT, position)
    made.position, made.put_at = position, now
    return made


def send(queue: RecordQueue, now: float = 0.0) -> PutRecordsRequest:
    request = queue.next_request(now, eager=True)
    assert request is not None
    return request


def due(queue: RecordQueue) -> float:
    at = queue.due_at(eager=True)
    assert at is not None, "records wait and nothing would ever send them"
    return at


def positions(records: list[Record]) -> list[int]:
    return [each.position for each in records]


@pytest.mark.parametrize("ordered", [False, True])
def test_new_map_of_the_same_shards_ends_no_outage(ordered: bool) -> None:
    queue, now, settled = queue_of(1, 1, ordered=ordered, retry_timeout=300, backoff_max=1), 0.0, RequestOutcome()
    while settled.failure is None and now < 1_000:
        request = send(queue, now)
        queue.adopt(ShardMap([HashRange(SHARD, 0, MAX_HASH)], Distribution.KEYED))
        settled, now = queue.settle(request, [Answer(code="InternalFailure")], now), now + 20
    assert isinstance(settled.failure, RetriesExhaustedError)


class Interleaving:
    """Drives an queue against the model, as the engine would, in an order that Hypothesis draws."""

    def __init__(self, data: st.DataObject, ordered: bool, aggregate: bool) -> None:
        self.data = data
        self.stream = ModelStream(even_shards(data.draw(st.integers(1, 4))))
        self.queue = queue_of(self.stream, ordered=ordered, aggregate=aggregate, aggregate_bytes=1 << 10)
        self.ordered = ordered
        self.aggregate = aggregate
        self.now = 0.0
        self.put: list[Record] = []
        self.acknowledged: Counter[int] = Counter()
        self.in_flight: list[PutRecordsRequest] = []
        self.answers_lost = False

    def step(self) -> None:
        action = self.data.draw(st.sampled_from(["put", "put", "send", "send", "answer", "fault", "wait", "split"]))
        getattr(self, f"do_{action}")()

    def do_put(self) -> None:
        key = self.data.draw(st.sampled_from("abcdefgh"))
        for _ in range(self.data.draw(st.integers(1, 4))):
            made = record(len(self.put), key, b"x" * self.data.draw(st.sampled_from([0, 10, 700])), self.now)
            self.put.append(made)
            self.queue.add([made])

    def do_send(self) -> None:
        request = self.queue.next_request(self.now, eager=self.data.draw(st.booleans()))
        if request is None:
            return
        assert request.parcels
        if self.ordered:
            keys = [made.key for made in request.records]
            assert not set(keys) & {made.key for other in self.in_flight for made in other.records}
            assert self.aggregate or len(keys) == len(set(keys))
        self.in_flight.append(request)

    def drawn(self) -> PutRecordsRequest:
        return self.in_flight.pop(self.data.draw(st.integers(0, len(self.in_flight) - 1)))

    def do_answer(self) -> None:
        if self.in_flight:
            request = self.drawn()
            self.settle(request, [self.one_answer(parcel) for parcel in request.parcels])

    def one_answer(self, parcel: object) -> Answer:
        outcome = self.data.draw(st.sampled_from(["ok", "ok", THROTTLE, "InternalFailure"]))
        return self.stream.store(parcel) if outcome == "ok" else Answer(code=outcome, message="busy")  # type: ignore[arg-type]

    def settle(self, request: PutRecordsRequest, answers: list[Answer]) -> None:
        if not all(self.queue.shards.knows(answer.shard) for answer in answers if answer.shard):
            self.queue.adopt(self.stream.map)
        settled = self.queue.settle(request, answers, self.now)
        assert settled.failure is None
        assert not settled.refused
        self.acknowledged.update(positions(settled.acknowledged))

    def do_fault(self) -> None:
        if not self.in_flight:
            return
        request = self.drawn()
        if self.data.draw(st.booleans()):
            # Carried out, but the answer is lost: the records are stored all the same.
            self.answers_lost = True
            for parcel in request.parcels:
                self.stream.store(parcel)
        assert self.queue.fault(request, OUTAGE, self.now).failure is None

    def do_wait(self) -> None:
        self.now += self.data.draw(st.sampled_from([0.01, 0.2, 3.0]))

    def do_split(self) -> None:
        self.stream.split(self.data.draw(st.integers(0, MAX_HASH)))

    def drain(self) -> None:
        for _ in range(10_000):
            if not self.in_flight and self.queue.due_at(eager=True) is None:
                return
            request = self.queue.next_request(self.now, eager=True)
            if request is not None:
                self.in_flight.append(request)
            elif self.in_flight:
                request = self.in_flight.pop(0)
                self.settle(request, [self.stream.store(parcel) for parcel in request.parcels])
            else:
                self.now = max(self.now, due(self.queue))
        raise AssertionError("records are sent for ever")


# Shows 91.
@given(data=st.data(), ordered=st.booleans(), aggregate=st.booleans())
def test_any_interleaving_stores_and_acknowledges_every_record_once(
    data: st.DataObject, ordered: bool, aggregate: bool
) -> None:
    run = Interleaving(data, ordered, aggregate)
    for _ in range(data.draw(st.integers(0, 60))):
        run.step()
        assert set(run.acknowledged) <= set(positions(run.stream.seen)), "acknowledged, but not stored"
    run.drain()
    assert run.acknowledged == Counter(range(len(run.put)))
    seen = positions(run.stream.seen)
    assert set(seen) == set(range(len(run.put)))
    assert run.answers_lost or len(seen) == len(run.put), "written twice though every answer arrived"
    by_key: dict[str, list[int]] = defaultdict(list)
    for made in run.stream.seen:
        if made.position not in by_key[made.key]:
            by_key[made.key].append(made.position)
    assert not ordered or all(order == sorted(order) for order in by_key.values())


# Shows 89.
def test_request_has_at_most_500_records_and_10_mebibytes() -> None:
    queue = queue_of(3, 1_200)
    assert [len(send(queue).parcels) for _ in range(3)] == [500, 500, 200]
    queue.add([record(number, "k" * 24, b"x" * ((1 << 20) - 24)) for number in range(12)])
    first, second = send(queue), send(queue)
    assert sum(parcel.size for parcel in first.parcels) == MAX_REQUEST_BYTES
    assert (len(first.parcels), len(second.parcels)) == (10, 2)
    for aggregate in (False, True):
        queue = queue_of(1, aggregate=aggregate)
        queue.add([record(number, "k", b"x" * ((10 << 20) - 1)) for number in range(2)])
        assert [len(send(queue).parcels) for _ in range(2)] == [1, 1]


# Shows 89.
def test_request_is_sent_when_full_or_after_the_linger() -> None:
    queue = queue_of(2, linger=0.1)
    queue.add([record(0, now=5.0)])
    assert queue.next_request(5.05, eager=False) is None
    assert queue.due_at(eager=False) == pytest.approx(5.1)
    assert due(queue) == 5.0
    assert queue.next_request(5.1, eager=False) is not None
    fill(queue, range(499), now=6.0)
    assert queue.next_request(6.0, eager=False) is None
    fill(queue, range(499, 500), now=6.0)
    assert queue.next_request(6.0, eager=False) is not None


# Shows 90.
def test_throttled_shard_gets_as_many_records_as_it_takes() -> None:
    queue = queue_of(1, 2_000)
    queue.settle(send(queue), [TAKEN] * 50 + [THROTTLED] * 450, 0.0)
    sizes = []
    for now in (10, 20, 30, 40):
        request = send(queue, now)
        if len(request.parcels) < 500:
            assert queue.next_request(now, eager=True) is None, "one request at a time while it recovers"
        sizes.append(len(request.parcels))
        queue.settle(request, [TAKEN] * len(request.parcels), now)
    assert sizes == [100, 200, 400, 500]


def test_backoff_has_full_jitter_below_a_doubling_bound() -> None:
    waits: list[list[float]] = [[] for _ in range(6)]
    for seed in range(400):
        queue, now = queue_of(1, 1, seed, backoff_base=0.1, backoff_max=1.0), 0.0
        for waited in waits:
            queue.settle(send(queue, now), [THROTTLED], now)
            waited.append(due(queue) - now)
            now = due(queue)
    for bound, seen in zip((0.1, 0.2, 0.4, 0.8, 1.0, 1.0), waits, strict=True):
        assert 0 <= min(seen) < 0.1 * bound
        assert 0.9 * bound < max(seen) <= bound + 1e-9
        assert sum(seen) / len(seen) == pytest.approx(bound / 2, rel=0.15)


def test_failed_request_pauses_all_shards_and_is_retried() -> None:
    queue = queue_of(2, backoff_base=1.0, backoff_max=1.0)
    queue.add([record(0, hash_key=0)])
    settled = queue.fault(send(queue), judge(refused("", "", 503)), 0.0)
    assert (settled.failure, settled.retried) == (None, {"503": 1})
    queue.add([record(1, hash_key=1 << 127)])
    assert queue.next_request(1e-9, eager=True) is None
    assert set(positions(send(queue, due(queue)).records)) == {0, 1}


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("AccessDeniedException", AccessRefusedError, "kinesis:PutRecords"),
        ("ResourceNotFoundException", StreamNotFoundError, "deployed"),
        ("KMSDisabledException", KeyUnusableError, "enable the key"),
        ("KMSAccessDeniedException", KeyUnusableError, "kms:GenerateDataKey"),
    ],
)
def test_permanent_faults_fail_at_once(code: str, kind: type[Exception], words: str) -> None:
    for whole in (True, False):
        queue = queue_of(1)
        queue.add([record(0, data=b"secret")])
        request = send(queue)
        fault, answer = judge(refused(code, "no", 400)), Answer(code=code, message="no")
        failure = (queue.fault(request, fault, 0.0) if whole else queue.settle(request, [answer], 0.0)).failure
        assert type(failure) is kind
        assert words in str(failure)
        assert "orders" in str(failure)
        assert "secret" not in str(failure)


def test_refused_record_is_named_without_its_data() -> None:
    queue = queue_of(1)
    queue.add([record(41, "customer-7", b"secret")])
    settled = queue.settle(send(queue), [INVALID], 0.0)
    assert settled.failure is None
    ((found, error),) = settled.refused
    assert found.position == 41
    text = "record 41 (partition key 'customer-7', 16 bytes): Kinesis refuses it: ValidationException: too large"
    with raises(RecordRefusedError, text):
        raise error


def answered(queue: RecordQueue, stream: ModelStream) -> RequestOutcome:
    """Send a request, which is refused if it has a bad record."""
    request = send(queue)
    if any(made.data == b"bad" for made in request.records):
        return queue.fault(request, REFUSAL, 0.0)
    return queue.settle(request, [stream.store(parcel) for parcel in request.parcels], 0.0)


@pytest.mark.parametrize("aggregate", [False, True])
def test_refused_request_is_halved_until_the_record_is_found(aggregate: bool) -> None:
    queue = queue_of(stream := ModelStream(even_shards(3)), aggregate=aggregate)
    queue.add([record(number, f"key-{number}", b"bad" if number == 321 else b"good") for number in range(500)])
    written: list[int] = []
    named: list[int] = []
    requests = 0
    while queue.due_at(eager=True) is not None:
        settled, requests = answered(queue, stream), requests + 1
        assert settled.failure is None
        written += positions(settled.acknowledged)
        named += [made.position for made, _ in settled.refused]
    assert sorted(written) == [number for number in range(500) if number != 321]
    assert named == [321]
    assert requests < 60


# The bound of a request grew again with each request of another shard, so the record was never alone.
def test_refused_record_is_found_among_busy_shards() -> None:
    queue = queue_of(stream := ModelStream(even_shards(6)))
    queue.add([record(0, data=b"bad", hash_key=0)])
    for _ in range(50):
        queue.add([record(1, f"key-{number}") for number in range(600)])
        if answered(queue, stream).refused:
            return
    pytest.fail("the record is not named after 50 requests")


# Shows 89.
def test_expired_credentials_get_five_tries_in_a_row() -> None:
    queue, now = queue_of(1), 0.0
    fault = judge(refused("ExpiredTokenException", "expired", 400))
    assert fault.retry is Retry.BRIEFLY
    for healed in (True, False):
        queue.add([record(0, now=now)])
        for _ in range(4):
            now += 10
            assert queue.fault(send(queue, now), fault, now).failure is None
        request = send(queue, now := now + 10)
        if healed:
            queue.settle(request, [TAKEN], now)
        else:
            failure = queue.fault(request, fault, now).failure
            assert isinstance(failure, AccessRefusedError)
            assert "renew the AWS credentials" in str(failure)


def play(queue: RecordQueue, event: str, now: float) -> RequestOutcome:
    """Let a request with two records have an outcome."""
    if queue.due_at(eager=True) is None:
        fill(queue, range(2), now)
    request = send(queue, now)
    if event in ("outage", "refusal"):
        return queue.fault(request, OUTAGE if event == "outage" else REFUSAL, now)
    answers = {"throttled": THROTTLED, "taken": TAKEN, "invalid": INVALID, "partly": THROTTLED}
    first = TAKEN if event == "partly" else answers[event]
    return queue.settle(request, [first, *[answers[event]] * (len(request.parcels) - 1)], now)


# The retry timeout is 60 s.
@pytest.mark.parametrize(
    ("events", "fails"),
    [
        ("0 throttled, 30 throttled, 60 throttled", False),
        ("0 throttled, 30 throttled, 61 throttled", True),
        ("0 outage, 40 throttled, 80 outage", True),
        ("0 throttled, 40 throttled, 50 taken, 90 throttled, 130 throttled", False),
        ("0 throttled, 40 throttled, 50 partly, 90 throttled, 150 throttled, 151 throttled", True),
        ("0 throttled, 40 invalid, 100 throttled", False),
        ("0 outage, 40 invalid, 100 outage", False),
        ("0 throttled, 40 refusal, 41 refusal, 42 refusal, 100 throttled", False),
        ("0 outage, 40 refusal, 41 refusal, 42 refusal, 100 outage", False),
    ],
)
def test_shard_without_progress_for_the_timeout_fails(events: str, fails: bool) -> None:
    queue = queue_of(1, retry_timeout=60, backoff_max=0.5, backoff_base=0.5)
    *before, last = [event.split() for event in events.split(", ")]
    for at, event in before:
        assert play(queue, event, float(at)).failure is None
    assert isinstance(play(queue, last[1], float(last[0])).failure, RetriesExhaustedError) is fails


def test_answer_from_before_two_changes_does_not_block() -> None:
    queue = queue_of(stream := ModelStream(even_shards(2)))
    queue.adopt(ANY)
    queue.add([record(0)])
    before = send(queue)
    queue.adopt(stream.map)
    queue.adopt(ANY)
    queue.settle(before, [Answer("shardId-0")], 0.0)
    fill(queue, range(1, 11))
    queue.settle(send(queue), [THROTTLED] * 10, 0.0)
    after = send(queue, now=100.0)
    queue.settle(after, [Answer("shardId-1")] * len(after.parcels), 100.0)
    assert queue.in_flight == 0


def test_distributed_records_are_acknowledged_in_any_shard() -> None:
    queue = queue_of(2)
    queue.adopt(ANY)
    fill(queue, range(3))
    settled = queue.settle(send(queue), [Answer("shardId-7"), THROTTLED, Answer("shardId-8")], 0.0)
    assert (positions(settled.acknowledged), settled.misrouted) == ([0, 2], False)


def test_records_go_to_shards_of_a_recreated_stream() -> None:
    queue = queue_of(2, 40, ordered=True)
    request = send(queue)
    fill(queue, range(40, 80))
    queue.adopt(again := ShardMap(even_shards(4)))
    queue.settle(request, [Answer(code="InternalFailure", message="")] * len(request.parcels), 0.0)
    resent = send(queue, 60.0)
    assert [again.shard_of(each.hash) for each in resent.records] == resent.shards
    assert sorted(positions(resent.records)) == list(range(80))


def test_outage_ends_when_its_records_change_shards() -> None:
    queue, half = queue_of(1, linger=0), MAX_HASH // 2
    queue.add([record(0, hash_key=MAX_HASH)])
    request = send(queue)
    (shard,) = request.shards
    assert queue.settle(request, [THROTTLED], 0.1).failure is None
    queue.adopt(ShardMap([HashRange(shard, 0, half, first="2"), HashRange("other", half + 1, MAX_HASH, first="2")]))
    request = send(queue, 10.0)
    assert request.shards == ["other"]
    queue.settle(request, [Answer("other")], 10.1)
    queue.add([record(1, hash_key=1)])
    assert queue.settle(send(queue, 600.0), [THROTTLED], 600.1).failure is None
