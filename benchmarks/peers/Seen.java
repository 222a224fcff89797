import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.concurrent.TimeUnit;

/** What every reader says of the records that it has: the first bytes of each that does not begin with a dash, and the time. */
final class Seen {
    private static final int HEAD = 17;

    private final StringBuilder lines = new StringBuilder();
    private final long now = TimeUnit.SECONDS.toMicros(Instant.now().getEpochSecond()) + Instant.now().getNano() / 1000;

    void take(ByteBuffer data) {
        if (data.get(data.position()) != '-') {
            byte[] head = new byte[HEAD];
            data.duplicate().get(head);
            lines.append(new String(head, StandardCharsets.US_ASCII)).append(' ').append(now).append('\n');
        }
    }

    void say() {
        if (!lines.isEmpty()) {
            System.out.print(lines);
            System.out.flush();
        }
    }
}
