import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Reads all shards of a stream with Enhanced Fan-Out at once, until it has so many records in all: with the JDK's client,
 * Jackson, a thread for each shard, and nothing else. It does less than any consumer for the JVM: nothing is signed, retried,
 * buffered or checkpointed. Prints as JSON the bytes of data and the CPU seconds of the second half, when the JVM has compiled
 * what runs.
 *
 * <p>Arguments: endpoint, file of the certificate to trust, ARN of the consumer, number of shards, number of records.
 */
public final class BareReader {
    record Row(byte[] data, String partitionKey, String sequenceNumber, double arrival) {}

    private static final JsonFactory JSON = new JsonFactory();
    private static final AtomicLong RECORDS = new AtomicLong();
    private static final AtomicLong BYTES = new AtomicLong();

    private static HttpClient client;
    private static String[] arguments;
    private static long wanted;
    private static long halfBytes;
    private static long halfTime;

    public static void main(String[] given) throws Exception {
        arguments = given;
        wanted = Long.parseLong(given[4]);
        client = HttpClient.newBuilder().sslContext(trusting(given[1])).version(HttpClient.Version.HTTP_2).build();
        for (int shard = 0; shard < Integer.parseInt(given[3]); shard++) {
            String id = String.format("shardId-%012d", shard);
            new Thread(() -> read(id)).start();
        }
    }

    private static SSLContext trusting(String certificate) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null);
        try (FileInputStream file = new FileInputStream(certificate)) {
            trusted.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    private static void read(String shard) {
        String asked = "{\"ConsumerARN\":\"" + arguments[2] + "\",\"ShardId\":\"" + shard
                + "\",\"StartingPosition\":{\"Type\":\"TRIM_HORIZON\"}}";
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("X-Amz-Target", "Kinesis_20131202.SubscribeToShard")
                .header("Content-Type", "application/x-amz-json-1.1")
                .POST(HttpRequest.BodyPublishers.ofString(asked))
                .build();
        try {
            var body = client.send(request, HttpResponse.BodyHandlers.ofInputStream()).body();
            DataInputStream in = new DataInputStream(new BufferedInputStream(body, 1 << 16));
            while (true) {
                take(frame(in));
            }
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    /** The payload of the next frame, its checksums checked. */
    private static ByteBuffer frame(DataInputStream in) throws IOException {
        byte[] prelude = new byte[12];
        in.readFully(prelude);
        ByteBuffer numbers = ByteBuffer.wrap(prelude);
        byte[] rest = new byte[numbers.getInt() - prelude.length];
        int headers = numbers.getInt();
        CRC32 checksum = new CRC32();
        checksum.update(prelude, 0, 8);
        check(checksum, numbers.getInt());
        in.readFully(rest);
        checksum.update(prelude, 8, 4);
        checksum.update(rest, 0, rest.length - 4);
        check(checksum, ByteBuffer.wrap(rest, rest.length - 4, 4).getInt());
        return ByteBuffer.wrap(rest, headers, rest.length - 4 - headers);
    }

    private static void check(CRC32 found, int said) throws IOException {
        if ((int) found.getValue() != said) {
            throw new IOException("a frame has a wrong checksum");
        }
    }

    private static void take(ByteBuffer payload) throws IOException {
        List<Row> rows = rows(payload);
        long bytes = BYTES.addAndGet(rows.stream().mapToLong(row -> row.data().length).sum());
        count(RECORDS.addAndGet(rows.size()), bytes);
    }

    private static List<Row> rows(ByteBuffer payload) throws IOException {
        List<Row> rows = new ArrayList<>();
        try (JsonParser parser = JSON.createParser(payload.array(), payload.position(), payload.remaining())) {
            for (JsonToken token = parser.nextToken(); token != null; token = parser.nextToken()) {
                if (token == JsonToken.FIELD_NAME && parser.currentName().equals("Records")) {
                    parser.nextToken();
                    while (parser.nextToken() == JsonToken.START_OBJECT) {
                        rows.add(row(parser));
                    }
                }
            }
        }
        return rows;
    }

    private static Row row(JsonParser parser) throws IOException {
        byte[] data = null;
        String key = null;
        String number = null;
        double arrival = 0;
        while (parser.nextToken() != JsonToken.END_OBJECT) {
            String name = parser.currentName();
            parser.nextToken();
            switch (name) {
                case "Data" -> data = parser.getBinaryValue();
                case "PartitionKey" -> key = parser.getText();
                case "SequenceNumber" -> number = parser.getText();
                case "ApproximateArrivalTimestamp" -> arrival = parser.getDoubleValue();
                default -> parser.skipChildren();
            }
        }
        return new Row(data, key, number, arrival);
    }

    private static synchronized void count(long records, long bytes) {
        long time = ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
        if (halfTime == 0 && records >= wanted / 2) {
            halfTime = time;
            halfBytes = bytes;
        }
        if (records >= wanted) {
            System.out.printf("{\"bytes\": %d, \"seconds\": %.3f}%n", bytes - halfBytes, (time - halfTime) / 1e9);
            Runtime.getRuntime().halt(0);
        }
    }
}
