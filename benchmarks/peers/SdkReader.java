import java.net.URI;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.StartingPosition;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardEvent;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardResponseHandler;
import software.amazon.kinesis.common.KinesisClientUtil;

/**
 * The SDK for Java alone, with the client that the KCL makes of it: subscribes to each shard again and again, and keeps nothing.
 * Arguments: endpoint, stream.
 */
public final class SdkReader {
    private static KinesisAsyncClient kinesis;
    private static String consumer;

    public static void main(String[] given) throws InterruptedException {
        kinesis = KinesisClientUtil.createKinesisAsyncClient(
                KinesisAsyncClient.builder().region(Region.US_EAST_1).endpointOverride(URI.create(given[0])));
        String stream = kinesis.describeStreamSummary(asked -> asked.streamName(given[1])).join()
                .streamDescriptionSummary().streamARN();
        consumer = kinesis.registerStreamConsumer(asked -> asked.streamARN(stream).consumerName("sdk")).join()
                .consumer().consumerARN();
        while (!kinesis.describeStreamConsumer(asked -> asked.consumerARN(consumer)).join()
                .consumerDescription().consumerStatusAsString().equals("ACTIVE")) {
            Thread.sleep(100);
        }
        kinesis.listShards(asked -> asked.streamName(given[1])).join().shards()
                .forEach(shard -> new Shard(shard.shardId()).subscribe());
        Thread.currentThread().join();
    }

    private static final class Shard {
        private final String id;
        private StartingPosition next = StartingPosition.builder().type(ShardIteratorType.TRIM_HORIZON).build();

        Shard(String id) {
            this.id = id;
        }

        void subscribe() {
            SubscribeToShardResponseHandler events = SubscribeToShardResponseHandler.builder()
                    .subscriber(SubscribeToShardResponseHandler.Visitor.builder().onSubscribeToShardEvent(this::take).build())
                    .build();
            kinesis.subscribeToShard(asked -> asked.consumerARN(consumer).shardId(id).startingPosition(next), events)
                    .whenComplete((nothing, error) -> {
                        if (error != null) {
                            error.printStackTrace();
                        }
                        CompletableFuture.delayedExecutor(error == null ? 0 : 1, TimeUnit.SECONDS).execute(this::subscribe);
                    });
        }

        private void take(SubscribeToShardEvent event) {
            Seen seen = new Seen();
            event.records().forEach(record -> seen.take(record.data().asByteBuffer()));
            seen.say();
            next = StartingPosition.builder()
                    .type(ShardIteratorType.AFTER_SEQUENCE_NUMBER)
                    .sequenceNumber(event.continuationSequenceNumber())
                    .build();
        }
    }
}
