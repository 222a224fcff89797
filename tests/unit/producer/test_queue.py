"""The producer's decisions under any interleaving of answers, refusals, lost answers, splits and time."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.aws_errors import THROUGHPUT_EXCEEDED
from kinesis_efo.errors import (
    AccessRefusedError,
    KeyUnusableError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamNotFoundError,
)
from kinesis_efo.producer.faults import Retry, judge
from kinesis_efo.producer.queue import WRONG_SHARD, PutRecordsRequest, RecordQueue, Result
from kinesis_efo.producer.record import Record, SizeLimit, make_record
from kinesis_efo.producer.routing import ANY_SHARD, MAX_HASH, HashRange, ShardMap
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, ProducerSettings
from kinesis_efo.records.distribution import Distribution
from tests.support.messages import raises
from tests.support.transports import refused
from tests.support.write_model import THROTTLE, Answer, ModelStream, even_shards

LIMIT = SizeLimit(10 << 20)
THROTTLED = Result(code=THROUGHPUT_EXCEEDED, message="x")
ANY = ShardMap([HashRange(ANY_SHARD, 0, MAX_HASH)], Distribution.AUTO)


def queue_of(stream: ModelStream, seed: int = 1, **wanted: object) -> RecordQueue:
    return RecordQueue("orders", ProducerSettings(**wanted), stream.map, 1 << 20, Random(seed))  # type: ignore[arg-type]


def record(position: int, key: str = "k", data: bytes = b"x", now: float = 0.0, hash_key: int | None = None) -> Record:
    made = make_record(data, key, hash_key, LIMIT, position)
    made.position, made.put_at = position, now
    return made


def send(queue: RecordQueue, now: float = 0.0) -> PutRecordsRequest:
    request = queue.next_request(now, eager=True)
    assert request is not None
    return request


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
            under_way = [made.key for other in self.in_flight for made in other.records]
            assert not set(keys) & set(under_way)
            assert self.aggregate or len(keys) == len(set(keys))
        self.in_flight.append(request)

    def do_answer(self) -> None:
        if not self.in_flight:
            return
        request = self.in_flight.pop(self.data.draw(st.integers(0, len(self.in_flight) - 1)))
        answers = [self.one_answer(parcel) for parcel in request.parcels]
        self.settle(request, answers)

    def one_answer(self, parcel: object) -> Answer:
        outcome = self.data.draw(st.sampled_from(["ok", "ok", THROTTLE, "InternalFailure"]))
        return self.stream.store(parcel) if outcome == "ok" else Answer(code=outcome, message="busy")  # type: ignore[arg-type]

    def settle(self, request: PutRecordsRequest, answers: list[Answer]) -> None:
        if not all(self.queue.shards.knows(answer.shard) for answer in answers if answer.shard):
            self.queue.adopt(self.stream.map)
        settled = self.queue.settle(request, answers, self.now)
        assert settled.failure is None
        assert not settled.refused
        self.acknowledged.update(made.position for made in settled.acknowledged)

    def do_fault(self) -> None:
        if not self.in_flight:
            return
        request = self.in_flight.pop(self.data.draw(st.integers(0, len(self.in_flight) - 1)))
        if self.data.draw(st.booleans()):
            # Carried out, but the answer is lost: the records are stored all the same.
            self.answers_lost = True
            for parcel in request.parcels:
                self.stream.store(parcel)
        assert self.queue.fault(request, judge(refused("InternalFailure", "", 500)), self.now).failure is None

    def do_wait(self) -> None:
        self.now += self.data.draw(st.sampled_from([0.01, 0.2, 3.0]))

    def do_split(self) -> None:
        self.stream.split(self.data.draw(st.integers(0, (1 << 128) - 1)))

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
                due = self.queue.due_at(eager=True)
                assert due is not None, "records wait and nothing would ever send them"
                self.now = max(self.now, due)
        raise AssertionError("records are sent for ever")


@given(data=st.data(), ordered=st.booleans(), aggregate=st.booleans())
def test_any_interleaving_stores_every_record_and_acknowledges_it_once(
    data: st.DataObject, ordered: bool, aggregate: bool
) -> None:
    run = Interleaving(data, ordered, aggregate)
    for _ in range(data.draw(st.integers(0, 60))):
        run.step()
        seen = {made.position for made in run.stream.seen}
        assert set(run.acknowledged) <= seen, "acknowledged, but not stored"
    run.drain()
    assert run.acknowledged == Counter(range(len(run.put)))
    seen_order = [made.position for made in run.stream.seen]
    assert set(seen_order) == set(range(len(run.put)))
    if not run.answers_lost:
        assert len(seen_order) == len(run.put), "written twice though every answer arrived"
    if ordered:
        by_key: dict[str, list[int]] = defaultdict(list)
        for made in run.stream.seen:
            if made.position not in by_key[made.key]:
                by_key[made.key].append(made.position)
        assert all(order == sorted(order) for order in by_key.values())


def test_a_request_holds_500_records_and_10_mebibytes_with_keys_counted() -> None:
    stream = ModelStream(even_shards(3))
    queue = queue_of(stream)
    for number in range(1_200):
        queue.add([record(number, str(number))])
    assert [len(send(queue).parcels) for _ in range(3)] == [500, 500, 200]

    for number in range(12):
        queue.add([record(number, "k" * 24, b"x" * ((1 << 20) - 24))])
    first, second = send(queue), send(queue)
    assert sum(parcel.size for parcel in first.parcels) == MAX_REQUEST_BYTES
    assert (len(first.parcels), len(second.parcels)) == (10, 2)


def test_the_largest_possible_record_goes_alone() -> None:
    for aggregate in (False, True):
        queue = queue_of(ModelStream(even_shards(1)), aggregate=aggregate)
        for number in range(2):
            queue.add([record(number, "k", b"x" * ((10 << 20) - 1))])
        assert [len(send(queue).parcels) for _ in range(2)] == [1, 1]


def test_a_request_waits_for_others_until_the_linger_is_over_or_it_is_full() -> None:
    queue = queue_of(ModelStream(even_shards(2)), linger=0.1)
    queue.add([record(0, now=5.0)])
    assert queue.next_request(5.05, eager=False) is None
    assert queue.due_at(eager=False) == pytest.approx(5.1)
    assert queue.due_at(eager=True) == 5.0
    assert queue.next_request(5.1, eager=False) is not None
    for number in range(499):
        queue.add([record(number, str(number), now=6.0)])
    assert queue.next_request(6.0, eager=False) is None
    queue.add([record(499, "499", now=6.0)])
    assert queue.next_request(6.0, eager=False) is not None


def test_a_throttled_shard_backs_off_and_the_others_continue() -> None:
    stream = ModelStream(even_shards(2))
    queue = queue_of(stream, backoff_base=1.0, backoff_max=1.0)
    hot, cold = (shard.id for shard in stream.ranges)
    for number in range(20):
        queue.add([record(number, hash_key=0)])
    request = send(queue)
    settled = queue.settle(request, [Answer(code=THROTTLE, message="slow down")] * 20, 0.0)
    assert settled.retried == {THROTTLE: 20}
    assert not settled.acknowledged
    queue.add([record(20, hash_key=(1 << 128) - 1)])
    request = send(queue, 1e-9)
    assert request.shards == [cold]
    assert queue.next_request(1e-9, eager=True) is None
    due = queue.due_at(eager=True)
    assert due is not None
    assert 0 < due <= 1.0
    assert set(send(queue, due).shards) == {hot}


def test_only_what_was_refused_is_sent_again_and_in_order() -> None:
    stream = ModelStream(even_shards(1))
    queue = queue_of(stream)
    for number in range(6):
        queue.add([record(number, str(number))])
    request = send(queue)
    answers = [Answer(shard="shardId-000000000000") if number % 2 else Answer(code=THROTTLE) for number in range(6)]
    assert [made.position for made in queue.settle(request, answers, 0.0).acknowledged] == [1, 3, 5]
    queue.add([record(6, "6")])
    assert [made.position for made in send(queue, 10.0).records] == [0, 2, 4, 6]


def test_the_window_of_a_throttled_shard_follows_what_the_shard_takes() -> None:
    stream = ModelStream(even_shards(1))
    queue = queue_of(stream)
    for number in range(2_000):
        queue.add([record(number, str(number))])
    shard = stream.ranges[0].id
    queue.settle(send(queue), [Answer(shard=shard)] * 50 + [Answer(code=THROTTLE)] * 450, 0.0)
    now, sizes = 0.0, []
    for _ in range(4):
        now += 10
        request = send(queue, now)
        if len(request.parcels) < 500:
            assert queue.next_request(now, eager=True) is None, "one request at a time while it recovers"
        sizes.append(len(request.parcels))
        queue.settle(request, [Answer(shard=shard)] * len(request.parcels), now)
    assert sizes == [100, 200, 400, 500]


def test_backoff_is_full_jitter_between_zero_and_a_doubling_bound() -> None:
    waits: list[list[float]] = [[] for _ in range(6)]
    for seed in range(400):
        queue = queue_of(ModelStream(even_shards(1)), seed, backoff_base=0.1, backoff_max=1.0)
        queue.add([record(0)])
        now = 0.0
        for fault in range(6):
            queue.settle(send(queue, now), [Answer(code=THROTTLE)], now)
            due = queue.due_at(eager=True)
            assert due is not None
            waits[fault].append(due - now)
            now = due
    for bound, seen in zip((0.1, 0.2, 0.4, 0.8, 1.0, 1.0), waits, strict=True):
        assert 0 <= min(seen) < 0.1 * bound
        assert 0.9 * bound < max(seen) <= bound + 1e-9
        assert sum(seen) / len(seen) == pytest.approx(bound / 2, rel=0.15)


def test_requests_that_fail_together_count_as_one_fault() -> None:
    queue = queue_of(ModelStream(even_shards(1)), backoff_base=0.1, backoff_max=1_000 / 20)
    for number in range(4_000):
        queue.add([record(number, str(number))])
    together = [send(queue) for _ in range(8)]
    for request in together:
        queue.settle(request, [Answer(code=THROTTLE)] * 500, 0.001)
    due = queue.due_at(eager=True)
    assert due is not None
    assert due <= 0.001 + 0.1, "eight answers to one burst counted as eight faults"


def test_a_fault_of_the_whole_request_pauses_all_shards_and_is_retried() -> None:
    queue = queue_of(ModelStream(even_shards(2)), backoff_base=1.0, backoff_max=1.0)
    queue.add([record(0, hash_key=0)])
    settled = queue.fault(send(queue), judge(refused("", "", 503)), 0.0)
    assert settled.failure is None
    assert settled.retried == {"503": 1}
    queue.add([record(1, hash_key=1 << 127)])
    assert queue.next_request(1e-9, eager=True) is None
    due = queue.due_at(eager=True)
    assert due is not None
    assert {made.position for made in send(queue, due).records} == {0, 1}


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
        queue = queue_of(ModelStream(even_shards(1)))
        queue.add([record(0, data=b"secret")])
        request = send(queue)
        if whole:
            failure = queue.fault(request, judge(refused(code, "no", 400)), 0.0).failure
        else:
            failure = queue.settle(request, [Answer(code=code, message="no")], 0.0).failure
        assert type(failure) is kind
        assert words in str(failure)
        assert "orders" in str(failure)
        assert "secret" not in str(failure)


def test_a_record_that_kinesis_refuses_is_named_by_key_size_and_position_never_by_its_data() -> None:
    queue = queue_of(ModelStream(even_shards(1)))
    queue.add([record(41, "customer-7", b"secret")])
    settled = queue.settle(send(queue), [Answer(code="ValidationException", message="too large")], 0.0)
    assert settled.failure is None
    ((refused, error),) = settled.refused
    assert refused.position == 41
    said = "record 41 (partition key 'customer-7', 16 bytes): Kinesis refuses it: ValidationException: too large"
    with raises(RecordRefusedError, said):
        raise error


@pytest.mark.parametrize("aggregate", [False, True])
def test_a_refused_request_is_halved_until_the_faulty_record_is_named(aggregate: bool) -> None:
    stream = ModelStream(even_shards(3))
    queue = queue_of(stream, aggregate=aggregate)
    for number in range(500):
        queue.add([record(number, f"key-{number}", b"bad" if number == 321 else b"good")])
    written: list[int] = []
    named: list[str] = []
    requests = 0
    while queue.due_at(eager=True) is not None:
        request, requests = send(queue), requests + 1
        if any(made.data == b"bad" for made in request.records):
            settled = queue.fault(request, judge(refused("ValidationException", "too large", 400)), 0.0)
        else:
            settled = queue.settle(request, [stream.store(parcel) for parcel in request.parcels], 0.0)
        assert settled.failure is None
        written += [made.position for made in settled.acknowledged]
        named += [str(error) for _, error in settled.refused]
    assert sorted(written) == [number for number in range(500) if number != 321]
    assert named == [
        "record 321 (partition key 'key-321', 10 bytes): Kinesis refuses it: ValidationException: too large"
    ]
    assert requests < 60


def test_expired_credentials_get_a_few_tries_in_a_row() -> None:
    queue = queue_of(ModelStream(even_shards(1)))
    fault = judge(refused("ExpiredTokenException", "expired", 400))
    assert fault.retry is Retry.BRIEFLY
    now = 0.0
    for healed in (True, False):
        queue.add([record(0, now=now)])
        for _ in range(4):
            now += 10
            assert queue.fault(send(queue, now), fault, now).failure is None
        now += 10
        request = send(queue, now)
        if healed:
            queue.settle(request, [Answer(shard="shardId-000000000000")], now)
        else:
            failure = queue.fault(request, fault, now).failure
            assert isinstance(failure, AccessRefusedError)
            assert "renew the AWS credentials" in str(failure)


def test_a_shard_without_progress_ends_in_an_error_with_the_first_cause() -> None:
    queue = queue_of(ModelStream(even_shards(1)), retry_timeout=60)
    queue.add([record(0)])
    now, failure, causes = 0.0, None, iter(["the first cause"] + ["later"] * 100)
    while failure is None:
        assert now <= 62 + 2
        failure = queue.settle(send(queue, now), [Answer(code=THROTTLE, message=next(causes))], now).failure
        now += 2
    assert isinstance(failure, RetriesExhaustedError)
    assert "the first cause" in str(failure)
    assert "retry_timeout is 60 s" in str(failure)


def test_a_shard_with_progress_is_never_given_up() -> None:
    queue = queue_of(ModelStream(even_shards(1)), retry_timeout=60)
    for number in range(1_000):
        queue.add([record(number, str(number))])
    now = 0.0
    for _ in range(100):
        now += 50
        request = send(queue, now)
        answers = [Answer(shard="shardId-000000000000")] + [Answer(code=THROTTLE)] * (len(request.parcels) - 1)
        assert queue.settle(request, answers, now).failure is None


def test_progress_between_failures_restarts_the_retry_timeout() -> None:
    queue = queue_of(ModelStream(even_shards(1)), retry_timeout=60)
    now = 0.0
    for number in range(10):
        queue.add([record(number, now=now)])
        for _ in range(2):
            now += 40
            assert queue.settle(send(queue, now), [Answer(code=THROTTLE)], now).failure is None
        now += 40
        assert queue.settle(send(queue, now), [Answer(shard="shardId-000000000000")], now).acknowledged


def test_failures_of_requests_and_of_their_shard_count_together() -> None:
    queue = queue_of(ModelStream(even_shards(1)), retry_timeout=60)
    queue.add([record(0)])
    outage = judge(refused("InternalFailure", "the first cause", 500))
    assert queue.fault(send(queue, 0), outage, 0).failure is None
    assert queue.settle(send(queue, 40), [Answer(code=THROTTLE)], 40).failure is None
    failure = queue.fault(send(queue, 80), outage, 80).failure
    assert str(failure).startswith(
        "stream orders cannot be written to: every record for shardId-000000000000 failed for 80 s, beginning with "
        "InternalFailure: the first cause"
    )


@pytest.mark.parametrize("refused_by", ["answer", "request"])
@pytest.mark.parametrize("failing", ["shard", "request"])
def test_an_outage_ends_when_its_record_is_refused(failing: str, refused_by: str) -> None:
    queue = queue_of(ModelStream(even_shards(1)), retry_timeout=60)
    outage, refusal = judge(refused("InternalFailure", "", 500)), judge(refused("ValidationException", "", 400))

    def fail(now: float) -> None:
        queue.add([record(int(now), now=now)])
        request = send(queue, now)
        if failing == "shard":
            assert queue.settle(request, [Answer(code=THROTTLE)], now).failure is None
        else:
            assert queue.fault(request, outage, now).failure is None

    fail(0)
    request = send(queue, 10)
    if refused_by == "answer":
        assert queue.settle(request, [Answer(code="ValidationException")], 10).refused
    else:
        assert queue.fault(request, refusal, 10).refused
    fail(100)


def answer_all_but_the_poison(request: PutRecordsRequest, code: str = "InternalFailure") -> list[Answer]:
    return [
        Answer(code=code, message="x") if parcel.key == "poison" else Answer("shardId-000000000000")
        for parcel in request.parcels
    ]


def test_a_failing_record_is_retried_while_its_shard_makes_progress() -> None:
    queue = queue_of(ModelStream(even_shards(1)), retry_timeout=60)
    queue.add([record(0, "poison")])
    now = 0.0
    for number in range(1, 1_200):
        queue.add([record(number, str(number))])
        now += 5
        request = send(queue, now)
        settled = queue.settle(request, answer_all_but_the_poison(request), now)
        assert settled.failure is None
        assert not settled.refused
    # Then it is alone: its shard makes no progress.
    since, failure = now, None
    while failure is None:
        now += 5
        request = send(queue, now)
        settled = queue.settle(request, answer_all_but_the_poison(request), now)
        failure = settled.failure
        assert not settled.refused
    assert isinstance(failure, RetriesExhaustedError)
    assert 60 < now - since < 80


def test_an_aggregate_that_readers_would_drop_is_not_acknowledged() -> None:
    stream = ModelStream(even_shards(1))
    queue = queue_of(stream, aggregate=True)
    for number, place in enumerate((0, (1 << 128) - 1)):
        queue.add([record(number, f"k{number}", hash_key=place)])
    request = send(queue)
    assert len(request.parcels) == 1
    stream.split(0)
    answer = stream.store(request.parcels[0])
    queue.adopt(stream.map)
    settled = queue.settle(request, [answer], 0.0)
    assert not settled.acknowledged
    assert settled.misrouted
    assert settled.retried == {WRONG_SHARD: 1}
    again = send(queue, 10.0)
    assert len(again.parcels) == 2, "one for each child"
    assert set(again.shards) == set(stream.map.open_shards)


def test_records_of_a_shard_that_is_not_listed_are_in_no_aggregate() -> None:
    stream = ModelStream(even_shards(3))
    queue = queue_of(stream, aggregate=True)
    queue.adopt(ShardMap([shard for shard in stream.ranges if shard.id != "shardId-000000000001"]))
    queue.add([record(number, f"key-{number}") for number in range(60)])
    sent = []
    while (request := queue.next_request(0.0, eager=True)) is not None:
        sent += request.parcels
        queue.settle(request, [stream.store(parcel) for parcel in request.parcels], 0.0)
    shards = [{stream.map.shard_of(each.hash) for each in parcel.records} for parcel in sent]
    assert all(len(each) == 1 for each in shards)
    assert len(sent) < 60, "the others are aggregated"


def test_with_order_the_new_shard_map_waits_for_the_old_ones_answers() -> None:
    stream = ModelStream(even_shards(1))
    queue = queue_of(stream, ordered=True)
    queue.add([record(0, "a")])
    request = send(queue)
    queue.add([record(1, "a")])
    stream.split(0)
    queue.adopt(stream.map)
    assert queue.next_request(0.0, eager=True) is None
    queue.settle(request, [Answer(code="InternalFailure")], 0.0)
    assert [made.position for made in send(queue, 10.0).records] == [0]


def test_aggregates_on_their_way_when_kinesis_begins_to_distribute_are_written_again_one_by_one() -> None:
    stream = ModelStream(even_shards(2))
    queue = queue_of(stream, aggregate=True)
    queue.add([record(number, f"key-{number}") for number in range(20)])
    request = send(queue)
    assert len(request.parcels) == 2
    queue.adopt(ANY)
    here, elsewhere = stream.map.open_shards[0], stream.map.open_shards[0]
    settled = queue.settle(request, [Answer(here), Answer(elsewhere)], 0.0)
    assert settled.retried == {WRONG_SHARD: 1}, "the KCL drops the one that lies in a shard of others"
    assert not settled.misrouted, "there is nothing to learn"
    again = send(queue, now=10.0)
    assert [len(parcel.records) for parcel in again.parcels] == [1] * (20 - len(settled.acknowledged))
    assert not again.keyed


def test_where_order_is_kept_queues_follow_whether_there_are_aggregates() -> None:
    stream = ModelStream(even_shards(1))
    queue = queue_of(stream, aggregate=True, ordered=True)
    queue.adopt(ShardMap(stream.ranges, Distribution.UNKNOWN))
    queue.add([record(number, f"key-{number}") for number in range(20)])
    assert len(send(queue).parcels) == 20, "a request of one record each would take for ever"


def test_an_answer_from_before_two_changes_does_not_stop_the_queue() -> None:
    stream = ModelStream(even_shards(2))
    queue = queue_of(stream)
    queue.adopt(ANY)
    queue.add([record(0)])
    before = send(queue)
    queue.adopt(stream.map)
    queue.adopt(ANY)
    queue.settle(before, [Answer("shardId-0")], 0.0)
    queue.add([record(number) for number in range(1, 11)])
    queue.settle(send(queue), [Answer(code=THROTTLE, message="")] * 10, 0.0)
    after = send(queue, now=100.0)
    queue.settle(after, [Answer("shardId-1")] * len(after.parcels), 100.0)
    assert queue.in_flight == 0


def test_records_that_kinesis_distributes_are_taken_wherever_they_go() -> None:
    queue = queue_of(ModelStream(even_shards(2)))
    queue.adopt(ANY)
    queue.add([record(number) for number in range(3)])
    request = send(queue)
    answers = [Answer("shardId-7"), Answer(code=THROTTLE, message=""), Answer("shardId-8")]
    settled = queue.settle(request, answers, 0.0)
    assert ([each.position for each in settled.acknowledged], settled.misrouted) == ([0, 2], False)


def test_records_go_to_the_shards_of_a_stream_created_again() -> None:
    stream = ModelStream(even_shards(2))
    queue = queue_of(stream, ordered=True)
    queue.add([record(number, f"key-{number}") for number in range(40)])
    request = send(queue)
    queue.add([record(number, f"key-{number}") for number in range(40, 80)])
    again = ShardMap(even_shards(4))
    queue.adopt(again)
    queue.settle(request, [Answer(code="InternalFailure", message="")] * len(request.parcels), 0.0)
    resent = queue.next_request(60.0, eager=True)
    assert resent is not None
    assert {each.hash: again.shard_of(each.hash) for each in resent.records} == dict(
        zip([each.hash for each in resent.records], resent.shards, strict=True)
    )
    assert sorted(each.position for each in resent.records) == list(range(80))


def test_outage_ends_when_its_records_belong_to_another_shard() -> None:
    stream = ModelStream(even_shards(1))
    queue, half = queue_of(stream, linger=0), MAX_HASH // 2
    queue.add([record(0, hash_key=MAX_HASH)])
    request = queue.next_request(0.0, eager=True)
    assert request is not None
    (shard,) = request.shards
    assert queue.settle(request, [THROTTLED], 0.1).failure is None
    queue.adopt(ShardMap([HashRange(shard, 0, half, first="2"), HashRange("other", half + 1, MAX_HASH, first="2")]))
    request = queue.next_request(10.0, eager=True)
    assert request is not None and request.shards == ["other"]
    queue.settle(request, [Result(shard="other")], 10.1)
    queue.add([record(1, hash_key=1)])
    request = queue.next_request(600.0, eager=True)
    assert request is not None
    assert queue.settle(request, [THROTTLED], 600.1).failure is None
