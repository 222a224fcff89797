import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.streaming.connectors.kinesis.FlinkKinesisConsumer;

/** A job of Flink in one process, with two slots and checkpoints in memory every ten seconds. Arguments: endpoint, stream. */
public final class FlinkReader {
    public static void main(String[] given) throws Exception {
        Properties source = new Properties();
        source.setProperty("aws.region", "us-east-1");
        source.setProperty("aws.endpoint", given[0]);
        source.setProperty("flink.stream.initpos", "TRIM_HORIZON");
        source.setProperty("flink.stream.recordpublisher", "EFO");
        source.setProperty("flink.stream.efo.consumername", "flink");
        Configuration settings = new Configuration();
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(64));
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(64));
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        flink.enableCheckpointing(10_000);
        flink.addSource(new FlinkKinesisConsumer<>(given[1], new Bytes(), source)).addSink(new Sink());
        flink.execute();
    }

    private static final class Bytes extends AbstractDeserializationSchema<byte[]> {
        @Override
        public byte[] deserialize(byte[] data) {
            return data;
        }
    }

    private static final class Sink implements SinkFunction<byte[]> {
        @Override
        public void invoke(byte[] data, Context context) {
            Seen seen = new Seen();
            seen.take(ByteBuffer.wrap(data));
            seen.say();
        }
    }
}
