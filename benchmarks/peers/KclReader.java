import java.net.URI;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.exceptions.InvalidStateException;
import software.amazon.kinesis.exceptions.ShutdownException;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * An application of the KCL: its defaults but for the metrics, which are off, and a pause of a minute at the first start, which
 * it would make between listing the shards and reading them. Arguments: endpoint, stream, fan-out or polling.
 */
public final class KclReader {
    public static void main(String[] given) {
        URI endpoint = URI.create(given[0]);
        String stream = given[1];
        Region region = Region.US_EAST_1;
        KinesisAsyncClient kinesis = KinesisClientUtil.createKinesisAsyncClient(
                KinesisAsyncClient.builder().region(region).endpointOverride(endpoint));
        DynamoDbAsyncClient dynamodb = DynamoDbAsyncClient.builder().region(region).endpointOverride(endpoint).build();
        CloudWatchAsyncClient metrics = CloudWatchAsyncClient.builder().region(region).endpointOverride(endpoint).build();
        var start = InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON);
        ConfigsBuilder configs = new ConfigsBuilder(
                new SingleStreamTracker(stream, start), stream, kinesis, dynamodb, metrics,
                UUID.randomUUID().toString(), Processor::new);
        new Scheduler(
                configs.checkpointConfig(),
                configs.coordinatorConfig(),
                configs.leaseManagementConfig().shardSyncIntervalMillis(1000L),
                configs.lifecycleConfig(),
                configs.metricsConfig().metricsFactory(new NullMetricsFactory()),
                configs.processorConfig(),
                configs.retrievalConfig().retrievalSpecificConfig(given[2].equals("fan-out")
                        ? new FanOutConfig(kinesis).streamName(stream).applicationName(stream)
                        : new PollingConfig(stream, kinesis)))
                .run();
    }

    /** Checkpoints its shard every ten seconds. */
    private static final class Processor implements ShardRecordProcessor {
        private long checkpointed = System.nanoTime();

        @Override
        public void processRecords(ProcessRecordsInput input) {
            Seen seen = new Seen();
            input.records().forEach(record -> seen.take(record.data()));
            seen.say();
            if (System.nanoTime() - checkpointed > TimeUnit.SECONDS.toNanos(10)) {
                checkpointed = System.nanoTime();
                checkpoint(input.checkpointer());
            }
        }

        @Override
        public void shardEnded(ShardEndedInput input) {
            checkpoint(input.checkpointer());
        }

        private static void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
            } catch (InvalidStateException | ShutdownException error) {
                error.printStackTrace();
            }
        }

        @Override
        public void initialize(InitializationInput input) {}

        @Override
        public void leaseLost(LeaseLostInput input) {}

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {}
    }
}
